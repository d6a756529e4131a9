"""Dialogue: eight conversations are learned by heart and held through the command line; formats, cuts, what is new."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import io
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import chat
from regard.cli.main import main
from regard.data.noise import Noise
from regard.data.parts import NoisyData
from regard.data.readers import ReadReport
from regard.data.tokenizers import TokenizerConfig
from regard.data.turns import TurnsTokenizer, digest, last_turns, read_contexts, read_conversations, turns_of
from regard.errors import ConfigError, DataError, RunError
from regard.looking.explain import case
from regard.recipe import read_recipe
from regard.run import Run, load, train
from regard.tasks import dialogue

NAMES = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal")
EIGHT = [[f"I am {name} .", "Hello !", "Who am I ?", f"You are {name} ."] for name in NAMES]
RECIPE = """
[task]
name = "dialogue"
label_smoothing = 0.0

[data]
train = ["{file}"]
val = ["{file}"]
test = ["{file}"]
too_long = "truncate"

[tokenizer]
vocab_size = 200

[model]
family = "{family}"
{model}
dropout = 0.0

[train]
device = "cpu"
max_steps = {steps}
learning_rate = 1e-2
schedule = "cosine"
warmup_steps = 10
validate_every = 1000

[decode]
max_ratio = 20.0
max_length = 20
"""
SMALL = {
    "transformer": "encoder_layers = 1\ndecoder_layers = 1\nmodel_dim = 32\nnum_heads = 2\nffn_dim = 32",
    "convolutional": "encoder_layers = 1\ndecoder_layers = 1\nembedding_dim = 32\nhidden_dim = 32",
    "recurrent": "embedding_dim = 32\nhidden_dim = 32",
    "t5": "encoder_layers = 1\ndecoder_layers = 1\nmodel_dim = 32\nnum_heads = 2\nhead_dim = 16\nffn_dim = 32",
}


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own, and one thread: on a busy machine two wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(number)


def write(path: Path, conversations: list[list[str]]) -> Path:
    """As DailyDialog has them: every turn ends with __eou__."""
    path.write_text("".join("".join(f"{turn} __eou__ " for turn in turns) + "\n" for turns in conversations))
    return path


Make = Callable[..., Run]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A run of a family that was trained on the eight; each is trained once."""
    folder = tmp_path_factory.mktemp("dialogue")
    file = write(folder / "eight.txt", EIGHT)
    runs: dict[str, Run] = {}

    def get(family: str = "transformer", steps: int = 200) -> Run:
        if family not in runs:
            path = folder / f"{family}.toml"
            path.write_text(RECIPE.format(family=family, file=file.name, model=SMALL[family], steps=steps))
            runs[family] = train(read_recipe(path, [f"run={folder / family}"]))
        return runs[family]

    return get


def regard(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


def opened(folder: Path, lines: str, *, tokenizer: TokenizerConfig | None = None, turns: int = 5, **data: Any) -> Any:
    """The task alone, of a training file with these lines."""
    folder.mkdir(exist_ok=True)
    (folder / "train.txt").write_text(lines)
    config = dialogue.DataConfig(train=("train.txt",), **{"val": ("train.txt",), "test": ("train.txt",), **data})
    return dialogue.Task.open(
        dialogue.Config(turns=turns),
        config,
        tokenizer or TokenizerConfig(kind="words"),
        paths=lambda name: [folder / "train.txt"],
        folder=folder,
    )


# --- learned by heart -------------------------------------------------------------------------------------------------


def test_eight_conversations_are_learned_and_come_back_through_the_command_line(
    trained: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained()
    asked = ["\t".join(turns[:-1]) for turns in EIGHT]
    right = [turns[-1] for turns in EIGHT]
    assert [answer.text for answer in run.predict(asked)] == right
    file = write(tmp_path / "begun.txt", [turns[:-1] for turns in EIGHT])
    capsys.readouterr()
    assert not regard("predict", run.folder, file, "--device", "cpu")
    assert capsys.readouterr().out.splitlines() == right
    assert not regard("predict", run.folder, "--device", "cpu", "--format", "jsonl", stdin=asked[0] + "\n\n")
    first, empty = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["target"], empty["target"]) == (right[0], "")


@pytest.mark.parametrize("family", sorted(set(SMALL) - {"transformer"}))
def test_other_families_of_this_kind_converse(trained: Make, family: str, tmp_path: Path) -> None:
    run = trained(family, steps=3)
    assert len(run.predict(["I am Ada .\tHello !\tWho am I ?", "Hello !"], max_length=3)) == 2
    assert run.evaluate("val", method="greedy", max_length=3)[0].value < 400  # of at most 200 pieces


def test_evaluation_says_how_and_of_what(trained: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained()
    capsys.readouterr()
    assert not regard("evaluate", run.folder, "--device", "cpu", "method=greedy")
    out = capsys.readouterr().out
    assert "bleu: 100.00\n  nrefs:1|case:mixed|" in out
    assert out.count("|conversations:8|in training:8\n") == 7
    # Hello ! / Who am I ? / You are NAME .: 2 + 4 + 3 and 8 names in 8 x 10 units; 1 + 3 + 1 and 2 x 8 pairs in 8 x 7
    for name in ("distinct1", "references.distinct1"):
        assert f"\n{name}: 21.25\n  case:mixed|units:spaces|distinct:17|all:80|" in out
    for name in ("distinct2", "references.distinct2"):
        assert f"\n{name}: 37.50\n  case:mixed|units:spaces|distinct:21|all:56|" in out
    assert "unseen" not in out  # all of it stands in training


def test_perplexity_is_that_of_the_loss(trained: Make, tmp_path: Path) -> None:
    run = trained()
    found = {score.name: score for score in run.evaluate(method="greedy")}
    (batch,) = [run.task.split("test", tmp_path).first(100)]
    with torch.no_grad():
        loss, count = run.task.loss(run.model, batch, smoothing=0.0)
    assert found["perplexity"].value == pytest.approx(math.exp(float(loss / count)), rel=1e-4)
    assert found["perplexity"].signature.startswith(f"tokens:{int(count)}, ends counted|")
    # 8 x 10 words and three ends
    assert found["word_perplexity"].value == pytest.approx(math.exp(float(loss / (8 * 13))), rel=1e-4)
    assert found["word_perplexity"].signature.startswith("words:104, ends counted|")


def test_it_is_looked_into(trained: Make, tmp_path: Path) -> None:
    run = trained()
    assert run.look("I am Bo .\tHello !\tWho am I ?", quick=True).trace.info["answer"] == "You are Bo ."
    look = run.look("a first turn\tI am Bo .\tHello !\tWho am I ? __eou__", "You are Bo .")
    axis = look.trace.axes["source"]
    assert axis.tokens[0] == "<self>"
    places = [i for i, token in enumerate(axis.tokens) if token in ("<other>", "<self>")]
    assert [axis.tokens[i] for i in places] == ["<self>", "<other>", "<self>", "<other>"]
    assert [axis.text[axis.offsets[i + 1][0] :].split()[0] for i in places] == ["a", "I", "Hello", "Who"]
    assert "cut" not in look.trace.info
    assert {"attention", "relevance"} <= {method["name"] for method in look.found.card["methods"]}
    # who speaks is no word of the text, which could be left out to see what it is worth
    batch, _ = run.task.pair(axis.text, "You are Bo .")
    words = case(run.subject(), batch, look.trace, None).attributions["attention"]
    assert len(words) == len(axis.tokens) - len(places) - 1
    record = {"source": "I am Cy . __eou__ Hello ! __eou__ Who am I ?", "target": "You are Ada ."}
    (tmp_path / "one.jsonl").write_text(json.dumps(record))
    assert run.look_at_file(tmp_path / "one.jsonl", quick=True).num_texts == 1


# --- chat -------------------------------------------------------------------------------------------------------------


def test_a_chat_in_a_pipe_keeps_what_was_said(trained: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained()
    capsys.readouterr()
    lines = ["I am Ada .", "Who am I ?", "/new", "I am Di .", "", "/back", "I am __eou__ Bo .", "Who am I ?", "/quit"]
    assert not regard("chat", run.folder, "--device", "cpu", stdin="\n".join([*lines, "Who am I ?"]))
    answers = ["Hello !", "You are Ada .", "Hello !", "", "Hello !", "You are Bo ."]
    assert capsys.readouterr().out.splitlines() == answers
    assert not regard("chat", run.folder, "max_length=1", stdin="I am Ada .\n")
    assert capsys.readouterr().out == "Hello\n"
    assert not regard("chat", run.folder, stdin="")


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_chat_with_a_person(
    trained: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, heard = trained(), []

    def until_interrupted(self: Run, source: str, **keys: object) -> Iterator[str]:
        heard.append(source)
        yield from ("well", " then")
        if len(heard) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "generate", until_interrupted)
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"one\ntwo\n")))
    with pytest.raises(SystemExit) as ended:
        main(["chat", str(run.folder)])
    out, err = capsys.readouterr()
    assert not ended.value.code
    assert heard == ["one", "one __eou__ well then __eou__ two"]  # what came before Ctrl-C was said
    assert out == "well then\nwell then\n"
    assert err.startswith(chat.HELP)
    heard.clear()
    assert regard("chat", run.folder, stdin="one\ntwo\n") == 130  # in a pipe it ends


def test_what_says_nothing_is_not_kept(trained: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(Run, "generate", lambda self, source, **keys: heard.append(source) or iter([" "]))
    assert not regard("chat", trained().folder, stdin="one\ntwo\tand __eou__  three\n")
    assert heard == ["one", "two and three"]  # a line is one turn


def test_only_conversations_chat(trained: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "other"
    shutil.copytree(trained().folder, folder)
    recipe = (folder / "recipe.toml").read_text().replace('name = "dialogue"', 'name = "translation"')
    (folder / "recipe.toml").write_text("".join(line for line in recipe.splitlines(True) if line != "turns = 5\n"))
    capsys.readouterr()
    assert regard("chat", folder) == 2
    assert capsys.readouterr().err == (
        "error: this run holds no conversations\n"
        "  got:    a run of translation\n"
        "  wanted: a run of dialogue\n"
        f"  where:  {folder}\n"
        f"  try:    regard generate {folder}\n"
    )


def test_the_smallest_file_and_recipe_of_the_page_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "dialogue.md").read_text(encoding="utf-8")
    lines, _, _, recipe = re.findall(r"^```(?:toml)?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[:4]
    (tmp_path / "mine.txt").write_text(lines)
    (tmp_path / "mine.toml").write_text(recipe)
    run = tmp_path / "run"
    keys = ("train.max_steps=2", "train.device=cpu", "tokenizer.vocab_size=100", "model.model_dim=32")
    assert not regard("train", tmp_path / "mine.toml", f"run={run}", *keys)
    assert not regard("evaluate", run, "--split", "val", "--device", "cpu", "max_length=3")
    capsys.readouterr()
    assert not regard("chat", run, "method=sample", "top_p=0.9", "max_length=3", stdin="Hi , how are you ?\nFine .\n")
    assert capsys.readouterr().out.count("\n") == 2


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_of_every_form_say_the_same(tmp_path: Path) -> None:
    eou = write(tmp_path / "a.txt", EIGHT)
    tabs = tmp_path / "b.tsv"
    tabs.write_text("".join("\t".join(turns) + "\n" for turns in EIGHT))
    records = tmp_path / "c.jsonl"
    records.write_text("".join(json.dumps({"turns": [*turns[:3], turns[3] + "\n"]}) + "\n" for turns in EIGHT))
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(eou.read_bytes()))
    for path in (eou, tabs, records, packed):
        found = list(read_conversations([path]))
        assert [list(each.targets) for each in found] == EIGHT
        assert found[1].source == "I am Bo . __eou__ Hello ! __eou__ Who am I ? __eou__ You are Bo ."
        assert found[1].place == f"{path}:2"
        assert [turns_of(each.source) for each in read_contexts(path)] == EIGHT


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("a.txt", b"a turn alone", "one turn; wanted two or more, with a tab or __eou__ between them"),
        ("a.txt", b"", "no turn; wanted two or more, with a tab or __eou__ between them"),
        ("a.txt", b"one\t\ttwo", "turn 2 is empty"),
        ("a.txt", b"one\t\xff", "not UTF-8: byte 0xff at column 5"),
        ("a.jsonl", b'{"turns": "one"}', 'no list "turns"; there are: turns'),
        ("a.jsonl", b'{"text": "one"}', 'no list "turns"; there are: text'),
        ("a.jsonl", b'{"turns": ["one", 2]}', "the turn 2 is not a string: 2"),
        ("a.jsonl", b'{"turns": ["one", " "]}', "the turn 2 is empty"),
        ("a.jsonl", b'{"turns": ["one", "two __eou__ three"]}', "turn 2 holds __eou__, which ends turns"),
        ("a.jsonl", b"[]", "not a JSON object; wanted one with turns"),
    ],
)
def test_bad_lines_are_named_or_counted(tmp_path: Path, name: str, line: bytes, reason: str) -> None:
    good = b'{"turns": ["hi", "hello"]}' if name.endswith("l") else b"hi\thello"
    (tmp_path / name).write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
    with pytest.raises(DataError) as error:
        list(read_conversations([tmp_path / name], report=ReadReport()))
    assert str(error.value) == (
        f"a bad line\n  got:    {reason}\n  where:  {tmp_path / name}:2\n"
        '  try:    mend the line, or set data.on_bad_line = "skip" to leave such lines out and count them'
    )
    report = ReadReport()
    assert len(list(read_conversations([tmp_path / name], on_bad_line="skip", report=report))) == 2
    assert report.bad == [(f"{tmp_path / name}:2", reason)]


def test_what_predict_wrote_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "hi\\thello", "target": "bye"}\n{"source": "hi"}\n')
    found = list(read_contexts(tmp_path / "a.jsonl"))
    assert [(each.source, each.targets) for each in found] == [("hi __eou__ hello", ("bye",)), ("hi", ())]
    (tmp_path / "b.jsonl").write_text('{"source": "hi\\thello", "target": "bye"}\n')
    assert next(read_conversations([tmp_path / "b.jsonl"])).targets == ("hi", "hello", "bye")


def test_what_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="conversations are one file\n  got:    2 files"):
        list(read_conversations([tmp_path / "a", tmp_path / "b"]))
    with pytest.raises(ConfigError, match="turns is too small\n  got:    -1\n  wanted: 1 or more, or 0 for all"):
        dialogue.Config(turns=-1)
    with pytest.raises(DataError, match="the training split holds no example\n  got:    0 examples"):
        opened(tmp_path, "")


# --- what is read -----------------------------------------------------------------------------------------------------

TALK = "a1 a2\tb1\ta3 a4 a5\tb2\ta6\n"


def read(task: Any, cache: Path, name: str = "val") -> list[str]:
    store = task.split(name, cache).store
    return [" ".join(task.source.tokens(store.source(i))) for i in range(len(store))]


def test_every_reply_is_an_example_and_the_last_turns_are_read(tmp_path: Path) -> None:
    whole = opened(tmp_path / "all", TALK, turns=0)
    assert [each.targets[0] for each in whole.examples("val")] == ["b1", "a3 a4 a5", "b2", "a6"]
    assert read(whole, tmp_path) == [
        "<other> a1 a2",
        "<self> a1 a2 <other> b1",
        "<other> a1 a2 <self> b1 <other> a3 a4 a5",
        "<self> a1 a2 <other> b1 <self> a3 a4 a5 <other> b2",
    ]
    two = opened(tmp_path / "two", TALK, turns=2)
    assert read(two, tmp_path)[2:] == ["<self> b1 <other> a3 a4 a5", "<self> a3 a4 a5 <other> b2"]
    # a question is read as an example is
    (ids,) = two._read([TALK.rpartition("\t")[0]])
    assert " ".join(two.source.tokens(ids)) == "<self> a3 a4 a5 <other> b2"
    assert two._read(["", "\t __eou__ "]) == [[], []]


def test_what_is_too_long_loses_its_oldest_turns(tmp_path: Path) -> None:
    task = opened(tmp_path / "cut", TALK, max_length=6, too_long="truncate")
    assert read(task, tmp_path) == [
        "<other> a1 a2",
        "<self> a1 a2 <other> b1",
        "<self> b1 <other> a3 a4 a5",
        "<self> a3 a4 a5 <other> b2",
    ]
    batch, axes = task.pair(TALK, "b1")
    assert axes["source"].tokens == ("<self>", "b2", "<other>", "a6", "</s>")
    assert [axes["source"].text[slice(*span)] for span in axes["source"].offsets] == ["", "b2", "", "a6", ""]
    assert batch.source.ids.shape == (1, 5)
    # one turn that is too long alone keeps who says it, and its end
    short = opened(tmp_path / "short", TALK, max_length=3, too_long="truncate")
    assert read(short, tmp_path)[2] == "<other> a4 a5"
    dropped = opened(tmp_path / "drop", TALK, max_length=3, too_long="drop")
    assert len(read(dropped, tmp_path, "train")) == 1  # a1 a2 and its reply
    assert len(read(dropped, tmp_path, "val")) == 4  # none is left out that is judged by
    refused = opened(tmp_path / "error", TALK, max_length=3)
    with pytest.raises(DataError, match="the source is too long\n  got:    5 tokens"):
        refused.split("train", tmp_path)


def test_what_stands_before_the_first_turn_stays() -> None:
    ids = [7, 8, 1, 9, 2, 2, 8, 3]
    assert last_turns(ids, (8, 9), 8) == list(range(8))
    assert last_turns(ids, (8, 9), 7) == [0, 3, 4, 5, 6, 7]
    assert last_turns(ids, (8, 9), 4) == [0, 6, 7]
    assert last_turns(ids, (8, 9), 2) == [0, 6]


def test_a_cut_conversation_is_answered_by_its_end(trained: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained()
    end = ["I am Ed .", "Hello !", "Who am I ?"]
    long = "\t".join(["I am Flo . " * 200, "Hello !", *end])
    (cut,) = run.predict([long])
    assert cut.text == "You are Ed ."
    assert cut.cut > 0
    assert "1 of 1 sources were cut to 256 tokens" in capsys.readouterr().err
    (whole,) = run.predict(["\t".join(end)])
    assert (whole.text, whole.cut) == (cut.text, 0)


def test_no_text_can_spell_who_speaks(tmp_path: Path) -> None:
    task = opened(tmp_path, "<other> hi\t<self> < self >\n", tokenizer=TokenizerConfig(kind="bpe", vocab_size=60))
    assert isinstance(task.source, TurnsTokenizer)
    (ids,) = task._read(["<other> hi\t<self> < self >"])
    assert [i in task.source.markers for i in ids].count(True) == 2
    # the reply is written by the plain tokenizer: it has no speaker before it
    assert not set(task.target.encode_batch(["<self> hi"])[0]) & set(task.source.markers)


def test_two_vocabularies(tmp_path: Path) -> None:
    task = opened(tmp_path, TALK, tokenizer=TokenizerConfig(kind="words", shared=False))
    assert (task.sizes.shared, task.sizes.source, task.sizes.target) == (False, 4 + 2 + 8, 4 + 8)


# --- splits -----------------------------------------------------------------------------------------------------------


def test_all_replies_of_a_conversation_are_on_one_side(tmp_path: Path) -> None:
    lines = "".join(f"x{i} a\tx{i} b\tx{i} c\tx{i} d\n" for i in range(100))
    task = opened(tmp_path / "a", lines, val=(), val_share=0.3)
    sides = [{each.targets[0].split()[0] for each in task.examples(name)} for name in ("train", "val")]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 100
    assert len(sides[1]) > 10
    assert len(task.examples("train")) == 3 * len(sides[0])
    assert len(task.known) == len(sides[0])  # what is held out is not known
    less = opened(tmp_path / "b", lines, val=(), val_share=0.3, train_share=0.5)
    assert {each.targets[0].split()[0] for each in less.examples("train")} < sides[0]
    assert less.known < task.known


def test_mistakes_are_in_what_is_read_alone(tmp_path: Path) -> None:
    lines = "".join(f"this is turn {i} of mine\tand this is the {i} reply\tand the {i} end of it\n" for i in range(20))
    task = opened(tmp_path, lines)
    wrong = copy.copy(task)
    wrong.data = NoisyData.of(task.data, Noise(0.5))
    clean, noisy = task.examples("test"), wrong.examples("test")
    assert [each.targets for each in noisy] == [each.targets for each in clean]
    for before, after in zip(clean, noisy, strict=True):
        assert turns_of(after.source) == [Noise(0.5).text(turn) for turn in turns_of(before.source)]
    assert read(task, tmp_path, "test") != read(wrong, tmp_path, "test")


# --- what stands in training ------------------------------------------------------------------------------------------


def test_figures_with_and_without_what_stands_in_training(trained: Make, tmp_path: Path) -> None:
    run = trained()
    new = [["Who are you ?", "I am Ada ."], ["Hello !", "Who am I ?", "Hello !"]]
    spaced = [[turn.replace(" ", "  ") for turn in EIGHT[0]], EIGHT[5]]
    folder = tmp_path / "copy"
    shutil.copytree(run.folder, folder)

    def figures(conversations: list[list[str]]) -> dict[str, Any]:
        file = write(tmp_path / "test.txt", conversations)
        text = (run.folder / "recipe.toml").read_text()
        lines = [f'test = ["{file}"]' if line.startswith("test = ") else line for line in text.splitlines()]
        # the training file may be gone
        gone = [f'train = ["{tmp_path}/gone.txt"]' if line.startswith("train = ") else line for line in lines]
        (folder / "recipe.toml").write_text("\n".join(gone))
        return {score.name: score for score in load(folder, "cpu").evaluate(method="greedy")}

    both, alone, known = figures([*spaced, *new]), figures(new), figures(spaced)
    names = ["perplexity", "word_perplexity", "bleu", "distinct1", "distinct2"]
    names += ["references.distinct1", "references.distinct2"]
    assert list(both) == [*names, *(f"unseen.{name}" for name in names)]
    assert list(alone) == list(known) == names
    for name in names:
        assert both[f"unseen.{name}"].value == pytest.approx(alone[name].value, rel=1e-4)
    assert both["perplexity"].value < both["unseen.perplexity"].value
    assert both["bleu"].signature.endswith("|conversations:4|in training:2")
    assert both["unseen.bleu"].signature.endswith("|conversations:2, none of them in training")
    assert alone["bleu"].signature.endswith("|conversations:2|in training:0")
    assert known["bleu"].signature.endswith("|conversations:2|in training:2")


def test_a_conversation_is_known_by_its_words() -> None:
    assert digest(["a b", "c"]) == digest([" a  b", "c "])
    assert len({digest(turns) for turns in (["a b", "c"], ["a", "b c"], ["a b c"], ["c", "a b"])}) == 4


def test_a_list_that_cannot_be_read(trained: Make, tmp_path: Path) -> None:
    shutil.copytree(trained().folder, tmp_path / "run")
    (tmp_path / "run" / "conversations.json").write_text("{")
    with pytest.raises(RunError) as error:
        load(tmp_path / "run")
    assert str(error.value).startswith("the list of conversations cannot be read\n  got:    ")
    assert str(error.value).endswith("try:    copy the run again, or train it again")


def test_a_draft_may_have_seen_other_conversations(trained: Make, tmp_path: Path) -> None:
    shutil.copytree(trained().folder, tmp_path / "run")
    (tmp_path / "run" / "conversations.json").write_text("[]")
    draft = trained().draft(load(tmp_path / "run", "cpu"))
    assert trained().predict(["I am Ada ."], draft=draft, method="greedy")[0].text == "Hello !"


def test_validation_may_judge_by_perplexity(trained: Make, tmp_path: Path) -> None:
    recipe = read_recipe(trained().folder / "recipe.toml", [f"run={tmp_path / 'run'}", "train.best=perplexity"])
    steps = dataclasses.replace(recipe.train, max_steps=40, validate_every=20)
    train(dataclasses.replace(recipe, train=steps))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [row for row in rows if "bleu" in json.dumps(row)]
    assert len(found) == 2
    assert load(tmp_path / "run", "cpu").evaluate("val")[0].value < 20  # of the later one: less is better
