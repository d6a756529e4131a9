"""The training loop: batches in, updates, validation, checkpoints; it goes on where it was stopped."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.data.batching import Planned, prefetch
from regard.decode.config import DecodeConfig
from regard.errors import ConfigError, RunError
from regard.tasks.metrics import METRICS, Score
from regard.train import checkpoint
from regard.train.config import TrainConfig
from regard.train.optim import learning_rate, make_optimizer, set_learning_rate
from regard.train.progress import Progress, duration, say
from regard.train.step import CapturedStep, Step, precision
from regard.types import Batch, Example, Prediction


class Split(Protocol):
    """A split of a task's data, as batches."""

    def plan(self, *, batch_tokens: int, multiple: int, seed: int, epoch: int, shuffle: bool) -> list[Planned]: ...

    def collate(self, planned: Planned) -> Batch: ...

    def padding(self, plan: list[Planned]) -> float: ...

    def describe(self) -> str: ...


class Task(Protocol):
    """What the loop asks of a task."""

    def split(self, name: str, cache: Path) -> Split: ...

    def examples(self, name: str) -> list[Example]: ...

    def loss(self, model: Any, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]: ...

    def predict(
        self, model: Any, sources: Sequence[str], config: DecodeConfig, *, device: torch.device
    ) -> list[Prediction]: ...

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Score]: ...


@dataclass
class Clock:
    """Where training stands; with the seed it says which batch comes next."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    without_better: int = 0
    finished: bool = False


class Trainer:
    """Trains a model on a task, in a run folder."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        config: TrainConfig,
        decode: DecodeConfig,
        folder: Path,
        cache: Path,
        device: torch.device,
    ) -> None:
        self.task, self.model, self.config, self.folder, self.device = task, model.to(device), config, folder, device
        self.greedy = DecodeConfig(method="greedy", max_length=decode.max_length, max_ratio=decode.max_ratio)
        self.bf16 = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
        self.train_split, self.val_split = task.split("train", cache), task.split("val", cache)
        self.optimizer = make_optimizer(self.model, config, device)
        kind = CapturedStep if device.type == "cuda" and config.capture else Step
        self.step = kind(
            self.model,
            lambda batch: task.loss(self.model, batch),
            self.optimizer,
            clip=config.clip,
            bf16=self.bf16,
            ema=config.ema,
        )
        self.clock = Clock()
        self.checkpoints = folder / "checkpoints"
        self.log = MetricsLog(folder, tensorboard=config.tensorboard)
        self.stop_requested = False

    def fit(self) -> None:
        """Trains to the end, from wherever the run folder stands."""
        self._check_best()
        self._resume()
        if self.clock.finished and self.clock.step >= self.config.max_steps:
            return say(f"{self.folder}: already trained, {self.clock.step:,} steps")
        self.clock.finished = False
        say(f"train: {self.train_split.describe()}")
        say(f"val:   {self.val_split.describe()}")
        number = sum(tensor.numel() for tensor in self.model.parameters())
        say(f"model: {number:,} parameters on {self.device}, {'bf16' if self.bf16 else 'fp32'}")
        with self._stopping(), self.step.device_stream():
            self._loop()
        return None

    def _loop(self) -> None:
        config, clock = self.config, self.clock
        self.model.train()
        started, tokens, since = time.monotonic() - clock.seconds, 0, time.monotonic()
        with Progress("step", config.max_steps, done=clock.step) as progress:
            for batches in self._updates():
                set_learning_rate(self.optimizer, learning_rate(clock.step + 1, config))
                for batch in batches:
                    self.step.add(batch)
                    tokens += batch.num_tokens
                    clock.tokens += batch.num_tokens
                self.step.update()
                clock.step += 1
                clock.seconds = time.monotonic() - started
                last = clock.step >= config.max_steps
                if clock.step % config.log_every == 0 or last:
                    rate = tokens / (time.monotonic() - since)
                    self._report(progress, rate)
                    tokens, since = 0, time.monotonic()
                pause = time.monotonic()
                if clock.step % config.validate_every == 0 or last:
                    self._validate(progress)
                stop = last or self.stop_requested or (config.patience and clock.without_better >= config.patience)
                if clock.step % config.checkpoint_every == 0 or stop:
                    self._save()
                since += time.monotonic() - pause  # rates are of training alone
                if stop:
                    break
        if self.stop_requested:
            say(f"stopped at step {clock.step:,}, all of it saved; the same command goes on from here")
            raise KeyboardInterrupt
        self._finish()

    def _updates(self) -> Iterator[list[Batch]]:
        """The batches of each update, for ever; the clock always says what comes after those given out."""
        config, clock = self.config, self.clock
        while True:
            plan = self._plan(self.train_split, clock.epoch, shuffle=True)
            made = prefetch(self._collate(planned) for planned in plan[clock.batch :])
            group: list[Batch] = []
            for batch in made:
                clock.batch += 1
                group.append(batch.to(self.device))
                if len(group) == config.accumulate:
                    yield group
                    group = []
            clock.epoch, clock.batch = clock.epoch + 1, 0
            if group:  # the end of an epoch may be a smaller update; it is divided by its own tokens
                yield group

    def _collate(self, planned: Planned) -> Batch:
        batch = self.train_split.collate(planned)
        return batch.pin() if self.device.type == "cuda" else batch

    def _plan(self, split: Split, epoch: int, *, shuffle: bool) -> list[Planned]:
        config = self.config
        plan = split.plan(
            batch_tokens=config.batch_tokens, multiple=config.bucket, seed=config.seed, epoch=epoch, shuffle=shuffle
        )
        if shuffle and epoch == 0 and self.clock.batch == 0:
            shapes = len({planned.shape for planned in plan})
            say(f"batches: {len(plan):,} an epoch, {shapes} shapes, {split.padding(plan):.1%} padding")
        return plan

    def _report(self, progress: Progress, rate: float) -> None:
        clock = self.clock
        loss, norm = self.step.read()
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise RunError(
                "the loss is no longer a number",
                got=f"loss {loss}, gradient norm {norm} at step {clock.step:,}",
                where=self.folder,
                remedy="a lower train.learning_rate, more train.warmup_steps, or precision = fp32; "
                "checkpoints before this step are whole",
            )
        current = learning_rate(clock.step, self.config)
        self.log.write(
            clock.step, loss=loss, learning_rate=current, gradient_norm=norm, tokens_per_second=rate, epoch=clock.epoch
        )
        progress.update(clock.step, f"loss {loss:.3f}  lr {current:.2e}  {rate:,.0f} tokens/s  epoch {clock.epoch + 1}")

    def _validate(self, progress: Progress) -> None:
        config, clock = self.config, self.clock
        with self.step.averaged():
            values = self._measure()
            self.log.write(clock.step, **{f"val_{name}": value for name, value in values.items()})
            better = self._better(values[config.best])
            if better:
                clock.best, clock.best_step, clock.without_better = values[config.best], clock.step, 0
                checkpoint.save_weights(self.folder / checkpoint.MODEL, checkpoint.weights(self.model))
            else:
                clock.without_better += 1
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        progress.say(f"step {clock.step:,}: validation {shown}{'  (best)' if better else ''}")

    @torch.inference_mode()
    def _measure(self) -> dict[str, float]:
        """Loss a token without smoothing, perplexity, and the task's metrics where validation judges by one."""
        self.model.eval()
        total, count = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for planned in self._plan(self.val_split, 0, shuffle=False):
            with precision(self.device, self.bf16):
                loss, tokens = self.task.loss(
                    self.model, self.val_split.collate(planned).to(self.device), smoothing=0.0
                )
            total, count = total + loss, count + tokens
        mean = (total / count).item()
        values = {"loss": mean, "perplexity": math.exp(min(mean, 100.0))}
        if self.config.best != "loss":
            examples = self.task.examples("val")
            with precision(self.device, self.bf16):
                predictions = self.task.predict(
                    self.model, [e.source for e in examples], self.greedy, device=self.device
                )
            values |= {score.name: score.value for score in self.task.score(predictions, examples)}
        self.model.train()
        return values

    def _better(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.clock.best is None:
            return True
        higher = self.config.best != "loss" and METRICS[self.config.best].higher_is_better
        return value > self.clock.best if higher else value < self.clock.best

    def _check_best(self) -> None:
        best = self.config.best
        if best not in ("loss", *METRICS):
            wanted = ", ".join(["loss", *METRICS])
            raise ConfigError('"train.best" names nothing to judge by', got=best, wanted=wanted)

    def _save(self) -> None:
        tensors: dict[str, Tensor] = {"rng.cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        for i, parameter in enumerate(self.step.parameters):
            for name, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{i}.{name}"] = torch.as_tensor(value)
            if self.config.ema:
                tensors[f"ema.{i}"] = self.step.shadow[i]
        self.clock.finished = self.clock.step >= self.config.max_steps
        tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
        weights = {name: tensor.cpu() for name, tensor in checkpoint.weights(self.model).items()}
        checkpoint.save_checkpoint(self.checkpoints, self.clock.step, weights, tensors, asdict(self.clock))
        checkpoint.prune(self.checkpoints, max(self.config.keep, self.config.average))

    def _resume(self) -> None:
        for path in reversed(checkpoint.checkpoints(self.checkpoints)):
            try:
                weights, tensors, state = checkpoint.load_checkpoint(path)
            except RunError as error:
                say(f"{error}\n  -> taking the checkpoint before it")
                continue
            self._restore(weights, tensors, state, path)
            if not self.clock.finished:
                say(f"going on from step {self.clock.step:,}")
            self.log.forget_after(self.clock.step)
            return
        self.log.forget_after(0)

    def _restore(
        self, weights: dict[str, Tensor], tensors: dict[str, Tensor], state: dict[str, Any], path: Path
    ) -> None:
        checkpoint.put_weights(self.model, weights, where=path)
        self.clock = Clock(**state)
        for i, parameter in enumerate(self.step.parameters):
            prefix = f"optimizer.{i}."
            own = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
            # AdamW keeps its step counter where its weights are only if it is captured or fused
            self.optimizer.state[parameter] = {name: value.to(self.device) for name, value in own.items()}
            if self.config.ema and f"ema.{i}" in tensors:
                self.step.shadow[i].copy_(tensors[f"ema.{i}"])
        self.step.averaged_updates.fill_(self.clock.step)
        torch.set_rng_state(tensors["rng.cpu"])
        if self.device.type == "cuda" and "rng.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng.cuda"], self.device)

    def _finish(self) -> None:
        """Averages the last checkpoints, where asked, and keeps what validation finds better."""
        paths = checkpoint.checkpoints(self.checkpoints)[-self.config.average :] if self.config.average else []
        if len(paths) > 1:
            mean = checkpoint.mean_weights(paths)
            checkpoint.put_weights(self.model, mean, where=self.checkpoints)
            values = self._measure()
            better = self._better(values[self.config.best])
            if better:
                self.clock.best, self.clock.best_step = values[self.config.best], self.clock.step
                checkpoint.save_weights(self.folder / checkpoint.MODEL, mean)
            self.log.write(self.clock.step, **{f"averaged_{name}": value for name, value in values.items()})
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            say(f"mean of {len(paths)} checkpoints: {shown}, {'kept' if better else 'not better than the best one'}")
        where = f"step {self.clock.best_step:,}, validation {self.config.best} {self.clock.best:.4g}"
        say(f"trained in {duration(self.clock.seconds)}; {self.folder / checkpoint.MODEL} is of {where}")

    def _stopping(self) -> _Stopping:
        def ask() -> None:
            self.stop_requested = True

        return _Stopping(ask)


class _Stopping:
    """Turns the first Ctrl-C or termination into a wish that the loop grants after a save; the second is at once."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.ask = ask
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self.previous[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread: whoever runs us there handles signals
                return

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        say("\nstopping after this step; once more stops at once and loses what came after the last checkpoint")
        self.ask()
        self.__exit__()


class MetricsLog:
    """metrics.jsonl, one JSON object a line, and TensorBoard where asked for."""

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        self.path, self.board = folder / "metrics.jsonl", None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                remedy = 'pip install "regard[tensorboard]"'
                raise ConfigError(
                    "TensorBoard is not installed", got="train.tensorboard = true", remedy=remedy
                ) from None
            self.board = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, **values: float) -> None:
        """One line, and one point a value."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        for name, value in values.items():
            if self.board is not None:
                self.board.add_scalar(name, value, step)

    def forget_after(self, step: int) -> None:
        """Drops the lines of steps that a resumed run will make again, and a last line cut short by a crash."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                continue
        checkpoint.write_text(self.path, "".join(kept))
