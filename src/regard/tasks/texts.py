"""What tasks share: the contract of most, the files and tokenizer of running text, memory, evaluation by tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.config import SPLITS, DataConfig
from regard.data.parts import noise_of
from regard.data.readers import ReadReport
from regard.data.store import Item, no_example
from regard.data.text import Ends, Part, Span, Text, build_text, read_lines_of
from regard.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from regard.errors import DataError
from regard.tasks.metrics import Score
from regard.types import Batch, State

Paths = Callable[[str], Sequence[Path]]  # the files of a split, asked when it is needed
OnBatch = Callable[[int, int], None]


def open_tokenizer(
    file: Path, config: TokenizerConfig, data: DataConfig, paths: Paths, *, line_ends: Ends, extra: Sequence[str] = ()
) -> Tokenizer:
    """The tokenizer of a run folder, or one that is trained on the training split and saved there."""
    if not file.exists():
        lines = read_lines_of(paths("train"), span_of(data, "train"), on_bad_line=data.on_bad_line, report=ReadReport())
        end = "\n" if line_ends == "text" else ""
        save_tokenizer(train_tokenizer(config, (line.removesuffix("\n") + end for line in lines), extra=extra), file)
    return Tokenizer.load(file)


def text_of(
    name: str,
    tokenizer: Tokenizer,
    data: DataConfig,
    paths: Paths,
    cache: Path,
    *,
    line_ends: Ends,
    words: bool = False,
) -> Text:
    """A split as ids."""
    return build_text(
        split_paths(paths, data, name),
        tokenizer,
        cache_dir=cache,
        line_ends=line_ends,
        split=name,
        span=span_of(data, name),
        on_bad_line=data.on_bad_line,
        words=words,
        noise=noise_of(data),
    )


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Puts a tokenizer into a run folder."""
    try:
        tokenizer.save(path)
    except OSError as error:
        raise DataError("the tokenizer cannot be written", got=error.strerror or error, where=path) from None


def split_paths(paths: Paths, data: DataConfig, name: str) -> Sequence[Path]:
    """The files of a split; validation may be a part of the training files."""
    if name not in SPLITS:
        raise DataError("no such split", got=name, wanted=", ".join(SPLITS))
    found = paths("train" if name == "val" and data.val_share else name)
    if not found:
        other = ", or evaluate another: --split val" if name == "test" else ""
        got, remedy = f"data.{name} is empty", f"set data.{name}{other}"
        raise DataError(f"the recipe names no {name} split", got=got, remedy=remedy)
    return found


def listed(examples: Iterable[Item], name: str, files: Sequence[Path]) -> list[Item]:
    """The examples of a split; an error where there is none."""
    found = list(examples)
    if not found:
        raise no_example(name, ", ".join(map(str, files)))
    return found


def span_of(data: DataConfig, name: str) -> Span:
    """Which part of its files a split is."""
    part: dict[str, Part] = {"train": "first", "val": "last"}
    return Span(part[name], data.val_share) if data.val_share and name in part else Span()


class Stateless:
    """What most tasks are: they train the family's model as it is, and carry nothing from batch to batch."""

    def dress(self, model: Any) -> Any:
        """The model with what the task needs beside it."""
        return model

    def tensors(self) -> dict[str, Tensor]:
        """What is carried from batch to batch."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes up what `tensors` gave."""


class Memory:
    """What a model knows of the segments before; in training it stays in one place, where captured steps find it."""

    def __init__(self) -> None:
        self.kept: dict[bool, State] = {}  # in training (True) and in evaluation
        self.restored: Mapping[str, Tensor] = {}  # what a training that is taken up again had in memory

    def of(self, model: Any, carry: Tensor) -> State:
        """The memory for the next segment, empty in the rows that begin (where `carry` is 0)."""
        training = model.training
        memory = self.kept.get(training)
        if memory is None or len(memory.position) != len(carry):
            memory = self.kept[training] = model.empty_memory(len(carry))
            if training:
                self._take_up(memory)
        held = {name: torch.where(_along(carry, x) > 0, x, 0) for name, x in memory.cache.items()}
        return replace(memory, position=memory.position * carry, cache=held, bound=0)

    def keep(self, model: Any, new: State) -> None:
        """Remembers what the model gave after `of`."""
        if model.training:
            _put(self.kept[True], _tensors(new))
        else:
            self.kept[False] = new

    def tensors(self) -> dict[str, Tensor]:
        """The memory of the training."""
        return _tensors(self.kept[True]) if True in self.kept else {}

    def _take_up(self, memory: State) -> None:
        now, then = ({name: x.shape for name, x in held.items()} for held in (_tensors(memory), self.restored))
        if now == then:  # not where batches have other rows than before the stop
            _put(memory, self.restored)
        self.restored = {}


def _along(carry: Tensor, x: Tensor) -> Tensor:
    return carry.view(-1, *[1] * (x.dim() - 1))


def _tensors(memory: State) -> dict[str, Tensor]:
    return {"position": memory.position, **memory.cache}


@torch.no_grad()
def _put(memory: State, tensors: Mapping[str, Tensor]) -> None:
    for name, into in _tensors(memory).items():
        into.copy_(tensors[name])


def at_labels(hidden: Tensor, labels: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The states of the places that have a label (B x most x D), and the labels, -100 where there are fewer.

    The device is not asked how many there are, and the head need not be computed for the rest.
    """
    found, places = labels.topk(most, dim=1)  # a label that counts is larger than one that does not
    return hidden.gather(1, places[:, :, None].expand(-1, -1, hidden.shape[-1])), found


def of_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """The log-probability of each label, 0 where none counts: .. x V and .. -> .."""
    chosen: Tensor = logits.float().log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return chosen * (labels >= 0)


def with_unknown(batch: Batch, share: float, tokenizer: Tokenizer) -> Batch:
    """The batch with a share of its tokens unknown, others each time; what begins, ends and marks a text stays."""
    special, ids = tokenizer.specials, batch.source.ids
    if not share or special.unk is None:
        return batch
    hidden = torch.rand(ids.shape, device=ids.device) < share
    for known in (special.start, special.end, *tokenizer.markers):
        hidden = hidden & (ids != known)
    return replace(batch, source=replace(batch.source, ids=ids.masked_fill(hidden, special.unk)))


@dataclass
class Tally:
    """What was said of tokens that were to be said: summed over batches, on the device."""

    loss: Tensor | float = 0.0
    right: Tensor | float = 0.0
    count: Tensor | float = 0.0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Logits .. x V of labels .., -100 where none counts."""
        self.loss = self.loss - of_labels(logits, labels).double().sum()
        self.right = self.right + (logits.argmax(-1) == labels).sum()  # no token is -100
        self.count = self.count + (labels >= 0).sum()

    def scores(self, signature: str) -> Iterator[Score]:
        """Loss and perplexity of a token, and how many were the likeliest, in percent."""
        count = max(1, int(self.count))
        mean = float(self.loss) / count
        signature = f"{signature}|tokens:{int(self.count)}"
        yield Score("loss", mean, signature)
        yield Score("perplexity", math.exp(min(mean, 700.0)), signature)
        yield Score("accuracy", 100 * float(self.right) / count, signature)


def batches_of(split: Any, batch_tokens: int, device: torch.device, on_batch: OnBatch | None = None) -> Iterator[Batch]:
    """The batches of a split, always the same ones."""
    plan = split.plan(batch_tokens=batch_tokens, multiple=1, seed=0, epoch=0, shuffle=False)
    for done, planned in enumerate(plan, 1):
        yield split.collate(planned).to(device)
        if on_batch is not None:
            on_batch(done, len(plan))


def by_length(rows: Sequence[Sequence[int]], batch_tokens: int) -> Iterable[list[int]]:
    """The numbers of the rows, those of like length together, each group within the budget (or of one row)."""
    ordered = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    while ordered:
        number = max(1, batch_tokens // max(1, len(rows[ordered[0]])))
        yield ordered[:number]
        ordered = ordered[number:]
