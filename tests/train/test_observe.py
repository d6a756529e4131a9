"""Attention observed while it is trained: the right numbers, and a training that does not notice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.config import read_section
from regard.data.batching import Planned, first_rows
from regard.errors import ConfigError, RegardError
from regard.look.collect import observe
from regard.look.measures import head_scores
from regard.ops import heads
from regard.ops.attention import attend
from regard.ops.call import Call
from regard.ops.heads import MEASURES
from regard.train.loop import Trainer
from regard.train.observe import OBSERVATIONS, ObserveConfig, Probe, _Look, read_observations
from regard.train.step import CapturedStep, Step
from regard.types import Batch, Sequences

Make = Callable[..., Trainer]
Same = Callable[[Path, Path], None]

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {}),
    "grouped": ("transformer", {"num_heads": 4, "num_kv_heads": 2, "encoder_layers": 2}),
    **{
        position: ("transformer", {"position": position})
        for position in ("rotary", "alibi", "t5", "shaw", "transformer-xl")
    },
    "convolutional": ("convolutional", {"decoder_layers": 2}),
    "additive": ("recurrent", {}),
    "multiplicative": ("recurrent", {"attention": "multiplicative", "cell": "lstm"}),
}
every_family = pytest.mark.parametrize(("family", "model"), FAMILIES.values(), ids=FAMILIES)


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / OBSERVATIONS).read_text().splitlines()]


def steps(run: Path) -> list[int]:
    return [line["step"] for line in lines(run)]


def probe_of(trainer: Trainer) -> Probe:
    trainer.observe = ObserveConfig(every=2)
    return trainer._make_probe()


# --- the numbers


@every_family
def test_the_numbers_are_those_of_a_trace(trainer_of: Make, tmp_path: Path, family: str, model: dict[str, Any]) -> None:
    """Names, order and every mean of every head, over real rows alone."""
    trainer = trainer_of(tmp_path, family, model=model, validate_every=100)
    probe = probe_of(trainer)
    batch = probe.batch
    assert batch.target is not None
    assert batch.source.lengths.min() < batch.source.ids.shape[1]  # there is padding on both sides
    assert batch.target.lengths.min() < batch.target.ids.shape[1]
    found = probe._look()
    lengths = {"source": batch.source.lengths, "target": batch.target.lengths - 1}
    trainer.model.eval()
    with torch.no_grad(), observe(trainer.model, lengths=lengths) as trace:
        trainer.task.loss(trainer.model, batch)
    assert list(found) == [view.name for view in trace]
    for view, means in zip(trace, found.values(), strict=True):
        scores = head_scores(view)
        wanted = [[math.nan if head[name] is None else head[name] for head in scores] for name in MEASURES]
        torch.testing.assert_close(means, torch.tensor(wanted), rtol=1e-5, atol=1e-6, equal_nan=True, msg=view.name)
        assert means.isnan().any(1).tolist() == [name == "previous" and view.kind == "cross" for name in MEASURES]


@every_family
def test_padding_counts_nowhere(trainer_of: Make, tmp_path: Path, family: str, model: dict[str, Any]) -> None:
    """Also not where both texts are padded to one length, so that it does not tell whose rows a layer has."""
    trainer = trainer_of(tmp_path, family, model=model)
    probe = probe_of(trainer)

    def wider(side: Sequences, more: int) -> Sequences:
        padded = torch.arange(side.ids.shape[1] + more) >= side.lengths[:, None]
        return Sequences(F.pad(side.ids, (0, more)).masked_fill(padded, 5), side.lengths)

    assert probe.batch.target is not None
    source, target = probe.batch.source, probe.batch.target
    source = replace(
        source, lengths=source.lengths - torch.arange(len(source.lengths)) % 3
    )  # no longer those of targets

    def look(batch: Batch) -> dict[str, Tensor]:
        return Probe(trainer.model, probe.run, batch, every=1, path=tmp_path, repeated=trainer.step.repeated)._look()

    wanted = look(replace(probe.batch, source=source))
    even = target.ids.shape[1] + 6 - 1 - source.ids.shape[1]
    for more in (4, even):
        batch = replace(probe.batch, source=wider(source, more), target=wider(target, 6))
        other = look(batch)
        for name, means in wanted.items():
            torch.testing.assert_close(other[name], means, rtol=1e-5, atol=1e-6, equal_nan=True, msg=name)


@pytest.mark.parametrize("family", ["transformer", "convolutional"])
def test_strips_give_the_same(trainer_of: Make, tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the matrix would be too large, some rows at a time."""
    probe = probe_of(trainer_of(tmp_path, family))
    wanted = probe._look()
    monkeypatch.setattr(heads, "STRIP", 700)
    for name, means in probe._look().items():
        torch.testing.assert_close(means, wanted[name], rtol=1e-6, atol=1e-6, equal_nan=True, msg=name)


def test_a_row_that_attends_nowhere_does_not_count() -> None:
    rows = heads.weight_rows(torch.tensor([[[[0.5, 0.5], [0.0, 0.0], [math.nan, math.nan]]]]))
    means = heads.head_means(rows[None], torch.ones(1, 3).bool(), own=False)[0, :, 0]
    torch.testing.assert_close(means, torch.tensor([math.log(2), 0.5, 0.5, math.nan, 0.5]), equal_nan=True)


def test_where_there_are_no_keys_no_row_attends() -> None:
    """As where a memory network reads a question without a story."""
    q, nothing = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 0, 8)
    for rows in (
        heads.weight_rows(torch.zeros(2, 3, 4, 0)),
        heads.call_rows(Call(q, nothing, nothing, None, (), 1.0, 0.0, None)),
    ):
        assert heads.head_means(rows[None], torch.ones(2, 4).bool(), own=False).isnan().all()


def test_bf16_rows_are_measured_in_float32(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "recurrent", precision="bf16")
    assert {means.dtype for means in probe_of(trainer)._look().values()} == {torch.float32}


def test_a_layer_that_runs_twice_is_two(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attend(x, x, x) + attend(x, x, x)

    batch = Batch(Sequences(torch.ones(2, 4).long(), torch.tensor([4, 3])))
    model = nn.Sequential(Twice())
    probe = Probe(model, lambda batch: model(torch.randn(2, 1, 4, 8)), batch, every=1, path=tmp_path, repeated=id)  # type: ignore[arg-type]
    assert list(probe._look()) == ["0", "0#2"]


def test_the_current_weights_are_observed_not_their_average(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, ema=0.9, observe={"every": 6})
    trainer.fit()
    found = read_observations(tmp_path / OBSERVATIONS)
    means = probe_of(trainer)._look()  # training leaves the weights of its last step
    wanted = torch.stack(list(means.values()))  # layers x measures x H
    for i, name in enumerate(MEASURES):
        torch.testing.assert_close(found[name][1], wanted[:, i], rtol=0, atol=1e-6, equal_nan=True)
        assert name == "previous" or not torch.allclose(found[name][0], found[name][1], atol=1e-4)


# --- the probe


def test_the_probe_is_the_first_rows(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    split, plan = trainer.val_split, trainer._plan(trainer.val_split, 0, shuffle=False)
    whole = split.collate(Planned(np.arange(12), (12, 16, 16)))
    assert whole.target is not None
    for number in (1, 5, 12, 100):
        batch = first_rows(plan, split.collate, number)
        rows = min(number, 12)
        assert batch.target is not None
        assert list(batch.rows) == list(range(rows))
        for side, wanted in ((batch.source, whole.source), (batch.target, whole.target)):
            assert torch.equal(side.lengths, wanted.lengths[:rows])
            assert torch.equal(side.ids, wanted.ids[:rows, : side.ids.shape[1]])
        widths = batch.source.ids.shape[1], batch.target.ids.shape[1] - 1
        longest = int(batch.source.lengths.max()), int(batch.target.lengths.max()) - 1
        assert widths[1] == longest[1]
        assert widths[0] == longest[0] + (longest[0] == longest[1])  # so that a width tells the side


def test_an_empty_validation_split_has_nothing_to_look_at() -> None:
    with pytest.raises(ConfigError, match="there is nothing to observe\n  got:    an empty validation split"):
        first_rows([], lambda planned: Batch(Sequences(torch.zeros(0, 0), torch.zeros(0))), 16)


def test_without_attention_it_says_so(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "recurrent", model={"attention": "none"}, observe={"every": 50})
    with pytest.raises(ConfigError) as error:
        trainer.fit()
    assert str(error.value) == (
        "there is no attention to observe\n"
        "  got:    observe.every = 50, and a model without attention\n"
        "  try:    observe.every=0, or a model that attends"
    )
    assert trainer.clock.step == 0
    trainer_of(tmp_path, "recurrent", model={"attention": "none"}).fit()


def test_one_row_an_example_is_no_token(tmp_path: Path) -> None:
    """As where a question reads as a whole: that its text is padded changes nothing."""

    class Asking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attend(x[:, :, :1], x, x)

    source = Sequences(torch.ones(2, 4).long(), torch.tensor([4, 3]))
    model, x = nn.ModuleDict({"hop": Asking()}), torch.randn(2, 1, 4, 8)
    for target in (torch.ones(2, 1).long(), torch.ones(2, 2).long()):  # as many labels, not a text
        batch = Batch(source, Sequences(target, torch.tensor([1, 1])))
        means = Probe(model, lambda _: model["hop"](x), batch, every=1, path=tmp_path, repeated=id)._look()["hop"]  # type: ignore[arg-type]
        weights = (x[:, :, :1] @ x.mT * 8**-0.5).softmax(-1)
        torch.testing.assert_close(means[1, 0], weights.amax(-1).mean())


def test_rows_of_neither_side_are_refused(tmp_path: Path) -> None:
    batch = Batch(
        Sequences(torch.ones(2, 4).long(), torch.tensor([4, 3])),
        Sequences(torch.ones(2, 7).long(), torch.tensor([7, 2])),
    )

    class Pooled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attend(x, x, x)

    model = nn.ModuleDict({"pool": Pooled()})
    run = lambda batch: model["pool"](torch.randn(2, 1, 2, 8))  # noqa: E731
    with pytest.raises(RegardError) as error:
        Probe(model, run, batch, every=1, path=tmp_path, repeated=lambda work: work).begin(0)
    assert str(error.value) == (
        "the rows of this attention are tokens of neither side, so that padding cannot be told\n"
        '  got:    2 rows of "pool"\n'
        "  wanted: 4 or 6\n"
        "  try:    observe.every=0"
    )


@pytest.mark.parametrize(
    ("table", "what", "got", "wanted"),
    [
        ({"every": -1}, "every is negative", "-1", "0 (never) or for example 50"),
        ({"examples": 0}, "examples is too small", "0", "1 or more"),
    ],
)
def test_values_that_cannot_be_meant(table: dict[str, Any], what: str, got: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_section(ObserveConfig, table, where="recipe.toml", name="observe")
    assert str(error.value) == f"{what}\n  got:    {got}\n  wanted: {wanted}\n  where:  [observe] in recipe.toml"


# --- training does not notice


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("transformer", {}),
        ("transformer", {"precision": "bf16", "accumulate": 2}),
        ("transformer", {"ema": 0.9, "task": {"consistency": 2.0}}),
        ("recurrent", {}),
        ("convolutional", {}),
    ],
    ids=["plain", "bf16", "ema", "recurrent", "convolutional"],
)
@pytest.mark.parametrize("capturing", [False, True], ids=["plainly", "as captured"])
def test_training_is_the_same_to_the_last_bit(
    trainer_of: Make,
    same: Same,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    words: dict[str, Any],
    capturing: bool,
) -> None:
    """Weights, losses, optimiser, validation and the state of the random numbers."""
    if capturing:  # which runs the work's Python once more than the work

        def repeated(step: Step, work: Callable[[], None]) -> Callable[[], None]:
            work()
            return work

        monkeypatch.setattr(Step, "repeated", repeated)
    trainer_of(tmp_path / "plain", family, **words).fit()
    trainer_of(tmp_path / "observed", family, observe={"every": 1, "examples": 5}, **words).fit()
    same(tmp_path / "plain", tmp_path / "observed")
    assert steps(tmp_path / "observed") == list(range(7))
    assert not (tmp_path / "plain" / OBSERVATIONS).exists()


def test_the_model_goes_on_training_also_after_an_error(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    probe, modes = probe_of(trainer), []

    def run(batch: Batch) -> None:
        modes.append((trainer.model.training, torch.is_grad_enabled()))
        raise ZeroDivisionError

    probe.run = run
    trainer.model.train()
    hooks = [len(module._forward_pre_hooks) for module in trainer.model.modules()]
    with pytest.raises(ZeroDivisionError):
        probe._look()
    assert modes == [(False, False)]
    assert trainer.model.training
    assert all(module.training for module in trainer.model.modules())
    assert torch.is_grad_enabled()
    assert hooks == [len(module._forward_pre_hooks) for module in trainer.model.modules()]


# --- nothing waits for the device


class NothingWaits(TorchDispatchMode):
    """Refuses what would make a host wait for a GPU, or could not be captured: values that decide, values that come
    from the host."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "lift_fresh", "is_nonzero")

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.removeprefix("aten::")
        assert not name.startswith(self.FORBIDDEN), name
        if name in ("index", "index_put_"):
            assert not any(index is not None and index.dtype == torch.bool for index in args[1]), name
        return function(*args, **(kwargs or {}))


@every_family
def test_a_look_can_be_captured(trainer_of: Make, tmp_path: Path, family: str, model: dict[str, Any]) -> None:
    """As far as a CPU can tell: no value is asked for, none is sent, and all is made on the model's device."""
    trainer = trainer_of(tmp_path, family, model=model)
    probe = probe_of(trainer)
    probe.begin(0)
    # the loss on a CPU chooses rows; on a GPU it does not
    probe.run = lambda batch: trainer.model.hidden(batch)  # type: ignore[operator]
    means = probe.means.clone()
    with torch.device("meta"), NothingWaits():
        probe._renew()
    torch.testing.assert_close(probe.means, means, rtol=0, atol=0, equal_nan=True)


def test_the_guard_against_waiting_works() -> None:
    with NothingWaits():
        for wait in (lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: torch.tensor([1]), lambda x: bool(x[0])):
            with pytest.raises(AssertionError):
                wait(torch.ones(3))


class Event:
    """The event of a stream whose work is done when we say so."""

    def __init__(self) -> None:
        self.done = self.waited = False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = self.waited = True


def test_numbers_are_written_when_they_have_arrived(
    trainer_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, events = trainer_of(tmp_path), list[Event]()
    probe = probe_of(trainer)

    def fetch(step: int) -> None:
        events.append(Event())
        probe.pending.append(_Look(step, probe.means.clone(), events[-1]))  # type: ignore[arg-type]

    monkeypatch.setattr(probe, "_fetch", fetch)
    probe.begin(0)
    for step in range(1, 6):
        probe.follow(step)
    assert not (tmp_path / OBSERVATIONS).exists()
    assert [look.step for look in probe.pending] == [0, 2, 4]
    events[1].done = True
    probe.follow(7)
    assert not (tmp_path / OBSERVATIONS).exists()  # what came before it has not arrived: steps stay in order
    events[0].done = True
    probe.follow(9)
    assert steps(tmp_path) == [0, 2]
    assert not any(event.waited for event in events)
    probe.write()
    assert steps(tmp_path) == [0, 2, 4]
    assert [event.waited for event in events] == [False, False, True]


def test_numbers_arrive_on_the_device_that_they_come_from(
    trainer_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which need not be the current one: an event of another device would be there too early."""
    probe, recorded = probe_of(trainer_of(tmp_path)), list[str]()

    class OnSecond(Tensor):
        device = torch.device("cuda", 1)

    class Recorded(Event):
        def record(self, stream: str = "of the current device") -> None:
            recorded.append(stream)

    probe.means = torch.zeros(5, 2).as_subclass(OnSecond)
    monkeypatch.setattr(torch, "empty_like", lambda x, **_: torch.empty(x.shape))
    monkeypatch.setattr(torch.cuda, "Event", Recorded)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"of {device}")
    probe._fetch(3)
    assert recorded == ["of cuda:1"]
    assert [look.step for look in probe.pending] == [3]


def test_the_work_is_captured_once_at_the_second_look(trainer_of: Make, tmp_path: Path) -> None:
    probe, made, runs = probe_of(trainer_of(tmp_path)), [], []
    probe.repeated = lambda work: made.append(work) or (lambda: runs.append(work))  # type: ignore[func-returns-value]
    probe.begin(3)  # a training that goes on: nothing is written, but libraries have set themselves up
    assert (made, list(probe.pending)) == ([], [])
    for step in (4, 5, 6):
        probe.follow(step)
    assert made == [probe._renew]
    assert runs == [probe._renew] * 2


def test_a_captured_step_replays() -> None:
    class Graph:
        replays = 0

        def replay(self) -> None:
            self.replays += 1

    step, graph = object.__new__(CapturedStep), Graph()
    step._capture = lambda work: (work(), graph)[1]  # type: ignore[method-assign, assignment, return-value]
    captured: list[int] = []
    again = step.repeated(lambda: captured.append(1))
    again()
    again()
    assert (captured, graph.replays) == ([1], 2)
