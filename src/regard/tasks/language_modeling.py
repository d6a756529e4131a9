"""Language modelling: running text in, a model that goes on with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import key
from regard.data.batching import NONE
from regard.data.cache import cache_folder
from regard.data.config import SPLITS, DataConfig
from regard.data.readers import ReadReport
from regard.data.text import LineEnds, Part, Span, Text, build_text, read_lines_of
from regard.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from regard.data.windows import Windows
from regard.decode.config import DecodeConfig
from regard.decode.rules import Hypothesis
from regard.decode.search import decode, pad_rows
from regard.errors import ConfigError, DataError, require
from regard.models import Causal, Sizes
from regard.tasks.metrics import Evaluation, Score
from regard.types import Axis, Batch, Example, Prediction, State

SUMMARY = "running text in, a model that goes on with it"
KIND = "causal"
FILES = ("tokenizer.json",)
Paths = Callable[[str], Sequence[Path]]
OnBatch = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a language modelling recipe."""

    context: int = key(256, "tokens that are read at a time")
    stride: int = key(
        0,
        "`evaluate`: how far the window moves on each time; 0 = context. Less is slower, but every token sees more",
    )
    line_ends: LineEnds = key("text", "text: a line's end is a character as any other; token: it is </s>, and counts")
    label_smoothing: float = key(0.0, "share of the probability that is spread over all tokens in training")

    def __post_init__(self) -> None:
        require(self.context > 1, "context is too short", got=self.context, wanted="2 or more")
        require(
            0 <= self.stride <= self.context, "stride is out of range", got=self.stride, wanted=f"0 to {self.context}"
        )
        got = self.label_smoothing
        require(0 <= got < 1, "label_smoothing is a share", got=got, wanted="0 <= x < 1")


class Task:
    """A language model's tokenizer and texts."""

    metrics: Sequence[str] = ()

    def __init__(self, config: Config, data: DataConfig, *, paths: Paths, tokenizer: Tokenizer) -> None:
        self.config, self.data, self.paths, self.tokenizer = config, data, paths, tokenizer
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True)
        self.remembers = False
        self.memory: dict[bool, State] = {}  # in training (True) and in evaluation
        self.carried: Mapping[str, Tensor] = {}  # what a training that is taken up again had in memory

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: its tokenizer is loaded, or trained on the training split and saved there."""
        file = folder / FILES[0]
        if not file.exists():
            span, report = _span(data, "train"), ReadReport()
            lines = read_lines_of(paths("train"), span, on_bad_line=data.on_bad_line, report=report)
            ends = "" if config.line_ends == "token" else "\n"
            save_tokenizer(train_tokenizer(tokenizer, (line.removesuffix("\n") + ends for line in lines)), file)
        return cls(config, data, paths=paths, tokenizer=Tokenizer.load(file))

    def text(self, name: str, cache: Path) -> Text:
        """A split as ids."""
        return build_text(
            split_paths(self.paths, self.data, name),
            self.tokenizer,
            cache_dir=cache,
            line_ends=self.config.line_ends,
            span=_span(self.data, name),
            on_bad_line=self.data.on_bad_line,
        )

    def dress(self, model: Any) -> Any:
        """The model as it is; the task learns whether it has a memory, which decides how a text is read."""
        self.remembers = hasattr(model, "remember")
        return model

    def split(self, name: str, cache: Path) -> Windows:
        """The split as the windows that the model reads."""
        return Windows(self.text(name, cache), self.config.context, self.config.context, self.remembers)

    def loss(self, model: Causal, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies of the labels, and how many they are."""
        assert batch.target is not None
        labels = batch.target.ids.flatten()
        smoothing = self.config.label_smoothing if smoothing is None else smoothing
        hidden = model.hidden(batch) if batch.carry is None else self._remembered(model, batch, batch.carry)
        return model.head.loss(hidden.flatten(0, 1), labels, smoothing), (labels >= 0).sum()

    def _remembered(self, model: Any, batch: Batch, carry: Tensor) -> Tensor:
        """The states of a segment, by a memory that is kept in one place: a captured step finds it there again."""
        memory, rows = self.memory.get(model.training), len(carry)
        if memory is None or len(memory.position) != rows:
            memory = self.memory[model.training] = model.empty_memory(rows)
            if model.training and self.carried:
                _put(memory, self.carried)
                self.carried = {}
        held = {name: torch.where(_along(carry, x) > 0, x, 0) for name, x in memory.cache.items()}
        hidden, new = model.remember(batch, replace(memory, position=memory.position * carry, cache=held, bound=0))
        with torch.no_grad():
            _put(memory, {"position": new.position, **new.cache})
        return hidden  # type: ignore[no-any-return]

    def tensors(self) -> dict[str, Tensor]:
        """The memory of the training."""
        memory = self.memory.get(True)
        return {} if memory is None else {"position": memory.position, **memory.cache}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes up what `tensors` gave."""
        self.carried = tensors

    @torch.inference_mode()
    def evaluate(
        self,
        model: Any,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
    ) -> Evaluation:
        """Loss and perplexity a token, perplexity a word, bits a character and a byte, over every token of a split.

        A model with a memory reads the text from its beginning to its end; any other in windows, `task.stride` apart.
        """
        text, context = self.text(split, cache_folder()), self.config.context
        stride = context if self.remembers else self.config.stride or context
        windows = Windows(text, context, stride, self.remembers, num_rows=int(self.remembers))
        plan = windows.plan(batch_tokens=config.batch_tokens, multiple=1, seed=0, epoch=0, shuffle=False)
        total, count = torch.zeros((), dtype=torch.float64, device=device), torch.zeros((), device=device)
        for done, planned in enumerate(plan, 1):
            loss, tokens = self.loss(model, windows.collate(planned).to(device), smoothing=0.0)
            total, count = total + loss, count + tokens
            if on_batch is not None:
                on_batch(done, len(plan))
        reading = "from beginning to end" if self.remembers else f"stride:{stride}"
        signature = f"context:{context}|{reading}|tokens:{int(count)}|line-ends:{self.config.line_ends}"
        return Evaluation(list(_scores(float(total), int(count), text, signature)), examples=int(count))

    def predict(
        self,
        model: Any,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        prefixes: Sequence[str] | None = None,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """How each text goes on; beyond `task.context` tokens a model without memory reads on from the second half."""
        if prefixes is not None:
            raise ConfigError("a text that goes on has no prefix", got="prefixes", wanted="texts that begin with them")
        prompts = [self.prompt(text) for text in sources]
        if self._fits(prompts, config):
            found = self._decode(model, prompts, config, device, on_batch, first_index)
            return [self._prediction(prompt, [h.ids for h in row], [h.score for h in row]) for prompt, row in found]
        if config.rows_per_source > 1:
            raise ConfigError(
                "several outputs, or beams, must fit into what the model reads at a time",
                got=f"max_length = {config.max_length}, and a text of {max(map(len, prompts))} tokens",
                wanted=f"at most {self.config.context} together (task.context)",
                remedy='method = "sample" or "greedy" with n_best = 1 goes on beyond it',
            )
        rows = [self._long(model, prompt, config, device, first_index + i) for i, prompt in enumerate(prompts)]
        return [self._prediction(prompt, [ids], [score]) for prompt, (ids, score) in zip(prompts, rows, strict=True)]

    def prompt(self, text: str) -> list[int]:
        """The ids that a model is given to go on with; where there are none, the end of the line before."""
        special, (ids,) = self.tokenizer.specials, self.tokenizer.encode_batch([text])
        if self.config.line_ends == "token":
            return [special.end, *ids]
        return ids or self.tokenizer.encode_batch(["\n"])[0] or [special.end]

    def _fits(self, prompts: list[list[int]], config: DecodeConfig) -> bool:
        return self.remembers or max(map(len, prompts), default=0) + config.max_length <= self.config.context

    def _decode(
        self,
        model: Any,
        prompts: list[list[int]],
        config: DecodeConfig,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[tuple[list[int], list[Hypothesis]]]:
        """What comes after each prompt, without the prompt."""
        special = self.tokenizer.specials
        begun = all(prompt[0] == special.end for prompt in prompts)
        found = decode(
            model,
            [()] * len(prompts),
            config,
            bos=special.end if begun else None,
            eos=special.end,
            pad=special.pad,
            device=device,
            prefixes=[prompt[begun:] for prompt in prompts],
            on_batch=on_batch,
            first_index=first_index,
        )
        pairs = zip(prompts, found, strict=True)
        return [(prompt, [replace(h, ids=h.ids[len(prompt) - begun :]) for h in row]) for prompt, row in pairs]

    def _long(
        self, model: Any, prompt: list[int], config: DecodeConfig, device: torch.device, index: int
    ) -> tuple[tuple[int, ...], float]:
        """An output in several readings, each of which begins with the last half of what was read and written."""
        context, ids, log_prob = self.config.context, list(prompt), 0.0
        while (left := config.max_length - (len(ids) - len(prompt))) > 0:
            read = ids if len(ids) < context else ids[-max(1, context // 2) :]
            room = min(left, context - len(read))
            shortest, seed = min(config.min_length, room - 1), config.seed + len(ids)
            part = replace(config, max_length=room, min_length=shortest, seed=seed)
            ((_, (found,)),) = self._decode(model, [read], part, device, first_index=index)
            ids += found.ids
            log_prob += found.log_prob
            if found.finished:
                break
        return tuple(ids[len(prompt) :]), log_prob / max(1, len(ids) - len(prompt)) ** config.length_penalty

    def _prediction(self, prompt: list[int], outputs: Sequence[tuple[int, ...]], scores: Sequence[float]) -> Prediction:
        before = len(self.tokenizer.decode(prompt))
        return Prediction(
            texts=tuple(self.tokenizer.decode([*prompt, *ids])[before:] for ids in outputs),
            scores=tuple(scores),
            tokens=tuple(tuple(self.tokenizer.tokens(ids)) for ids in outputs),
            ids=tuple(outputs),
        )

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A text and how it goes on (a text, or the ids that a search found) as one row, and what stands along it."""
        ids = self.prompt(source)
        start = len(ids)
        ids += self.tokenizer.encode_batch([target])[0] if isinstance(target, str) else list(target)
        text, spans = self.tokenizer.spans(ids)
        tokens = self.tokenizer.tokens(ids)
        labels = [NONE] * (start - 1) + ids[start:]
        axes = (
            Axis("source", tuple(tokens[:-1]), tuple(spans[:-1]), text),
            Axis("target", tuple(tokens[1:]), tuple(spans[1:]), text),
        )
        batch = Batch(pad_rows([ids[:-1]], self.tokenizer.specials.pad), pad_rows([labels], NONE))
        return batch, {axis.name: axis for axis in axes}

    def log_probs(self, model: Any, batch: Batch) -> Tensor:
        """The log-probability of each label, 0 where none counts: B x N."""
        assert batch.target is not None
        labels = batch.target.ids
        logits = model.head(model.hidden(batch)).float()
        chosen: Tensor = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[:, :, None])[:, :, 0]
        return chosen * (labels >= 0)

    def examples(self, name: str) -> list[Example]:
        """Pieces of the split, as long as the model reads at a time: the first half, and how it goes on."""
        ids, size = self.text(name, cache_folder()).lines.ids, self.config.context
        pieces = [ids[i : i + size].tolist() for i in range(0, len(ids) - size + 1, size)] or [ids.tolist()]
        cut = [(self.tokenizer.decode(ids[: len(ids) // 2]), self.tokenizer.decode(ids)) for ids in pieces]
        return [Example(first, (whole[len(first) :],)) for first, whole in cut]


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
        raise DataError(f"the recipe names no {name} split", got=f"data.{name} is empty", remedy=f"set data.{name}")
    return found


def _span(data: DataConfig, name: str) -> Span:
    part: dict[str, Part] = {"train": "first", "val": "last"}
    return Span(part[name], data.val_share) if data.val_share and name in part else Span()


def _along(carry: Tensor, x: Tensor) -> Tensor:
    return carry.view(-1, *[1] * (x.dim() - 1))


def _put(memory: State, tensors: Mapping[str, Tensor]) -> None:
    for name, into in {"position": memory.position, **memory.cache}.items():
        into.copy_(tensors[name])


def _scores(total: float, count: int, text: Text, signature: str) -> Iterator[Score]:
    """Every measure of one sum: what a model needs to say the text, a token, a word, a character or a byte."""
    m = text.measures
    yield Score("loss", total / count, signature)
    yield Score("perplexity", math.exp(min(total / count, 700.0)), signature)
    yield Score("word_perplexity", math.exp(min(total / max(1, m.words), 700.0)), signature)
    yield Score("bits_per_character", total / math.log(2) / m.characters, signature)
    yield Score("bits_per_byte", total / math.log(2) / m.bytes, signature)
