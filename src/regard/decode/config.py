"""The `[decode]` section of a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from regard.config import key
from regard.errors import ConfigError, require

Method = Literal["beam", "greedy", "sample", "contrastive"]
# the keys that only some methods use
OWN_KEYS: dict[Method, tuple[str, ...]] = {
    "beam": ("beam", "early_stop"),
    "sample": ("temperature", "top_k", "top_p", "min_p", "seed"),
    "contrastive": ("top_k", "penalty"),
}


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How outputs are searched for; every key is explained by its `doc`."""

    method: Method = key("beam", "beam, greedy, sample or contrastive")
    beam: int = key(5, "open hypotheses of each source in beam search; 1 is greedy search")
    length_penalty: float = key(1.0, "an output's score is log_prob / length**length_penalty, its end counted")
    early_stop: bool = key(False, "end a beam search at `beam` finished outputs, not when no better one can come")
    n_best: int = key(1, "outputs of each source, the best first; in a beam search at most `beam`")
    max_length: int = key(256, "most tokens of an output, its end counted")
    max_ratio: float = key(2.0, "most tokens of an output as a multiple of its source's tokens, plus 10")
    min_length: int = key(0, "fewest tokens of an output, its end not counted")
    no_repeat_ngram: int = key(0, "no run of this many tokens comes twice in an output; 0 allows all")
    words: int = key(
        0, "about how many words an output should have, of a run with task.length_control; 0: as usual in training"
    )
    known: bool = key(True, "whether facts of the training split are among the answers, of a link prediction run")
    temperature: float = key(1.0, "sampling: below 1 sharpens the distribution, above 1 flattens it")
    top_k: int = key(
        0, "keep the k likeliest tokens: sampling draws from them (0: from all), contrastive search weighs them"
    )
    top_p: float = key(1.0, "sampling: keep the fewest likeliest tokens with this much probability; 1 keeps all")
    min_p: float = key(0.0, "sampling: keep tokens with this share of the likeliest one's probability; 0 keeps all")
    seed: int = key(1, "sampling: the same seed gives the same outputs, whatever the batch")
    penalty: float = key(0.6, "contrastive: weight of a token's likeness to those before; 0 is greedy search")
    draft_tokens: int = key(5, "with a draft model: how many tokens it guesses at a time")
    batch_tokens: int = key(16384, "most tokens in a batch: sources x beams (or samples) x longest source")

    def __post_init__(self) -> None:
        for name in ("beam", "n_best", "max_length", "draft_tokens", "batch_tokens"):
            _at_least(name, getattr(self, name), 1)
        for name in ("min_length", "no_repeat_ngram", "words", "top_k"):
            _at_least(name, getattr(self, name), 0)
        # Bounds far beyond any use, which keep length**penalty and logits / temperature finite; they refuse nan too.
        _within("length_penalty", self.length_penalty, 0 <= self.length_penalty <= 10, "0 to 10")
        _within("max_ratio", self.max_ratio, 0 < self.max_ratio <= 1e6, "above 0, at most 1000000")
        _within("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1")
        _within("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1")
        _within("penalty", self.penalty, 0 <= self.penalty <= 1, "0 to 1")
        require(
            0.001 <= self.temperature <= 1000,
            "temperature is out of range",
            got=self.temperature,
            wanted="0.001 to 1000, for example 0.8",
            remedy='method = "greedy" is the limit of temperature 0',
        )
        require(
            self.min_length < self.max_length,
            f"min_length ({self.min_length}) leaves no room below max_length ({self.max_length})",
            got=self.min_length,
            wanted=f"at most {self.max_length - 1}",
        )
        require(
            self.method != "contrastive" or self.top_k > 0,
            "contrastive search weighs the top_k likeliest tokens",
            got=f"top_k = {self.top_k}",
            wanted="1 or more, for example 5",
        )

    def need_outputs(self) -> None:
        """Raises where the search cannot have `n_best` outputs; a task that searches nothing need not ask."""
        require(
            self.method != "beam" or self.n_best <= self.beam,
            f"n_best ({self.n_best}) must not be larger than beam ({self.beam})",
            got=self.n_best,
            wanted=f"at most {self.beam}",
            remedy="a larger beam",
        )
        require(
            self.method not in ("greedy", "contrastive") or self.n_best == 1,
            f"{self.method} search has one output",
            got=f"n_best = {self.n_best}",
            wanted="n_best = 1",
            remedy='method = "beam" or "sample" gives more',
        )

    @property
    def rows_per_source(self) -> int:
        """Rows of the batch that one source takes."""
        return {"beam": self.beam, "greedy": 1, "sample": self.n_best, "contrastive": self.top_k}[self.method]

    @property
    def streams(self) -> bool:
        """Whether there is one output, of which no token is taken back."""
        return self.n_best == 1 and (self.method != "beam" or self.beam == 1)

    def need_streams(self) -> None:
        """Raises where an output cannot be had token by token."""
        require(
            self.streams,
            "only one output, of which no token is taken back, can be had token by token",
            got=f'method = "{self.method}", n_best = {self.n_best}',
            wanted="greedy, sample or contrastive, n_best = 1",
        )

    def refuse_unused(
        self, names: Iterable[str], *, drafted: bool, controlled: bool = False, sourced: bool = True
    ) -> None:
        """Raises where one of these keys, which somebody has just set, has no part in the method."""
        for name in names:
            if name == "max_ratio" and not sourced:
                wanted = "max_length, as there is no source whose length could be multiplied"
                raise ConfigError("max_ratio has no use here", got="max_ratio", wanted=wanted)
            methods = [method for method, keys in OWN_KEYS.items() if name in keys]
            if methods and self.method not in methods:
                raise ConfigError(
                    f'method = "{self.method}" does not use {name}',
                    got=name,
                    wanted=f"{name} with method = {' or '.join(methods)}",
                )
            if name == "draft_tokens" and not drafted:
                raise ConfigError("draft_tokens says how a draft model guesses", got="no draft", wanted="a draft")
            if name == "known":
                wanted = "a run of link prediction"
                raise ConfigError("this run knows no facts that could be left out", got="known", wanted=wanted)
            if name == "words" and not controlled:
                wanted = "a summarization run that was trained with task.length_control = true"
                raise ConfigError("this run cannot be told how long its outputs should be", got="words", wanted=wanted)


def _within(name: str, value: float, holds: bool, wanted: str) -> None:
    require(holds, f"{name} is out of range", got=value, wanted=wanted)


def _at_least(name: str, value: float, least: int) -> None:
    require(value >= least, f"{name} is too small", got=value, wanted=f"at least {least}")
