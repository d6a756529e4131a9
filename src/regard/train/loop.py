"""The training loop: batches in, updates, validation, checkpoints; it goes on where it was stopped."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.data.batching import Planned, prefetch
from regard.decode.config import DecodeConfig
from regard.errors import ConfigError, RunError
from regard.tasks.metrics import METRICS, Evaluation, higher_is_better
from regard.train import checkpoint
from regard.train.config import TrainConfig
from regard.train.finetune import plain_weights
from regard.train.log import MetricsLog, cut_back
from regard.train.observe import OBSERVATIONS, ObserveConfig, Probe
from regard.train.optim import learning_rate, make_optimizer, set_learning_rate
from regard.train.progress import Progress, Rate, duration, say
from regard.train.step import CapturedStep, Step, precision
from regard.types import Batch


class Split(Protocol):
    """A split of a task's data, as batches."""

    def plan(self, *, batch_tokens: int, multiple: int, seed: int, epoch: int, shuffle: bool) -> list[Planned]: ...

    def collate(self, planned: Planned) -> Batch: ...

    def padding(self, plan: list[Planned]) -> float: ...

    def first(self, number: int) -> Batch: ...

    def describe(self) -> str: ...


class Task(Protocol):
    """What the loop asks of a task.

    `metrics` are the names of what `evaluate` gives and validation can judge by; `tensors` is what the task carries
    from batch to batch, so that a training can go on as if it had not stopped.
    """

    metrics: Sequence[str]

    def split(self, name: str, cache: Path) -> Split: ...

    def loss(self, model: Any, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]: ...

    def evaluate(self, model: Any, split: str, config: DecodeConfig, *, device: torch.device) -> Evaluation: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None: ...


HANG_UP = getattr(signal, "SIGHUP", None)  # the terminal was closed; not every system says so
NUMBER = (int, float)
CLOCK_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("step", "epoch", "batch", "tokens", "best_step", "without_better"), (int,)),
    "seconds": NUMBER,
    "judged_by": (str,),
    "planned_by": (str,),
    "best": (*NUMBER, type(None)),
    "best_loss": (*NUMBER, type(None)),
    "finished": (bool,),
}


@dataclass
class Clock:
    """Where training stands; with the seed it says which batch comes next."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    tokens: int = 0
    seconds: float = 0.0
    judged_by: str = "loss"
    planned_by: str = ""  # the keys that say which batches an epoch has
    best: float | None = None
    best_loss: float | None = None  # of the best: of two that are as good, the surer one
    best_step: int = 0
    without_better: int = 0
    finished: bool = False  # the result is final, until max_steps or patience are raised

    @classmethod
    def of(cls, state: object, where: Path) -> Clock:
        """The clock that a checkpoint holds."""
        state = {"planned_by": "", **state} if isinstance(state, dict) else state  # older ones do not say
        wanted = [field.name for field in fields(cls)]
        if not isinstance(state, dict) or sorted(state) != sorted(wanted):
            raise RunError("the checkpoint holds no clock", got=state, wanted=", ".join(wanted), where=where)
        wrong = [name for name, kind in CLOCK_TYPES.items() if not isinstance(state[name], kind)]
        if wrong:
            raise RunError("the checkpoint's clock is damaged", got={name: state[name] for name in wrong}, where=where)
        return cls(**state)


class Trainer:
    """Trains a model on a task, in a run folder."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        config: TrainConfig,
        decode: DecodeConfig,
        observe: ObserveConfig,
        *,
        folder: Path,
        cache: Path,
        device: torch.device,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self.task, self.model, self.config, self.folder, self.device = task, model.to(device), config, folder, device
        self.observe = observe
        self._check_best()
        self.log = MetricsLog(folder, tensorboard=config.tensorboard)
        self.train_split, self.val_split = task.split("train", cache), task.split("val", cache)
        self.greedy = DecodeConfig(method="greedy", max_length=decode.max_length, max_ratio=decode.max_ratio)
        self.bf16 = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
        self.optimizer = make_optimizer(self.model, config, device, rates)
        kind = CapturedStep if device.type == "cuda" and config.capture else Step
        self.step = kind(
            self.model,
            lambda batch: task.loss(self.model, batch),
            self.optimizer,
            clip=config.clip,
            bf16=self.bf16,
            ema=config.ema,
        )
        self.checkpoints = folder / checkpoint.FOLDER
        self.planned_by = f"{config.batch_tokens}, {config.bucket}, {config.seed}"
        self.clock = Clock(judged_by=config.best, planned_by=self.planned_by)
        self.rate = Rate()
        self.probe: Probe | None = None
        self.stop_requested = False

    def fit(self) -> bool:
        """Trains to the end, from wherever the run folder stands; whether there was anything left to do."""
        try:
            with self.step.device_stream():
                self._resume()
                if self.clock.finished and self._is_done():
                    say(f"{self.folder}: already trained, {self.clock.step:,} steps")
                    return False
                with self._stopping():
                    self._train()
                return True
        finally:
            self.log.close()

    def _train(self) -> None:
        say(f"train: {self.train_split.describe()}")
        say(f"val:   {self.val_split.describe()}")
        number = sum(tensor.numel() for tensor in self.model.parameters())
        learned = sum(tensor.numel() for tensor in self.step.parameters)
        some = f" ({learned:,} of them learn)" if learned < number else ""
        say(f"model: {number:,} parameters{some} on {self.device}, {'bf16' if self.bf16 else 'fp32'}")
        rising, last = self.config.warmup_steps, self.config.max_steps
        if rising >= last:
            say(f"the learning rate rises to the end: train.warmup_steps = {rising:,}, max_steps = {last:,}")
        if not self._is_done():
            self._loop()
        if self.stop_requested:
            say(f"stopped at step {self.clock.step:,}, all of it saved; the same command goes on from here")
            raise KeyboardInterrupt
        self._finish()

    def _loop(self) -> None:
        config, clock = self.config, self.clock
        self.model.train()
        if self.observe.every:
            self.probe = self._make_probe()
            self.probe.begin(clock.step)
        started = time.monotonic() - clock.seconds
        self.rate = Rate()
        with Progress("step", config.max_steps, done=clock.step) as progress:
            for batches in self._updates():
                self._update(batches)
                if self.probe is not None:
                    self.probe.follow(clock.step)
                clock.seconds = time.monotonic() - started
                last = clock.step >= config.max_steps
                if clock.step % config.log_every == 0 or last:
                    self._report(progress)
                with self.rate.paused():  # rates are of training alone
                    if clock.step % config.validate_every == 0 or last:
                        self._validate(progress.say)
                    stop = self._is_done() or self.stop_requested
                    if clock.step % config.checkpoint_every == 0 or stop:
                        self._save()
                if stop:
                    break

    def _make_probe(self) -> Probe:
        """Looks at the first validation rows, with the weights as they are and not their average."""

        def run(batch: Batch) -> None:
            with precision(self.device, self.bf16):
                self.task.loss(self.model, batch, smoothing=0.0)

        return Probe(
            self.model,
            run,
            self.val_split.first(self.observe.examples).to(self.device),
            every=self.observe.every,
            path=self.folder / OBSERVATIONS,
            repeated=self.step.repeated,
        )

    def _is_done(self) -> bool:
        config, clock = self.config, self.clock
        return clock.step >= config.max_steps or 0 < config.patience <= clock.without_better

    def _update(self, batches: list[Batch]) -> None:
        set_learning_rate(self.optimizer, learning_rate(self.clock.step + 1, self.config))
        for batch in batches:
            self.step.add(batch)
            self.rate.add(batch.num_tokens)
            self.clock.tokens += batch.num_tokens
        self.step.update()
        self.clock.step += 1

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

    def _report(self, progress: Progress) -> None:
        clock, rate = self.clock, self.rate.read()
        loss, norm = self.step.read()
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise self._not_finite(f"loss {loss}, gradient norm {norm}")
        current, epoch = learning_rate(clock.step, self.config), clock.epoch + 1  # people count from 1
        self.log.write(
            clock.step, loss=loss, learning_rate=current, gradient_norm=norm, tokens_per_second=rate, epoch=epoch
        )
        progress.update(clock.step, f"loss {loss:.3f}  lr {current:.2e}  {rate:,.0f} tokens/s  epoch {epoch}")

    def _not_finite(self, got: str) -> RunError:
        return RunError(
            "the loss is no longer a number",
            got=f"{got} at step {self.clock.step:,}",
            where=self.folder,
            remedy="a lower train.learning_rate, more train.warmup_steps, or train.precision=fp32; "
            "it goes on from the last checkpoint before this step",
        )

    def _validate(self, tell: Callable[[str], None]) -> None:
        config, clock = self.config, self.clock
        with self.step.averaged():
            values = self._measure()
            self.log.write(clock.step, **{f"val_{name}": value for name, value in values.items()})
            better, stands = self._better(values), values[config.best] == clock.best
            if better:
                # of two that are as good the surer one is kept, but patience is for what gets better
                clock.without_better = clock.without_better + 1 if stands else 0
                clock.best, clock.best_step = values[config.best], clock.step
                clock.best_loss = values["loss"]
                self._save_result()
            else:
                clock.without_better += 1
        tell(f"step {clock.step:,}: validation {_shown(values)}{'  (best)' if better else ''}")

    def _save_result(self) -> None:
        step = str(self.clock.best_step)  # which, as no checkpoint knows of it yet
        checkpoint.save_weights(self.folder / checkpoint.MODEL, plain_weights(self.model), {"step": step})

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
        if not math.isfinite(mean):
            raise self._not_finite(f"validation loss {mean}")
        values = {"loss": mean, "perplexity": math.exp(min(mean, 100.0))}
        if self.config.best != "loss":
            with precision(self.device, self.bf16):
                found = self.task.evaluate(self.model, "val", self.greedy, device=self.device)
            values |= {score.name: score.value for score in found.scores}
        self.model.train()
        return values

    def _better(self, values: dict[str, float]) -> bool:
        name, best = self.config.best, self.clock.best
        if best is None:
            return True
        if values[name] == best:
            return self.clock.best_loss is None or values["loss"] < self.clock.best_loss
        return values[name] > best if higher_is_better(name) else values[name] < best

    def _check_best(self) -> None:
        known = ["loss", *self.task.metrics]
        if self.config.best not in known:
            raise ConfigError(
                '"train.best" names nothing to judge by',
                got=self.config.best,
                wanted=", ".join(known),
                remedy="add it to task.metrics" if self.config.best in METRICS else None,
            )

    def _save(self) -> None:
        carried = {f"task.{name}": tensor for name, tensor in self.task.tensors().items()}
        tensors = {"rng.cpu": torch.get_rng_state(), **self.step.tensors(), **carried}
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
        weights = {name: tensor.cpu() for name, tensor in checkpoint.weights(self.model).items()}
        if not all(tensor.isfinite().all() for tensor in weights.values()):
            raise self._not_finite("weights that are no numbers")  # to go on from them would help nobody
        if self.probe is not None:
            self.probe.write()  # who goes on from here does not look again
        self.clock.finished = False
        checkpoint.save_checkpoint(self.checkpoints, self.clock.step, weights, tensors, asdict(self.clock))
        checkpoint.prune(self.checkpoints, max(self.config.keep, self.config.average))

    def _resume(self) -> None:
        checkpoint.drop_drafts(self.folder)
        found = checkpoint.checkpoints(self.checkpoints)
        for path in reversed(found):
            try:
                weights, tensors, state = checkpoint.load_checkpoint(path)
                clock = Clock.of(state, path)
                self.step.check(tensors, path)
            except RunError as error:
                say(f"{error}\n  -> set aside as {checkpoint.set_aside(path)}; taking the one before it")
                continue
            self._restore(weights, tensors, clock, path)
            break
        else:
            if found:
                raise RunError(
                    "no checkpoint of this run can be read",
                    got=", ".join(path.name for path in found),
                    where=self.checkpoints,
                    remedy="another run=DIR; or run the same command again, which begins at the first step",
                )
            checkpoint.set_result_aside(self.folder)
        if self.clock.step and not (self.clock.finished and self._is_done()):
            say(f"going on from step {self.clock.step:,}")
        self.log.go_on(self.clock.step)
        cut_back(self.folder / OBSERVATIONS, self.clock.step or -1)  # a fresh start looks at step 0 itself

    def _restore(self, weights: dict[str, Tensor], tensors: dict[str, Tensor], clock: Clock, path: Path) -> None:
        checkpoint.put_weights(self.model, weights, where=path)
        self.step.restore(tensors)
        carried = {name: tensor for name, tensor in tensors.items() if name.startswith("task.")}
        self.task.restore({name.removeprefix("task."): tensor.to(self.device) for name, tensor in carried.items()})
        self.clock = clock
        if clock.judged_by != self.config.best:  # what was best by another measure says nothing now
            clock.judged_by, clock.best, clock.without_better = self.config.best, None, 0
        if clock.planned_by not in ("", self.planned_by) and clock.batch:
            say("the batches are other ones now: a new epoch begins")
            clock.epoch, clock.batch = clock.epoch + 1, 0
        clock.planned_by = self.planned_by
        if clock.best is not None and not self._has_result():
            say("the result is lost, damaged or of a later step: the best from here on takes its place")
            clock.best, clock.finished = None, False
        torch.set_rng_state(tensors["rng.cpu"])
        if self.device.type == "cuda" and "rng.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng.cuda"], self.device)

    def _has_result(self) -> bool:
        """Whether the weights that the clock knows as the best are there; a stop may have come after better ones."""
        path = self.folder / checkpoint.MODEL
        try:
            return bool(checkpoint.load_weights(path)) and checkpoint.step_of(path) in (None, self.clock.best_step)
        except RunError:
            return False

    def _finish(self) -> None:
        """Averages the last checkpoints, where asked, and keeps what validation finds better."""
        clock = self.clock
        if clock.best is None:  # stopped before its first validation, and then not to go on
            self._validate(say)
        paths = checkpoint.checkpoints(self.checkpoints)
        if self.config.average and len(paths) > 1:
            self._average(paths[-self.config.average :])
        elif self.config.average:
            say("train.average found one checkpoint alone, so there is nothing to average")
        clock.finished = True
        checkpoint.write_state(paths[-1], asdict(clock))
        where = f"step {clock.best_step:,}, validation {self.config.best} {clock.best:.4g}"
        say(f"trained in {duration(clock.seconds)}; {self.folder / checkpoint.MODEL} is of {where}")

    def _average(self, paths: list[Path]) -> None:
        mean = checkpoint.mean_weights(paths)
        checkpoint.put_weights(self.model, mean, where=self.checkpoints)
        values = self._measure()
        better = self._better(values)
        if better:
            self.clock.best, self.clock.best_step = values[self.config.best], self.clock.step
            self.clock.best_loss = values["loss"]
            self._save_result()
        self.log.write(self.clock.step, **{f"averaged_{name}": value for name, value in values.items()})
        verdict = "kept" if better else "not better than the best one"
        say(f"mean of {len(paths)} checkpoints: {_shown(values)}, {verdict}")

    def _stopping(self) -> _Stopping:
        def ask() -> None:
            self.stop_requested = True

        return _Stopping(ask)


def _shown(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


class _Stopping:
    """Turns the first Ctrl-C, termination or end of the terminal into a wish that the loop grants after a save.

    The second is at once.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self.ask = ask
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:  # as nohup has it
            numbers.append(HANG_UP)
        for number in numbers:
            try:
                self.previous[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread: whoever runs us there handles signals
                return

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        self.ask()
        self.__exit__()
        if number == HANG_UP:  # a shell sends it, and when it ends the system does again
            signal.signal(number, signal.SIG_IGN)
        say("\nstopping after this step; once more stops at once and loses what came after the last checkpoint")
