"""Drawing outputs at random: temperature, top-k, top-p, min-p, and noise that does not depend on the batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from regard.decode.greedy import SinglePass
from regard.decode.loop import run
from regard.decode.rules import Hypothesis, RuleOptions, Rules, Step, make_rules
from regard.types import State

Sharpen = Callable[[Tensor], Tensor]  # log-probabilities to those that are drawn from


@torch.inference_mode()
def sample(
    step: Step,
    state: State,
    *,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    **options: Unpack[RuleOptions],
) -> list[list[Hypothesis]]:
    """Draws `num_samples` outputs of each source; log-probabilities are the model's own, before any truncation.

    A draw depends on the seed, the source's place in the whole input (`indices`) and the number of the sample
    only, so that it is the same in every batch.
    """
    rules = make_rules(state, **options)
    uniform = noise(rules, range(len(rules.start)) if indices is None else indices, num_samples, seed)
    sharpen = partial(truncate, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return run(sampler(rules, sharpen, uniform), step, state, rules)


def sampler(rules: Rules, sharpen: Sharpen, uniform: Tensor) -> SinglePass:
    """The search that `sample` runs: draws from sharpened log-probabilities by the numbers `uniform`, S x K x T."""

    def choose(log_probs: Tensor, places: Tensor, time: int) -> Tensor:
        return draw(sharpen(log_probs), uniform[places, :, time])

    return SinglePass.make(rules, choose, num_rows=uniform.shape[1])


def truncate(
    log_probs: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """Log-probabilities after the temperature, with -inf for each token that one of the three rules removes.

    top_k keeps the k likeliest tokens; top_p the fewest likeliest tokens that together have probability p;
    min_p those with at least that share of the likeliest one's probability. Each looks at the whole
    distribution, so their order does not matter, and the likeliest token always stays.

    >>> truncate(torch.tensor([0.5, 0.3, 0.2]).log(), top_p=0.6).exp().tolist()
    [0.625, 0.375, 0.0]
    """
    log_probs = (log_probs / temperature).log_softmax(-1)
    kept = torch.ones_like(log_probs, dtype=torch.bool)
    if min_p > 0:
        kept &= log_probs.exp() >= min_p * log_probs.amax(-1, keepdim=True).exp()
    if 0 < top_k < log_probs.shape[-1]:
        kept &= torch.zeros_like(kept).scatter_(-1, log_probs.topk(top_k).indices, True)
    if top_p < 1:
        ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
        probs = ordered.exp()
        before = probs.cumsum(-1) - probs
        kept &= torch.zeros_like(kept).scatter_(-1, order, before < top_p)
    return log_probs.masked_fill(~kept, -torch.inf).log_softmax(-1)


def draw(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """The token where the cumulative probability passes a uniform number of [0, 1); never one of probability 0.

    >>> draw(torch.tensor([0.25, 0.0, 0.75]).log().expand(3, 3), torch.tensor([0.1, 0.3, 0.999])).tolist()
    [0, 2, 2]
    """
    probs = log_probs.exp()
    # A device that sums in parallel need not give sums that rise evenly: only tokens that are kept may be reached.
    reached = probs.cumsum(-1).masked_fill(probs == 0, 0.0)
    total = reached.amax(-1)
    wanted = torch.minimum(uniform.to(total.dtype) * total, torch.nextafter(total, torch.zeros_like(total)))
    return (reached > wanted[..., None]).byte().argmax(-1)


def noise(rules: Rules, indices: Sequence[int], num_samples: int, seed: int | str) -> Tensor:
    """S x K x T numbers of [0, 1), each by the seed, the source, the sample and the time only; made once."""

    # Python's generator is the same on every machine and version.
    def row(index: int, number: int, start: int, end: int) -> list[float]:
        source = random.Random(f"{seed}/{index}/{number}")
        return [0.0] * start + [source.random() for _ in range(start, end)] + [0.0] * (rules.last - end)

    spans = zip(indices, rules.start.tolist(), rules.end.tolist(), strict=True)
    numbers = [[row(index, k, start, end) for k in range(num_samples)] for index, start, end in spans]
    return torch.tensor(numbers, device=rules.start.device)
