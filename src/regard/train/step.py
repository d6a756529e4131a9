"""One update: gradients of sums over real tokens, divided once; eager anywhere, or captured on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from regard.errors import RunError
from regard.types import Batch

Loss = Callable[[Batch], tuple[Tensor, Tensor]]  # -> sum over real tokens, how many they are


class Step:
    """Accumulates the gradients of batches, then updates the weights once.

    As every loss is a sum and the division by the number of tokens comes last, several batches give the same update
    as one that holds them all. Nothing here waits for the device; `read` does.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, *, clip: float, bf16: bool, ema: float
    ) -> None:
        self.loss, self.optimizer, self.clip, self.bf16, self.ema = loss, optimizer, clip, bf16, ema
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.shadow = [p.detach().clone() for p in self.parameters] if ema else []
        self.count = torch.zeros((), device=self.device)  # tokens of this update
        self.loss_sum = torch.zeros((), device=self.device)  # since the last `read`
        self.loss_count = torch.zeros((), device=self.device)
        self.norm = torch.zeros((), device=self.device)
        self.averaged_updates = torch.zeros((), device=self.device)
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def add(self, batch: Batch) -> None:
        """Adds the gradients of a batch."""
        with precision(self.device, self.bf16):
            total, count = self.loss(batch)
        total.backward()
        self.loss_sum += total.detach()
        self.count += count

    def update(self) -> None:
        """Divides the gradients by the tokens they came from, clips, moves the weights, starts again from zero."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        count = self.count.clamp(min=1)
        self.norm.copy_(nn.utils.get_total_norm(gradients) / count)
        factor = 1 / count
        if self.clip:
            factor = factor * (self.clip / (self.norm + 1e-6)).clamp(max=1)
        torch._foreach_mul_(gradients, factor)
        self.optimizer.step()
        if self.ema:
            self._move_average()
        torch._foreach_zero_(gradients)
        self.loss_count += self.count
        self.count.zero_()

    def _move_average(self) -> None:
        # a short memory at first, (1 + t) / (10 + t), or the first random weights would stay in it for long
        self.averaged_updates += 1
        decay = ((1 + self.averaged_updates) / (10 + self.averaged_updates)).clamp(max=self.ema)
        change = torch._foreach_sub([p.detach() for p in self.parameters], self.shadow)
        torch._foreach_mul_(change, 1 - decay)
        torch._foreach_add_(self.shadow, change)

    def read(self) -> tuple[float, float]:
        """Mean loss a token since the last call, and the norm of the last gradient. Waits for the device."""
        loss = (self.loss_sum / self.loss_count.clamp(min=1)).item()
        self.loss_sum.zero_()
        self.loss_count.zero_()
        return loss, self.norm.item()

    def tensors(self) -> dict[str, Tensor]:
        """What going on needs beside the weights: the optimiser, the average, and the loss that was not yet read."""
        found = {"loss.sum": self.loss_sum, "loss.count": self.loss_count, "ema.updates": self.averaged_updates}
        for i, parameter in enumerate(self.parameters):
            for name, value in self.optimizer.state[parameter].items():
                found[f"optimizer.{i}.{name}"] = torch.as_tensor(value)
        return found | {f"ema.{i}": value for i, value in enumerate(self.shadow)}

    def check(self, tensors: Mapping[str, Tensor], where: object) -> None:
        """Raises where something that `restore` needs is missing."""
        every = ("exp_avg", "exp_avg_sq", "step")
        moments = [f"optimizer.{i}.{name}" for i in range(len(self.parameters)) for name in every]
        missing = [name for name in ("rng.cpu", "loss.sum", "loss.count", *moments) if name not in tensors]
        if missing:
            raise RunError("the checkpoint's training state is not whole", got=f"no {missing[0]}", where=where)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `tensors` gave, once the model has its weights back."""
        self.loss_sum.copy_(tensors["loss.sum"])
        self.loss_count.copy_(tensors["loss.count"])
        for i, parameter in enumerate(self.parameters):
            prefix = f"optimizer.{i}."
            own = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
            # a copy: what was loaded may be the mapped file itself, which will be deleted
            self.optimizer.state[parameter] = {name: value.to(self.device, copy=True) for name, value in own.items()}
        if "ema.0" in tensors:
            self.averaged_updates.copy_(tensors["ema.updates"])
        for i, average in enumerate(self.shadow):  # one that begins only now begins at the weights
            average.copy_(tensors.get(f"ema.{i}", self.parameters[i].detach()))

    def repeated(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does again, each time it is called, some work that ran before and always is the same."""
        return work

    def device_stream(self) -> contextlib.AbstractContextManager[object]:
        """All work of the device that belongs to a training belongs inside, the copies of batches too."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the model has its averaged weights, where there are any."""
        held = [p.detach().clone() for p in self.parameters] if self.ema else []
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.shadow, strict=False):
                parameter.copy_(value)
            try:
                yield
            finally:
                for parameter, value in zip(self.parameters, held, strict=False):
                    parameter.copy_(value)


class CapturedStep(Step):
    """The same on a GPU with each shape's work, and the update, captured once as a CUDA graph and then replayed.

    A shape's first batch runs eagerly (libraries set themselves up), its second is captured; both count. Capturing
    needs a stream of our own, on which everything else then has to run as well: `device_stream`.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.stream = torch.cuda.Stream(self.device)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        self.pool = torch.cuda.graph_pool_handle()
        self.seen: set[tuple[int, ...]] = set()
        self.graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self.updates = 0
        self.update_graph: torch.cuda.CUDAGraph | None = None

    def device_stream(self) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def add(self, batch: Batch) -> None:
        shape = tuple(size for tensor in batch.tensors() for size in tensor.shape)
        if shape not in self.seen:
            self.seen.add(shape)
            return super().add(batch)
        if shape not in self.graphs:
            self.graphs[shape] = self._capture(lambda: super(CapturedStep, self).add(batch)), batch
        graph, static = self.graphs[shape]
        _copy(static, batch)
        return graph.replay()

    def update(self) -> None:
        self.updates += 1
        if self.updates == 1:
            return super().update()
        if self.update_graph is None:
            self.update_graph = self._capture(super().update)
        return self.update_graph.replay()

    def repeated(self, work: Callable[[], None]) -> Callable[[], None]:
        return self._capture(work).replay

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # thread_local: the thread that prepares batches may allocate meanwhile
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            work()
        return graph


def precision(device: torch.device, bf16: bool) -> contextlib.AbstractContextManager[object]:
    """bf16 autocast, or nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()


def _copy(static: Batch, new: Batch) -> None:
    if static is not new:
        for into, of in zip(static.tensors(), new.tensors(), strict=True):
            into.copy_(of)
