"""Language modelling: what is measured equals loops by hand, with windows, with memory and in one pass; what is written
equals the model's own choices, however long it gets."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard import models
from regard.cli.main import main
from regard.config import read_section
from regard.data.cache import cache_folder
from regard.data.config import DataConfig, resolve
from regard.data.tokenizers import EOS, TokenizerConfig
from regard.decode.config import DecodeConfig
from regard.errors import ConfigError, DataError
from regard.recipe import read_recipe
from regard.run import Run, train
from regard.tasks.language_modeling import Config, Task
from regard.types import Batch, Sequences

CPU = torch.device("cpu")
VERSE = "the cat sat\non the mat\n\nthe mat sat on the cat, hélas\n"
TEXT = VERSE * 4
FORMS: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 1, "model_dim": 16, "num_heads": 2, "ffn_dim": 24, "max_length": 64},
    "transformer_xl": {"layers": 2, "model_dim": 16, "num_heads": 2, "ffn_dim": 24, "memory": 400},
    "recurrent": {"cell": "lstm", "decoder_layers": 2, "embedding_dim": 8, "hidden_dim": 16},
    "convolutional": {"decoder_layers": 2, "embedding_dim": 8, "hidden_dim": 16},
}
REMEMBERING = [name for name in FORMS if name != "gpt"]


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own, and one thread: on a busy machine two wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(number)


def open_task(folder: Path, *, kind: str = "characters", data: dict[str, Any] | None = None, **task: Any) -> Task:
    if not (folder / "train.txt").exists():
        (folder / "train.txt").write_text(TEXT, encoding="utf-8")
    config = DataConfig(**{"train": ("train.txt",), "val": ("train.txt",), "test": ("train.txt",), **(data or {})})
    return Task.open(
        Config(**{"context": 16, **task}),
        config,
        TokenizerConfig(kind=kind),  # type: ignore[arg-type]
        paths=lambda split: resolve(config, folder, [split]).get(split, ()),
        folder=folder,
    )


def model_of(task: Task, name: str, **form: Any) -> Any:
    torch.manual_seed(3)
    table = models.with_preset(name, {**FORMS[name], **form})
    config = read_section(models.family(name).Config, table, where="this test")
    model = models.build(name, config, task.sizes, "causal").eval()
    with torch.no_grad():  # what is likely depends on what was read
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return task.dress(model)


@torch.no_grad()
def logits_of(model: Any, ids: list[int] | Tensor) -> Tensor:
    """What the model says after each of these tokens, read in one go: N x V."""
    row = torch.as_tensor(ids).long()[None]
    found: Tensor = model.head(model.hidden(Batch(Sequences(row, torch.tensor([row.shape[1]])))))[0]
    return found


def ids_of(task: Task, split: str = "test") -> Tensor:
    return torch.from_numpy(task.text(split, cache_folder()).lines.ids.astype("int64"))


def scores_of(task: Task, model: Any, **decode: Any) -> dict[str, float]:
    found = task.evaluate(model, "test", DecodeConfig(**decode), device=CPU)
    return {score.name: score.value for score in found.scores}


# --- evaluation -------------------------------------------------------------------------------------------------------


def measures(total: float, count: int, *, words: int, characters: int, num_bytes: int) -> dict[str, float]:
    return {
        "loss": total / count,
        "perplexity": math.exp(total / count),
        "word_perplexity": math.exp(total / words),
        "bits_per_character": total / math.log(2) / characters,
        "bits_per_byte": total / math.log(2) / num_bytes,
    }


@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize(("kind", "line_ends"), [("characters", "text"), ("words", "token")])
def test_a_model_with_memory_is_measured_as_in_one_pass(tmp_path: Path, name: str, kind: str, line_ends: str) -> None:
    task = open_task(tmp_path, kind=kind, line_ends=line_ends)
    model = model_of(task, name)
    ids = ids_of(task)
    total = F.cross_entropy(logits_of(model, ids[:-1]).double(), ids[1:], reduction="sum").item()
    words = len(TEXT.split()) + (TEXT.count("\n") if line_ends == "token" else 0)
    wanted = measures(total, len(ids) - 1, words=words, characters=len(TEXT), num_bytes=len(TEXT.encode()))
    assert scores_of(task, model) == pytest.approx(wanted, rel=1e-6)
    assert scores_of(task, model) == pytest.approx(wanted, rel=1e-6)  # what is remembered of the first is forgotten
    (first, *_) = task.evaluate(model, "test", DecodeConfig(), device=CPU).scores
    tokens = f"tokens:{len(ids) - 1}|line-ends:{line_ends}"
    assert first.signature == f"context:16|from beginning to end|{tokens}"
    if kind == "words":
        assert len(ids) == words


@pytest.mark.parametrize("stride", [0, 1, 5, 16])
@pytest.mark.parametrize("name", ["gpt", "transformer_xl"])
def test_a_model_without_memory_is_measured_by_windows(tmp_path: Path, stride: int, name: str) -> None:
    """Each token by the one window that counts it: the first that reaches it."""
    task = open_task(tmp_path, stride=stride)
    model = model_of(task, name, **({"memory": 0} if name == "transformer_xl" else {}))
    assert not task.remembers
    ids, step, total = ids_of(task), stride or 16, 0.0
    for place in range(1, len(ids)):
        start = step * max(0, -(-(place - 16) // step))  # of the window that is the first to predict it
        seen = ids[start:place]
        assert 1 <= len(seen) <= 16
        total += F.cross_entropy(logits_of(model, seen)[-1].double(), ids[place]).item()
    found = scores_of(task, model, batch_tokens=100)
    assert found["loss"] == pytest.approx(total / (len(ids) - 1), rel=1e-6)
    (first, *_) = task.evaluate(model, "test", DecodeConfig(), device=CPU).scores
    assert first.signature == f"context:16|stride:{step}|tokens:{len(ids) - 1}|line-ends:text"


def test_a_smaller_stride_shows_every_token_more(tmp_path: Path) -> None:
    """And none less: a model that is right only when it sees a whole window gains with each smaller stride."""
    task = open_task(tmp_path)

    class Knowing(torch.nn.Module):
        """Is sure of what it says once it has seen `context` tokens; before, all are as likely."""

        def hidden(self, batch: Batch) -> Tensor:
            assert batch.target is not None
            right = F.one_hot(batch.target.ids.clamp(min=0), task.sizes.target).float() * 100
            seen = torch.arange(1, batch.source.ids.shape[1] + 1)[None, :, None] >= 12
            return right * seen

        class head:
            loss = staticmethod(lambda x, labels, _: F.cross_entropy(x, labels, reduction="sum", ignore_index=-100))

    losses = []
    for stride in (16, 8, 5, 4, 1):
        other = Task(Config(context=16, stride=stride), task.data, paths=task.paths, tokenizer=task.tokenizer)
        losses.append(scores_of(other, Knowing())["loss"] / math.log(task.sizes.target))
    number = len(TEXT) - 1
    blind = [sum(1 for place in range(number) if place < 11 or unseen(place, stride)) for stride in (16, 8, 5, 4, 1)]
    assert losses == pytest.approx([n / number for n in blind], abs=1e-5)
    assert losses == sorted(losses, reverse=True)


def unseen(place: int, stride: int) -> bool:
    """Whether the window that counts this label has shown less than 12 tokens of it."""
    start = stride * max(0, -(-(place - 15) // stride))
    return place - start + 1 < 12


def test_progress_is_told_to_the_last_batch(tmp_path: Path) -> None:
    task, said = open_task(tmp_path), []
    model = model_of(task, "gpt")
    config = DecodeConfig(batch_tokens=64)
    found = task.evaluate(model, "test", config, device=CPU, on_batch=lambda *words: said.append(words))
    number = -(-(len(TEXT) - 1) // 64)
    assert said == [(n + 1, number) for n in range(number)]
    assert found.examples == len(TEXT) - 1


# --- the parts of a text ----------------------------------------------------------------------------------------------


def test_validation_may_be_the_last_share_of_the_training_text(tmp_path: Path) -> None:
    task = open_task(tmp_path, data={"val": (), "val_share": 0.3})
    whole, cut = task.tokenizer.decode(ids_of(task)), int(len(TEXT) * 0.7)
    parts = [task.tokenizer.decode(ids_of(task, split)) for split in ("train", "val")]
    assert (whole, parts) == (TEXT, [TEXT[:cut], TEXT[cut:]])


def test_the_tokenizer_knows_only_the_training_part(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("aabbaabb\nzzz\n")
    task = open_task(tmp_path, data={"val": (), "val_share": 0.3})
    assert task.tokenizer.tokens(range(4, task.sizes.target)) == ["a", "b", "\n"]
    (tmp_path / "train.txt").unlink()
    assert open_task(tmp_path).tokenizer.to_json() == task.tokenizer.to_json()  # it is kept


@pytest.mark.parametrize("kind", ["bpe", "words", "unigram", "wordpiece"])
def test_a_tokenizer_that_drops_line_ends_needs_them_as_tokens(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_task(tmp_path, kind=kind)
    assert str(error.value) == (
        "the tokenizer drops the ends of lines\n"
        f'  got:    tokenizer.kind = "{kind}" with task.line_ends = "text"\n'
        "  wanted: characters or byte-bpe, which keep them\n"
        '  try:    task.line_ends = "token"'
    )
    assert not (tmp_path / "tokenizer.json").exists()
    task = open_task(tmp_path, kind=kind, line_ends="token")
    assert ids_of(task).tolist().count(EOS) == TEXT.count("\n")


def test_splits_that_are_not_there(tmp_path: Path) -> None:
    task, remedy = open_task(tmp_path, data={"test": ()}), "set data.test, or evaluate another: --split val"
    for split, text in (
        ("test", "the recipe names no test split\n  got:    data.test is empty\n  try:    " + remedy),
        ("tset", "no such split\n  got:    tset\n  wanted: train, val, test"),
    ):
        with pytest.raises(DataError) as error:
            task.text(split, tmp_path)
        assert str(error.value) == text


def test_examples_are_pieces_of_the_text(tmp_path: Path) -> None:
    task = open_task(tmp_path)
    found = task.examples("test")
    assert len(found) == len(TEXT) // 16
    assert "".join(example.source + example.targets[0] for example in found) == TEXT[: 16 * len(found)]
    assert all(len(example.source) == 8 for example in found)
    short = open_task(tmp_path, context=1000).examples("test")
    assert [(example.source + example.targets[0]) for example in short] == [TEXT]


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_row_that_goes_on_does_so_with_what_it_read(tmp_path: Path, name: str) -> None:
    """The losses of an epoch's batches are those of each row's whole part of the text; and again in the next epoch."""
    task = open_task(tmp_path)
    model = model_of(task, name, dropout=0.0, **({"activation_dropout": 0.0} if name == "transformer_xl" else {}))
    model.train()
    windows, ids = task.split("train", tmp_path / "cache"), ids_of(task, "train")
    plan = windows.plan(batch_tokens=48, multiple=8, seed=1, epoch=0, shuffle=True)
    length = (len(ids) - 1) // 3
    wanted = [
        F.cross_entropy(
            logits_of(model, ids[row * length : (row + 1) * length]), ids[row * length + 1 :][:length], reduction="none"
        )
        for row in range(3)
    ]
    for _ in range(2):
        place = 0
        for planned in plan:
            total, count = task.loss(model, windows.collate(planned))
            total.backward()
            width = planned.shape[1]
            right = sum(row[place : place + width].sum().item() for row in wanted)
            assert int(count) == 3 * width
            assert total.item() == pytest.approx(right, rel=1e-5)
            place += width
        assert place == length


def test_what_is_remembered_in_training_and_in_validation_is_apart(tmp_path: Path) -> None:
    task = open_task(tmp_path)
    model = model_of(task, "recurrent", dropout=0.0).train()
    windows = task.split("train", tmp_path / "cache")
    first, second, *_ = (windows.collate(p) for p in windows.plan(**PLAN, shuffle=True))
    task.loss(model, first)
    held = {name: tensor.clone() for name, tensor in task.tensors().items()}
    scores_of(task, model.eval())
    one_row = windows.plan(**PLAN | {"batch_tokens": 16}, shuffle=False)[0]
    task.loss(model, windows.collate(one_row))  # as many rows as before, but no longer inside inference mode
    assert all(torch.equal(tensor, held[name]) for name, tensor in task.tensors().items())
    assert held["position"].tolist() == [16, 16, 16]
    wanted = task.loss(model.train(), second)[0].item()
    again = Task(task.config, task.data, paths=task.paths, tokenizer=task.tokenizer)
    again.dress(model)
    again.restore(held)
    assert again.loss(model, second)[0].item() == wanted
    assert again.loss(model, first)[0].item() != wanted


PLAN: dict[str, Any] = {"batch_tokens": 48, "multiple": 8, "seed": 1, "epoch": 0}


def test_other_batches_after_a_stop_begin_with_nothing_in_memory(tmp_path: Path) -> None:
    task = open_task(tmp_path)
    model = model_of(task, "recurrent", dropout=0.0).train()
    windows = task.split("train", tmp_path / "cache")
    task.restore({name: torch.ones(9, 16) for name in ("position", "0.h", "0.c", "1.h", "1.c")})
    second = windows.collate(windows.plan(**PLAN, shuffle=True)[1])
    fresh = windows.collate(windows.plan(**PLAN, shuffle=True)[1])
    found = task.loss(model, second)[0].item()
    assert found == pytest.approx(task.loss(model.eval(), fresh)[0].item())


def test_smoothing_is_for_training_alone(tmp_path: Path) -> None:
    task = open_task(tmp_path, label_smoothing=0.2)
    model = model_of(task, "gpt", dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0)
    batch = task.split("train", tmp_path / "cache").first(2)
    labels = batch.target.ids.flatten()  # type: ignore[union-attr]
    logits = model.head(model.hidden(batch)).flatten(0, 1)
    for smoothing in (0.2, 0.0):
        wanted = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        found, count = task.loss(model, batch, smoothing=None if smoothing else 0.0)
        torch.testing.assert_close(found, wanted)
        assert count == 32


# --- predictions ------------------------------------------------------------------------------------------------------


def greedy(model: Any, ids: list[int], number: int, window: Callable[[list[int]], list[int]]) -> list[int]:
    """The likeliest next token, again and again, given what `window` lets the model read."""
    ids, start = list(ids), len(ids)
    while len(ids) - start < number:
        scores = logits_of(model, window(ids))[-1].clone()
        scores[0] = -math.inf  # padding is never written
        token = int(scores.argmax())
        if token == EOS:
            break
        ids.append(token)
    return ids[start:]


def halves(context: int, prompt: int) -> Callable[[list[int]], list[int]]:
    """What is read of a text that outgrows the context: from its last half on, whenever there is no more room."""
    begin, full = 0, prompt

    def window(ids: list[int]) -> list[int]:
        nonlocal begin, full
        if len(ids) == full and len(ids) - begin >= context:  # at the start of a reading
            begin = len(ids) - context // 2
        if len(ids) - begin > context:
            begin = len(ids) - context // 2
        return ids[begin:]

    return window


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("prompt", ["the cat", "", "the mat sat on the cat, on the mat"])
def test_outputs_go_on_beyond_the_context(tmp_path: Path, name: str, prompt: str) -> None:
    task = open_task(tmp_path)
    model = model_of(task, name)
    ids = task.prompt(prompt)
    assert task.tokenizer.decode(ids) == (prompt or "\n")
    window = halves(16, len(ids)) if name == "gpt" else lambda ids: ids
    wanted = greedy(model, ids, 60, window)
    (found,) = task.predict(model, [prompt], DecodeConfig(method="greedy", max_length=60), device=CPU)
    assert list(found.ids[0]) == wanted
    assert found.text == task.tokenizer.decode(wanted)
    assert found.tokens[0] == tuple(task.tokenizer.tokens(wanted))


def test_a_text_goes_on_the_same_whoever_its_neighbours_are(tmp_path: Path) -> None:
    """Also those that do not fit, and drawn ones; the place in the input decides what is drawn."""
    task, said = open_task(tmp_path), []
    model = model_of(task, "gpt")
    prompts = ["the", "the cat sat on the mat", "on", "", "the mat sat on the cat", "mat"]
    config = DecodeConfig(method="sample", max_length=9)
    fits = [task._fits(task.prompt(prompt), config) for prompt in prompts]
    assert fits == [True, False, True, True, False, True]
    together = task.predict(model, prompts, config, device=CPU, on_batch=lambda *words: said.append(words))
    for place, prompt in enumerate(prompts):
        (alone,) = task.predict(model, [prompt], config, device=CPU, first_index=place)
        assert alone.ids == together[place].ids
        assert alone.scores == pytest.approx(together[place].scores, rel=1e-5)
    assert len({answer.text for answer in together}) == 6
    longer = task.predict(model, prompts, DecodeConfig(method="sample", max_length=40), device=CPU)
    assert all(answer.text.startswith(shorter.text) for answer, shorter in zip(longer, together, strict=True))
    assert [done for done, _ in said] == sorted({done for done, _ in said})
    assert said[-1] == (6, 6)


def test_an_output_ends_where_rules_leave_nothing_else(tmp_path: Path) -> None:
    """Each token once a reading: there are fewer than the output should have at least."""
    task = open_task(tmp_path, context=32)
    config = DecodeConfig(method="greedy", max_length=60, min_length=50, no_repeat_ngram=1)
    (found,) = task.predict(model_of(task, "gpt"), ["the cat sat"], config, device=CPU)
    assert 0 < len(found.ids[0]) < 50


def test_scores_and_lengths_of_long_outputs(tmp_path: Path) -> None:
    """A score is the mean log-probability of what was written, its end counted; min_length is of all of it."""
    task = open_task(tmp_path, line_ends="token")
    model = model_of(task, "gpt")
    config = DecodeConfig(method="sample", max_length=80, seed=5)
    free = task.predict(model, ["the"] * 30, config, device=CPU)
    assert len({len(answer.ids[0]) for answer in free}) > 3
    for shortest in (10, 40):
        at_least = DecodeConfig(method="sample", max_length=80, min_length=shortest, seed=5)
        lengths = [len(answer.ids[0]) for answer in task.predict(model, ["the"] * 30, at_least, device=CPU)]
        assert all(length >= shortest for length in lengths)
        # the first reading has room for 13 tokens; what was long enough may end early in the second
        assert any(13 <= length < 21 for length in lengths) is (shortest == 10)
    prompt = task.prompt("the")
    for answer in free:
        ids = [*prompt, *answer.ids[0]]
        if len(ids) <= 15:  # in one reading, which ended by itself
            every = logits_of(model, ids).log_softmax(-1)
            total = sum(every[n - 1, token].item() for n, token in enumerate([*ids, EOS]) if n >= len(prompt))
            assert answer.scores[0] == pytest.approx(total / (len(answer.ids[0]) + 1), abs=1e-4)


def test_several_outputs_and_beams_fit_or_say_so(tmp_path: Path) -> None:
    task = open_task(tmp_path)
    model = model_of(task, "gpt")
    (found,) = task.predict(model, ["the"], DecodeConfig(beam=3, n_best=3, max_length=14), device=CPU)
    assert len(set(found.texts)) == 3
    assert list(found.scores) == sorted(found.scores, reverse=True)
    with pytest.raises(ConfigError) as error:
        task.predict(model, ["t", "the"], DecodeConfig(beam=3, max_length=15), device=CPU)
    assert str(error.value) == (
        "several outputs, or beams, must fit into what the model reads at a time\n"
        "  got:    max_length = 15, and a text of 3 tokens\n"
        "  wanted: at most 17 together (task.context + 1)\n"
        '  try:    method = "sample" or "greedy" with n_best = 1 goes on beyond it'
    )
    for name in REMEMBERING:
        (found,) = task.predict(model_of(task, name), ["the"], DecodeConfig(beam=2, max_length=30), device=CPU)
        assert len(found.ids[0]) <= 30


def test_a_prompt_stands_after_the_end_of_a_line(tmp_path: Path) -> None:
    task = open_task(tmp_path, kind="words", line_ends="token")
    model = model_of(task, "recurrent")
    assert task.prompt("the cat") == [EOS, *task.tokenizer.encode_batch(["the cat"])[0]]
    assert task.prompt("") == [EOS]
    config = DecodeConfig(method="greedy", max_length=6, min_length=5)
    found = task.predict(model, ["", "the cat", "the"], config, device=CPU)
    assert [answer.text for answer in found] == [
        answer.text for prompt in ("", "the cat", "the") for answer in task.predict(model, [prompt], config, device=CPU)
    ]
    assert found[1].text.startswith(" ")  # it goes on in the same line
    assert len(found[0].ids[0]) >= 5
    assert task.predict(model, [], config, device=CPU) == []


def test_a_text_and_how_it_goes_on_as_one_row(tmp_path: Path) -> None:
    task = open_task(tmp_path)
    model = model_of(task, "recurrent")
    batch, axes = task.pair("the c", "at")
    assert batch.source.ids.tolist() == [task.prompt("the ca")]
    assert batch.target is not None
    assert batch.target.ids.tolist() == [[-100] * 4 + task.prompt("at")]
    assert axes["source"].tokens == (*"the▁ca",)
    assert axes["target"].tokens == (*"he▁cat",)
    log_probs = task.log_probs(model, batch)
    every = logits_of(model, task.prompt("the ca")).log_softmax(-1)
    wanted = [every[place, token].item() for place, token in zip((4, 5), task.prompt("at"), strict=True)]
    assert log_probs[0].tolist() == pytest.approx([0.0] * 4 + wanted, abs=1e-5)
    (found,) = task.predict(model, ["the c"], DecodeConfig(method="greedy", max_length=5), device=CPU)
    batch, _ = task.pair("the c", found.ids[0])
    assert task.log_probs(model, batch).sum().item() / 5 == pytest.approx(found.scores[0], abs=1e-4)


def test_of_how_a_text_goes_on_as_much_is_looked_at_as_is_read_at_a_time(tmp_path: Path) -> None:
    task = open_task(tmp_path)
    task.remembers = False
    batch, _ = task.pair("the c", [5] * 50)
    assert batch.source.ids.shape[1] == task.config.context
    task.remembers = True
    assert task.pair("the c", [5] * 50)[0].source.ids.shape[1] == 5 + 50 - 1


# --- the section ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"context": 1}, "context is too short\n  got:    1\n  wanted: 2 or more"),
        ({"context": 8, "stride": 9}, "stride is out of range\n  got:    9\n  wanted: 0 to 8"),
        ({"stride": -1}, "stride is out of range\n  got:    -1\n  wanted: 0 to 256"),
        ({"label_smoothing": 1.0}, "label_smoothing is a share\n  got:    1.0\n  wanted: 0 <= x < 1"),
    ],
)
def test_a_section_that_cannot_be_meant(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_section(Config, table, where="recipe.toml", name="task")
    assert str(error.value) == f"{text}\n  where:  [task] in recipe.toml"


# --- the command line -------------------------------------------------------------------------------------------------

RECIPE = """
[task]
name = "language-modeling"
context = 16

[data]
train = ["train.txt"]
val = ["train.txt"]
test = ["train.txt"]

[tokenizer]
kind = "characters"

[model]
family = "{family}"
dropout = 0.0
{sizes}

[train]
device = "cpu"
max_steps = {steps}
batch_tokens = 64
learning_rate = 1e-2
schedule = "cosine"
warmup_steps = 10
validate_every = 30
log_every = 20

[decode]
method = "greedy"
max_length = 40
"""
SIZES = {
    "gpt": "layers = 2\nmodel_dim = 32\nnum_heads = 2\nffn_dim = 64\nmax_length = 16",
    "transformer_xl": "layers = 2\nmodel_dim = 32\nnum_heads = 2\nffn_dim = 64\nmemory = 16\nnorm_first = true",
    "recurrent": 'cell = "lstm"\nembedding_dim = 32\nhidden_dim = 48',
    "convolutional": "embedding_dim = 32\nhidden_dim = 32\nkernel = 4",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The run of a family that learned the verse by heart; each is trained once."""
    folder = tmp_path_factory.mktemp("verse")
    (folder / "train.txt").write_text(TEXT, encoding="utf-8")
    runs: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in runs:
            path = folder / f"{name}.toml"
            path.write_text(RECIPE.format(family=name, sizes=SIZES[name], steps=60))
            runs[name] = train(read_recipe(path, [f"run={folder / name}"]))
        return runs[name]

    return get


def regard(*words: object, stdin: str = "") -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    assert not ended.value.code


@pytest.mark.parametrize("name", SIZES)
def test_a_verse_is_learned_and_comes_back_through_the_command_line(
    trained: Callable[[str], Run], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(name)
    capsys.readouterr()
    regard("predict", run.folder, "--device", "cpu", "--format", "jsonl", stdin="the cat sat\n")
    record = json.loads(capsys.readouterr().out)
    ids = run.task.prompt("the cat sat")
    wanted = greedy(run.model, ids, 40, halves(16, len(ids)) if name == "gpt" else lambda ids: ids)
    assert record["target"] == run.task.tokenizer.decode(wanted)
    regard("evaluate", run.folder, "--device", "cpu")
    said = capsys.readouterr().out
    report = json.loads((run.folder / "report.json").read_text())["test"]
    assert report["metrics"]["perplexity"] < 4
    assert all(f"{metric}: " in said for metric in report["metrics"])
    if name in ("recurrent", "convolutional"):  # as in one pass over the whole text
        ids = ids_of(run.task)
        loss = F.cross_entropy(logits_of(run.model, ids[:-1]), ids[1:]).item()
        assert report["metrics"]["loss"] == pytest.approx(loss, rel=1e-4)
