"""Language modelling: running text in, a model that goes on with it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import key
from regard.data.batching import NONE
from regard.data.cache import cache_folder
from regard.data.config import DataConfig
from regard.data.text import LineEnds, Text
from regard.data.tokenizers import LOSSLESS, Tokenizer, TokenizerConfig
from regard.data.windows import Windows
from regard.decode.config import DecodeConfig
from regard.decode.loop import finish
from regard.decode.rules import Hypothesis
from regard.decode.search import decode, pad_rows, stream
from regard.decode.speculative import Draft
from regard.errors import ConfigError, require
from regard.models import Causal, Sizes
from regard.tasks.metrics import Evaluation, Score
from regard.tasks.texts import Memory, OnBatch, Paths, batches_of, of_labels, open_tokenizer, text_of
from regard.types import Axis, Batch, Example, Prediction

SUMMARY = "running text in, a model that goes on with it"
KIND = "causal"
FILES = ("tokenizer.json",)
TAKES = ("noise",)
WITHOUT = ("data.max_length", "data.too_long", "train.bucket")  # task.context says how much is read at a time


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a language modelling recipe."""

    context: int = key(256, "tokens that are read at a time")
    stride: int = key(
        0,
        "`evaluate`: how far the window moves on each time; 0 = context. Less is slower, but every token sees more",
        may_change=True,
    )
    line_ends: LineEnds = key("text", "text: a line's end is a character as any other; token: it is </s>, and a word")
    label_smoothing: float = key(
        0.0, "share of the probability that is spread over all tokens in training", may_change=True
    )

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
        # what stands before a text that begins: the end of a line, as a character or as a token
        newline = tokenizer.encode_batch(["\n"])[0] if config.line_ends == "text" else []
        self.line_end = newline or [tokenizer.specials.end]
        self.remembers = False
        self.memory = Memory()

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: its tokenizer is loaded, or trained on the training split and saved there."""
        file = folder / FILES[0]
        if not file.exists() and config.line_ends == "text" and tokenizer.kind not in LOSSLESS:
            raise _drops_line_ends(f'tokenizer.kind = "{tokenizer.kind}"')
        found = open_tokenizer(file, tokenizer, data, paths, line_ends=config.line_ends)
        return cls(config, data, paths=paths, tokenizer=found)

    def text(self, name: str, cache: Path) -> Text:
        """A split as ids."""
        if self.config.line_ends == "text" and not self.tokenizer.encode_batch(["\n"])[0]:
            raise _drops_line_ends("the tokenizer of the base")
        return text_of(name, self.tokenizer, self.data, self.paths, cache, line_ends=self.config.line_ends)

    def dress(self, model: Any) -> Any:
        """The model as it is; the task learns whether it has a memory, which decides how a text is read."""
        # a memory may have room for nothing
        self.remembers = hasattr(model, "remember") and any(x.numel() for x in model.empty_memory(1).cache.values())
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
        """The states of a segment, where each row that goes on does so with what is remembered of it."""
        hidden: Tensor
        hidden, memory = model.remember(batch, self.memory.of(model, carry))
        self.memory.keep(model, memory)
        return hidden

    def tensors(self) -> dict[str, Tensor]:
        """The memory of the training."""
        return self.memory.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes up what `tensors` gave."""
        self.memory.restored = tensors

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
        """Loss and perplexity a token, perplexity a word, bits a character and a byte, over all tokens but the first.

        A model with a memory reads the text from its beginning to its end; any other in windows, `task.stride` apart.
        """
        text, context = self.text(split, cache_folder()), self.config.context
        stride = context if self.remembers else self.config.stride or context
        windows = Windows(text, context, stride, self.remembers, num_rows=int(self.remembers))
        total, count = (torch.zeros((), dtype=dtype, device=device) for dtype in (torch.float64, torch.long))
        for batch in batches_of(windows, config.batch_tokens, device, on_batch):
            loss, tokens = self.loss(model, batch, smoothing=0.0)
            total, count = total + loss, count + tokens
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
        on_batch: OnBatch | None = None,
        first_index: int = 0,
        draft: Draft | None = None,
    ) -> list[Prediction]:
        """How each text goes on; beyond `task.context` tokens a model without memory reads on from the second half."""
        prompts = [self.prompt(text) for text in sources]
        if not config.streams and not all(self._fits(prompt, config) for prompt in prompts):
            raise ConfigError(
                "several outputs, or beams, must fit into what the model reads at a time",
                got=f"max_length = {config.max_length}, and a text of {max(map(len, prompts))} tokens",
                wanted=f"at most {self.config.context + 1} together (task.context + 1)",
                remedy='method = "sample" or "greedy" with n_best = 1 goes on beyond it',
            )
        answers: list[list[Hypothesis]] = []
        # those that fit are searched together, run by run, so that each keeps its place, on which draws depend
        for fits, group in itertools.groupby(prompts, lambda prompt: self._fits(prompt, config)):
            run, done = list(group), len(answers)
            if fits:
                tell = None if on_batch is None else _from(done, len(prompts), on_batch)
                answers += self._decode(model, run, config, device, tell, first_index + done, draft)
                continue
            for prompt in run:
                output = self._long(model, prompt, config, device, first_index + len(answers), draft)
                answers.append([finish(output)])
                if on_batch is not None:
                    on_batch(len(answers), len(prompts))
        return [self._prediction(*pair) for pair in zip(prompts, answers, strict=True)]

    def generate(
        self,
        model: Any,
        source: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        index: int = 0,
        draft: Draft | None = None,
    ) -> Iterator[str]:
        """How one text goes on, piece by piece."""
        prompt = self.prompt(source)
        return self.tokenizer.pieces(self._long(model, prompt, config, device, index, draft), prompt)

    def prompt(self, text: str) -> list[int]:
        """The ids that a model is given to go on with; where there are none, the end of the line before."""
        (ids,) = self.tokenizer.encode_batch([text])
        if self.config.line_ends == "token":
            return [*self.line_end, *ids]
        return [*self.tokenizer.before, *ids] or self.line_end

    def _fits(self, prompt: list[int], config: DecodeConfig) -> bool:
        return self.remembers or len(prompt) + config.max_length <= self._places(config)

    def _places(self, config: DecodeConfig) -> int:
        """How many tokens there is room for: the last that is written need not be read, unless candidates are."""
        return self.config.context + (config.method != "contrastive")

    def _decode(
        self,
        model: Any,
        prompts: list[list[int]],
        config: DecodeConfig,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
        draft: Draft | None = None,
    ) -> list[list[Hypothesis]]:
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
            draft=draft,
        )
        pairs = zip(prompts, found, strict=True)
        return [[replace(h, ids=h.ids[len(prompt) - begun :]) for h in row] for prompt, row in pairs]

    def _long(
        self,
        model: Any,
        prompt: list[int],
        config: DecodeConfig,
        device: torch.device,
        index: int,
        draft: Draft | None,
    ) -> Generator[int, None, Hypothesis]:
        """An output in as many readings as it needs, token by token, and in the end all of it.

        After the first, each reading begins with the last half of what was read and written; a model with memory reads
        on and on.
        """
        context, special = self.config.context, self.tokenizer.specials
        ids, log_prob, finished = list(prompt), 0.0, False
        while not finished and (done := len(ids) - len(prompt)) < config.max_length:
            read = ids if self.remembers or len(ids) < context else ids[-max(1, context // 2) :]
            left = config.max_length - done
            room = left if self.remembers else min(left, self._places(config) - len(read))
            shortest = min(max(0, config.min_length - done), room - 1)
            part = replace(config, max_length=room, min_length=shortest, seed=config.seed + done)
            begun = read[0] == special.end
            found = yield from stream(
                model,
                (),
                part,
                bos=special.end if begun else None,
                eos=special.end,
                pad=special.pad,
                device=device,
                prefix=read[begun:],
                index=index,
                draft=draft,
            )
            new = found.ids[len(read) - begun :]
            ids += new
            log_prob += found.log_prob
            # where rules leave nothing but the end there is no more to come, however short it is
            finished = found.finished and (not new or len(ids) - len(prompt) >= config.min_length)
        length = len(ids) - len(prompt) + finished
        return Hypothesis(tuple(ids[len(prompt) :]), log_prob, log_prob / length**config.length_penalty, finished)

    def _prediction(self, prompt: list[int], outputs: Sequence[Hypothesis]) -> Prediction:
        before = len(self.tokenizer.decode(prompt))
        return Prediction(
            texts=tuple(self.tokenizer.decode([*prompt, *output.ids])[before:] for output in outputs),
            scores=tuple(output.score for output in outputs),
            tokens=tuple(tuple(self.tokenizer.tokens(output.ids)) for output in outputs),
            ids=tuple(output.ids for output in outputs),
        )

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A text and how it goes on as one row, and what stands along it.

        How it goes on is a text, or the ids that a search found: of these, as many as the model reads at a time.
        """
        ids = self.prompt(source)
        start = len(ids)
        room = len(target) if self.remembers else max(1, self.config.context + 1 - start)
        ids += self.tokenizer.encode_batch([target])[0] if isinstance(target, str) else list(target[:room])
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
        return of_labels(model.head(model.hidden(batch)), batch.target.ids)

    def examples(self, name: str) -> list[Example]:
        """Pieces of the split, as long as the model reads at a time: the first half, and how it goes on."""
        ids, size = self.text(name, cache_folder()).lines.ids, self.config.context
        pieces = [ids[i : i + size].tolist() for i in range(0, len(ids) - size + 1, size)] or [ids.tolist()]
        cut = [(self.tokenizer.decode(ids[: len(ids) // 2]), self.tokenizer.decode(ids)) for ids in pieces]
        return [Example(first, (whole[len(first) :],)) for first, whole in cut]


def _from(done: int, total: int, on_batch: OnBatch) -> OnBatch:
    """Tells of a part of the texts what it is of all of them."""
    return lambda more, _: on_batch(done + more, total)


def _drops_line_ends(tokenizer: str) -> ConfigError:
    return ConfigError(
        "the tokenizer drops the ends of lines",
        got=f'{tokenizer} with task.line_ends = "text"',
        wanted=f"{' or '.join(LOSSLESS)}, which keep them",
        remedy='task.line_ends = "token"',
    )


def _scores(total: float, count: int, text: Text, signature: str) -> Iterator[Score]:
    """Every measure of one sum: what a model needs to say the text, a token, a word, a character or a byte."""
    m = text.measures
    yield Score("loss", total / count, signature)
    yield Score("perplexity", math.exp(min(total / count, 700.0)), signature)
    yield Score("word_perplexity", math.exp(min(total / max(1, m.words), 700.0)), signature)
    yield Score("bits_per_character", total / math.log(2) / m.characters, signature)
    yield Score("bits_per_byte", total / math.log(2) / m.bytes, signature)
