"""What the heads do while they are trained: the same few validation rows, looked at every so many updates.

The rows run through the model without dropout and without gradients, and each attention leaves a few numbers a head
in RUN/observe.jsonl. Training is not changed by it, not by a bit. On a GPU the whole look is a captured graph, and
its numbers are fetched behind the back of the training: nothing waits for the device.

Shapes: B rows of the probe, H heads, N queries, M keys.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import key
from regard.errors import ConfigError, RegardError, RunError, require, require_positive
from regard.ops.attention import observing
from regard.ops.call import Call, Scattered
from regard.ops.heads import MEASURES, call_rows, head_means, weight_rows
from regard.train.log import append
from regard.types import Batch

OBSERVATIONS = "observe.jsonl"  # in the run folder


@dataclass(frozen=True, kw_only=True)
class ObserveConfig:
    """The `[observe]` section: whether, and on how much, attention is observed while a model is trained."""

    every: int = key(0, "updates between two looks at what each head does, written to observe.jsonl; 0: never")
    examples: int = key(16, "how many rows of the validation split, from its first, are looked at")

    def __post_init__(self) -> None:
        require(self.every >= 0, "every is negative", got=self.every, wanted="0 (never) or for example 50")
        require_positive(self, "examples")


@dataclass(frozen=True, slots=True)
class _Look:
    """The numbers of one step, on their way to the host."""

    step: int
    means: Tensor  # measures x heads of all layers
    arrived: torch.cuda.Event | None  # None: they are there


class Probe:
    """Looks at a fixed batch while a model is trained, and writes what it saw.

    `run` takes the batch through the model; `repeated` makes of work that ran once what does it again (Step's).
    """

    def __init__(
        self,
        model: nn.Module,
        run: Callable[[Batch], object],
        batch: Batch,
        *,
        every: int,
        path: Path,
        repeated: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self.model, self.run, self.batch, self.every, self.path = model, run, batch, every, path
        self.real = _real_rows(batch)
        self.repeated = repeated
        self.again: Callable[[], None] | None = None
        self.means = torch.empty(0)  # where each look leaves its numbers
        self.layers: dict[str, int] = {}  # and how many heads each has
        self.pending: deque[_Look] = deque()

    def begin(self, step: int) -> None:
        """The first look, which shows what there is to see. Before the first update it is written, as step 0."""
        found = self._look()
        if not found:
            raise ConfigError(
                "there is no attention to observe",
                got=f"observe.every = {self.every}, and a model without attention",
                remedy="observe.every=0, or a model that attends",
            )
        self.layers = {name: means.shape[1] for name, means in found.items()}
        self.means = torch.cat(list(found.values()), dim=1)
        if step == 0:
            self._fetch(step)

    def follow(self, step: int) -> None:
        """After each update: looks where it is time to, and writes what has arrived since."""
        self._write_arrived()  # now the device is busy with the update, and does not wait for us either
        if step % self.every:
            return
        if self.again is None:
            self.again = self.repeated(self._renew)
        self.again()
        self._fetch(step)

    def write(self) -> None:
        """Writes all that was seen, and waits for it."""
        for look in self.pending:
            if look.arrived is not None:
                look.arrived.synchronize()
        self._write_arrived()

    def _renew(self) -> None:
        self.means.copy_(torch.cat(list(self._look().values()), dim=1))

    @torch.no_grad()
    def _look(self) -> dict[str, Tensor]:
        """The means of every layer by its name, each measures x H, in the order of the forward pass."""
        self.model.eval()
        try:
            with _following(self.model) as running:
                recorder = _Recorder(self.model, running, self.real)
                with observing(recorder):
                    self.run(self.batch)
        finally:
            self.model.train()
        return recorder.finish()

    def _fetch(self, step: int) -> None:
        if self.means.device.type != "cuda":
            return self.pending.append(_Look(step, self.means.clone(), None))
        host = torch.empty_like(self.means, device="cpu", pin_memory=True)
        host.copy_(self.means, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self.means.device))  # which need not be the current device
        return self.pending.append(_Look(step, host, arrived))

    def _write_arrived(self) -> None:
        while self.pending and (self.pending[0].arrived is None or self.pending[0].arrived.query()):
            look = self.pending.popleft()
            values = {name: self._by_layer(means) for name, means in zip(MEASURES, look.means.tolist(), strict=True)}
            append(self.path, {"step": look.step, "layers": list(self.layers), **values})

    def _by_layer(self, means: list[float]) -> list[list[float | None]]:
        """One measure of all heads, split by layer; None where it has no meaning, as JSON knows no nan."""
        plain = iter([round(mean, 6) if math.isfinite(mean) else None for mean in means])
        return [[next(plain) for _ in range(heads)] for heads in self.layers.values()]


class _Recorder:
    """Measures the rows of each attention as soon as it is seen, so that nothing larger is kept."""

    def __init__(self, model: nn.Module, running: Sequence[str], real: Mapping[str, Tensor]) -> None:
        self.running, self.real = running, real
        self.kinds = {name: getattr(module, "attends", None) for name, module in model.named_modules()}
        self.rows: dict[str, Tensor] = {}  # of each layer: measures x B x H x N
        self.keys: dict[str, int] = {}  # how many it has
        self.steps: dict[str, list[Tensor]] = {}  # weights of a layer that goes step by step

    def saw(self, call: Call, projection: Tensor | None, out: Tensor) -> None:
        if self.running:
            name = self._new_name()
            self.rows[name], self.keys[name] = call_rows(call), call.k.shape[2]

    def saw_weights(self, weights: Tensor | Scattered, values: Tensor, projection: Tensor | None, out: Tensor) -> None:
        """A layer that weighs by itself goes step by step: its rows are complete only in the end."""
        if self.running:
            weights = weights if isinstance(weights, Tensor) else weights.dense()
            self.keys[self.running[-1]] = weights.shape[3]
            self.steps.setdefault(self.running[-1], []).append(weights)

    def finish(self) -> dict[str, Tensor]:
        """The means of every layer, measures x H. Layers of one shape are averaged together: fewer, larger kernels."""
        self.rows |= {name: weight_rows(torch.cat(steps, dim=2)) for name, steps in self.steps.items()}
        alike: dict[tuple[torch.Size, str, bool], list[str]] = {}
        for name, num_keys in self.keys.items():
            shape = self.rows[name].shape
            # two texts may be of one length: the module says whether it reads its own
            own = shape[-1] == num_keys and self.kinds[name.partition("#")[0]] != "cross"
            alike.setdefault((shape, self._side(name, shape[-1]), own), []).append(name)
        means: dict[str, Tensor] = {}
        for (shape, side, own), names in alike.items():
            rows = torch.stack([self.rows[name] for name in names])
            real = self.real[side] if side else torch.ones(shape[1], 1, dtype=torch.bool, device=rows.device)
            means |= zip(names, head_means(rows, real, own=own), strict=True)
        return {name: means[name] for name in self.keys}

    def _new_name(self) -> str:
        """The path of the module that attends; a layer that one pass goes through twice is two layers."""
        name = self.running[-1]
        again = sum(known.partition("#")[0] == name for known in self.keys)
        return f"{name}#{again + 1}" if again else name

    def _side(self, name: str, rows: int) -> str:
        """Whose tokens the rows of a layer are; "" where an example has one row, which is no token."""
        decodes = "decoder" in name.split(".")
        if rows == 1 and not decodes:
            return ""
        for side in ("target", "source") if decodes else ("source", "target"):
            if side in self.real and self.real[side].shape[1] == rows:
                return side
        raise RegardError(
            "the rows of this attention are tokens of neither side, so that padding cannot be told",
            got=f'{rows} rows of "{name}"',
            wanted=" or ".join(str(real.shape[1]) for real in self.real.values()),
            remedy="observe.every=0",
        )


def read_observations(path: str | Path, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
    """What observe.jsonl holds: "steps" (S), and each measure as S x layers x heads, nan where it has no meaning.

    Layers stand in the order of the forward pass, or in that of `layers`, their names.

    >>> import tempfile
    >>> line = {"step": 0, "layers": ["encoder"], **{name: [[0.5, 0.25]] for name in MEASURES}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "observe.jsonl").write_text(json.dumps(line))
    ...     read_observations(Path(folder, "observe.jsonl"))["entropy"].tolist()
    [[[0.5, 0.25]]]
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        remedy = "train with observe.every=50"
        raise RunError("attention was not observed in this training", got=path, remedy=remedy) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError("the observations cannot be read", got=error, where=path) from None
    records = [_record(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    if not records:
        raise RunError("nothing has been observed yet", got="an empty file", where=path)
    for number, (before, record) in enumerate(itertools.pairwise(records), 2):
        if record["layers"] != records[0]["layers"] or _heads(record) != _heads(records[0]):
            raise _damaged("other layers than in the first line", f"{path}:{number}")
        if record["step"] <= before["step"]:
            raise _damaged(f"step {record['step']} after step {before['step']}", f"{path}:{number}")
    places = _places(records[0]["layers"], layers, path)
    found = {name: _stacked([record[name] for record in records])[:, places] for name in MEASURES}
    return {"steps": torch.tensor([record["step"] for record in records]), **found}


def _record(line: str, where: str) -> dict[str, Any]:
    """One line, seen to be whole."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _damaged(error, where) from None
    if not isinstance(record, dict) or record.keys() != {"step", "layers", *MEASURES}:
        raise _damaged(line[:80], where)
    names = record["layers"]
    if type(record["step"]) is not int or not isinstance(names, list) or not names:
        raise _damaged(line[:80], where)
    for measure in MEASURES:
        by_layer = record[measure]
        if not isinstance(by_layer, list) or len(by_layer) != len(names):
            raise _damaged(f'"{measure}" is not of {len(names)} layers', where)
        if not all(isinstance(heads, list) and all(map(_is_number, heads)) for heads in by_layer):
            raise _damaged(f'"{measure}" holds what is no number', where)
    if any([len(heads) for heads in record[measure]] != _heads(record) for measure in MEASURES):
        raise _damaged("measures of different numbers of heads", where)
    return record


def _heads(record: Mapping[str, Any]) -> list[int]:
    return [len(heads) for heads in record[MEASURES[0]]]


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _damaged(got: object, where: str) -> RunError:
    remedy = "take the line out; the rest can be read"
    return RunError("a line of the observations is damaged", got=got, where=where, remedy=remedy)


def _places(known: list[str], wanted: Sequence[str] | None, path: Path) -> list[int]:
    missing = [name for name in wanted or () if name not in known]
    if missing:
        raise RunError("a layer was not observed", got=missing[0], wanted=", ".join(known), where=path)
    return list(range(len(known))) if wanted is None else [known.index(name) for name in wanted]


def _stacked(steps: list[list[list[float | None]]]) -> Tensor:
    """S x layers x heads; layers of fewer heads are filled up with nan."""
    most = max(len(heads) for heads in steps[0])
    rows = [[[*heads, *[None] * (most - len(heads))] for heads in layers] for layers in steps]
    return torch.tensor([[[math.nan if x is None else x for x in heads] for heads in layers] for layers in rows])


def _real_rows(batch: Batch) -> dict[str, Tensor]:
    """Which queries are tokens, B x N: those of the text that is read, and of the one that is written from it."""
    sides = {"source": (batch.source.ids.shape[1], batch.source.lengths)}
    if batch.target is not None:
        sides["target"] = (batch.target.ids.shape[1] - 1, batch.target.lengths - 1)
    return {
        side: torch.arange(width, device=lengths.device) < lengths[:, None] for side, (width, lengths) in sides.items()
    }


@contextlib.contextmanager
def _following(model: nn.Module) -> Iterator[list[str]]:
    """Inside the block, the paths of the modules that run, the innermost last."""
    running: list[str] = []

    def begins(name: str, module: nn.Module, args: Any) -> None:
        running.append(name)

    def ends(module: nn.Module, args: Any, output: Any) -> None:
        running.pop()

    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(begins, name)).remove)
            stack.callback(module.register_forward_hook(ends, always_call=True).remove)
        yield running
