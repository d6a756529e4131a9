"""The `[decode]` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.config import key
from regard.errors import require


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How outputs are searched for; every key is explained by its `doc`."""

    method: Literal["beam", "greedy", "sample"] = key("beam", "beam, greedy or sample")
    beam: int = key(5, "open hypotheses of each source in beam search; 1 is greedy search")
    length_penalty: float = key(1.0, "an output's score is log_prob / length**length_penalty, its end counted")
    early_stop: bool = key(False, "end a beam search at `beam` finished outputs, not when no better one can come")
    n_best: int = key(1, "outputs of each source, the best first; at most `beam`, or the number of samples")
    max_length: int = key(256, "most tokens of an output, its end counted")
    max_ratio: float = key(2.0, "most tokens of an output as a multiple of its source's tokens, plus 10")
    min_length: int = key(0, "fewest tokens of an output, its end not counted")
    no_repeat_ngram: int = key(0, "no run of this many tokens comes twice in an output; 0 allows all")
    temperature: float = key(1.0, "sampling: below 1 sharpens the distribution, above 1 flattens it")
    top_k: int = key(0, "sampling: keep the k likeliest tokens; 0 keeps all")
    top_p: float = key(1.0, "sampling: keep the fewest likeliest tokens with this much probability; 1 keeps all")
    min_p: float = key(0.0, "sampling: keep tokens with this share of the likeliest one's probability; 0 keeps all")
    seed: int = key(1, "sampling: the same seed gives the same outputs, whatever the batch")
    batch_tokens: int = key(16384, "most tokens in a batch: sources x beams (or samples) x longest source")

    def __post_init__(self) -> None:
        for name in ("beam", "n_best", "max_length", "batch_tokens"):
            _at_least(name, getattr(self, name), 1)
        for name in ("min_length", "no_repeat_ngram", "top_k"):
            _at_least(name, getattr(self, name), 0)
        # Bounds far beyond any use, which keep length**penalty and logits / temperature finite; they refuse nan too.
        _within("length_penalty", self.length_penalty, 0 <= self.length_penalty <= 10, "0 to 10")
        _within("max_ratio", self.max_ratio, 0 < self.max_ratio <= 1e6, "above 0, at most 1000000")
        _within("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1")
        _within("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1")
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
            self.method != "beam" or self.n_best <= self.beam,
            f"n_best ({self.n_best}) must not be larger than beam ({self.beam})",
            got=self.n_best,
            wanted=f"at most {self.beam}",
            remedy="a larger beam",
        )
        require(
            self.method != "greedy" or self.n_best == 1,
            "greedy search has one output",
            got=f"n_best = {self.n_best}",
            wanted="n_best = 1",
            remedy='method = "beam" or "sample" gives more',
        )

    @property
    def rows_per_source(self) -> int:
        """Rows of the batch that one source takes."""
        return {"beam": self.beam, "greedy": 1, "sample": self.n_best}[self.method]


def _within(name: str, value: float, holds: bool, wanted: str) -> None:
    require(holds, f"{name} is out of range", got=value, wanted=wanted)


def _at_least(name: str, value: float, least: int) -> None:
    require(value >= least, f"{name} is too small", got=value, wanted=f"at least {least}")
