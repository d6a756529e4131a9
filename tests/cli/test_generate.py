"""`regard generate`: what is written piece by piece is what `predict` says as a whole."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as package
from regard.cli import generate
from regard.cli.main import main
from regard.errors import ConfigError, RunError
from regard.run import Run

Command = Callable[..., Any]
TEXT = "the cat saw the dog, the dog saw the café 中文 and the cat.\n" * 30
MODEL = """
[model]
family = "gpt"
layers = {layers}
model_dim = 16
num_heads = 2
ffn_dim = 32
max_length = 24
dropout = 0.0
"""
RECIPE = """
run = "{folder}/{name}"
task = {{ name = "language-modeling", context = 24 }}
data = {{ train = ["{folder}/text.txt"], val_share = 0.1 }}
tokenizer = {{ kind = "{kind}", vocab_size = 270 }}
train = {{ max_steps = 8, batch_tokens = 256, learning_rate = 1e-2, warmup_steps = 2, device = "cpu" }}
decode = {{ method = "sample", max_length = 12 }}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs: `large`, `small`, which has the same tokenizer, and `letters`, which has not."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    for name, layers, kind in (("large", 2, "byte-bpe"), ("small", 1, "byte-bpe"), ("letters", 1, "characters")):
        recipe = folder / f"{name}.toml"
        recipe.write_text(RECIPE.format(folder=folder, name=name, kind=kind) + MODEL.format(layers=layers))
        with pytest.raises(SystemExit) as ended:
            main(["train", str(recipe)])
        assert not ended.value.code
    return folder


@pytest.fixture(scope="module")
def large(runs: Path) -> Run:
    return package.load(runs / "large", "cpu")


KEYS = [
    {},
    {"seed": 7, "top_p": 0.9, "max_length": 60},
    {"method": "greedy", "max_length": 60},
    {"method": "contrastive", "top_k": 3, "max_length": 60},
    {"max_length": 60, "min_length": 59},
]


@pytest.mark.parametrize("keys", KEYS, ids=str)
@pytest.mark.parametrize("prompt", ["the dog", "", TEXT[:300]], ids=["short", "none", "beyond the context"])
def test_the_pieces_are_the_prediction(large: Run, keys: dict[str, Any], prompt: str) -> None:
    pieces = list(large.generate(prompt, index=3, **keys))
    [whole] = large.predict([prompt], first_index=3, **keys)
    assert "".join(pieces) == whole.text
    assert len(pieces) - len(whole.ids[0]) in (0, 1)  # one more where the last character is not whole
    assert len(whole.ids[0]) >= keys.get("min_length", 1)


def test_characters_come_whole(runs: Path, large: Run) -> None:
    pieces = list(large.task.tokenizer.pieces(large.task.tokenizer.encode_batch(["é中文x"])[0]))
    assert "".join(pieces) == "é中文x"
    assert "" in pieces
    assert not any("\ufffd" in piece for piece in pieces)
    letters = package.load(runs / "letters", "cpu")
    assert len(list(letters.generate("the 中", max_length=30, min_length=29))) == 30


def test_a_text_goes_on_from_its_prompt(regard: Command, runs: Path, large: Run) -> None:
    done = regard("generate", runs / "large", "the dog", "method=greedy", "max_length=40")
    [whole] = large.predict(["the dog"], method="greedy", max_length=40)
    assert (done.code, done.out) == (0, f"the dog{whole.text}\n"), done.err
    assert done.err.startswith(f"{len(whole.ids[0])} tokens, ")
    assert done.err.endswith(" a second\n")


def test_a_translation_is_written_alone(regard: Command, trained: Any) -> None:
    done = regard("generate", trained.run, "a b c")
    assert done.out == "c b a\n", done.err  # the recipe's beam is greedy search here
    assert regard("generate", trained.run, "").out == "\n"
    drafted = regard("generate", trained.run, "a b c", "--draft", trained.run)
    assert drafted.out == "c b a\n", drafted.err
    assert "draft: 100% of 4 guesses were taken" in drafted.err


def test_each_line_of_a_pipe_is_a_prompt(regard: Command, runs: Path, large: Run) -> None:
    lines = ["the cat", "", "the cat"]
    done = regard("generate", runs / "large", stdin="".join(f"{line}\n" for line in lines).encode())
    found = large.predict(lines)  # draws by the place, as here
    assert done.out == "".join(f"{line}{answer.text}\n" for line, answer in zip(lines, found, strict=True))
    assert done.err.count("tokens") == 1
    assert regard("generate", runs / "large", stdin=b"").code == 0


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_person_is_asked(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"the cat\nthe dog\n")))
    with pytest.raises(SystemExit) as ended:
        main(["generate", str(runs / "large"), "max_length=3"])
    out, err = capsys.readouterr()
    assert not ended.value.code
    assert out.startswith("the cat")
    assert "\nthe dog" in out
    assert err.count("> ") == 3
    assert err.count(" a second\n") == 2


def until_interrupted(*_: object, **__: object) -> Iterator[str]:
    yield from ("one", " two")
    raise KeyboardInterrupt


def test_ctrl_c_ends_a_text(
    regard: Command, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "generate", until_interrupted)
    done = regard("generate", runs / "large", stdin=b"zero \nand\n")
    assert (done.code, done.out) == (130, "zero one two\n")
    assert done.err.startswith("2 tokens, ")
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"a \nb \n")))
    with pytest.raises(SystemExit) as ended:  # who is asked may go on
        main(["generate", str(runs / "large")])
    assert not ended.value.code
    assert capsys.readouterr().out == "a one two\nb one two\n"


def test_a_terminal_is_not_given_codes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, wanted in ((True, "a\\x1b[31mb\n"), (False, "a\x1b[31mb\n")):
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda shown=terminal: shown)
            assert generate.write(generate.Output(None), "a", ["\x1b[31m", "", "b"], generate.Pace())
        assert capsys.readouterr().out == wanted


def test_what_cannot_be_done_is_said_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    def pieces() -> Iterator[str]:
        raise ConfigError("no", got=1, wanted=2)
        yield ""

    with pytest.raises(ConfigError):
        generate.write(generate.Output(None), "a prompt", pieces(), generate.Pace())
    assert capsys.readouterr().out == ""


def test_a_draft_writes_token_by_token(runs: Path, large: Run) -> None:
    other = package.load(runs / "small", "cpu")
    other.model = torch.nn.Linear(2, 2)  # of an encoder with the same tokens, say
    with pytest.raises(RunError, match="a draft writes as the run that it guesses for"):
        large.draft(other)


@pytest.mark.parametrize("keys", [["method=greedy", "max_length=50"], ["method=greedy", "draft_tokens=2"]])
def test_a_draft_changes_nothing_but_the_time(regard: Command, runs: Path, keys: list[str]) -> None:
    alone = [word for word in keys if "draft" not in word]
    for command, stdin in (("generate", b""), ("predict", b"the dog\nthe cat saw\n")):
        words = ["the dog"] if command == "generate" else []
        wanted = regard(command, runs / "large", *words, *alone, stdin=stdin)
        found = regard(command, runs / "large", *words, *keys, "--draft", runs / "small", stdin=stdin)
        assert (found.code, found.out) == (0, wanted.out), found.err
        assert "guesses were taken" in found.err


def test_a_draft_counts_its_guesses(runs: Path, large: Run) -> None:
    draft = large.draft(package.load(runs / "small", "cpu"))
    for _ in range(2):
        large.predict(["the dog"] * 3, draft=draft, max_length=60)
    assert 0 < draft.accepted < draft.proposed
    assert draft.share == draft.accepted / draft.proposed


def test_a_draft_with_other_tokens_is_refused(regard: Command, runs: Path, large: Run) -> None:
    with pytest.raises(RunError) as error:
        large.draft(package.load(runs / "letters", "cpu"))
    assert str(error.value) == (
        "a draft speaks the tokens of the run that it guesses for\n"
        f"  got:    other tokenizers in {runs / 'letters'} than in {runs / 'large'}\n"
        "  wanted: the same files: tokenizer.json\n"
        "  try:    train it on the same data, with the same [tokenizer]"
    )
    assert regard("generate", runs / "large", "a", "--draft", runs / "letters").code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "method=beam"], "only one output, of which no token is taken back, can be had token by token"),
        (["a", "n_best=2"], 'got:    method = "sample", n_best = 2'),
        (["a", "beam=2"], 'method = "sample" does not use beam\n  got:    beam\n  wanted: beam with method = beam'),
        (["a", "method=greedy", "top_k=2"], "wanted: top_k with method = sample or contrastive"),
        (["a", "draft_tokens=2"], "draft_tokens says how a draft model guesses\n  got:    no draft"),
        (["a", "method=contrastive"], "contrastive search weighs the top_k likeliest tokens\n  got:    top_k = 0"),
        (["a", "b"], 'a prompt is one word of the command\n  got:    a b\n  wanted: "a b"'),
        (["a", "method=contrastive", "top_k=2", "--draft", "{run}"], "a draft guesses for greedy search or sampling"),
    ],
)
def test_what_cannot_be_meant(regard: Command, runs: Path, words: list[str], message: str) -> None:
    run = runs / "large"
    refused = regard("generate", run, *(word.format(run=run) for word in words))
    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.err


def test_keys_of_the_recipe_need_no_use(large: Run, trained: Any) -> None:
    """Only what was just asked for is held against the method: the recipe may have keys of others."""
    assert package.load(trained.run, "cpu").predict(["a b"], method="greedy")[0].text == "b a"
    with pytest.raises(ConfigError, match='method = "greedy" does not use beam'):
        large.predict(["a"], method="greedy", beam=2)


def test_generate_answers_one_text(large: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="generate answers one text"):
        large.generate(["the dog"])  # type: ignore[arg-type]
    monkeypatch.setattr(large, "task", object())
    with pytest.raises(RunError, match="this run writes no text"):
        large.generate("the dog")
