"""Linear-chain conditional random fields (Lafferty et al. 2001): the tags of a row depend on their neighbours.

    score(y) = start[y_1] + sum_t emission[t, y_t] + sum_t transition[y_(t-1), y_t] + end[y_n]
    p(y)     = exp(score(y)) / Z, with Z the sum over all y

Rows are padded at the right, `lengths` says what is real. The device is never asked for a value.

Shapes: B rows, N places, C tags.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Chain(NamedTuple):
    """What tags are worth beside each other: from row to column, at the beginning, at the end."""

    transitions: Tensor  # C x C
    start: Tensor  # C
    end: Tensor  # C


def forward(emissions: Tensor, chain: Chain) -> Tensor:
    """log of the sum over all ways to each tag of each place, that tag's emission included: B x N x C."""
    found = [chain.start + emissions[:, 0]]
    for emission in emissions[:, 1:].unbind(1):
        found.append((found[-1][:, :, None] + chain.transitions).logsumexp(1) + emission)
    return torch.stack(found, 1)


def backward(emissions: Tensor, chain: Chain, lengths: Tensor) -> Tensor:
    """log of the sum over all ways on from each tag of each place to the row's end: B x N x C."""
    end = chain.end.expand_as(emissions[:, 0])
    found = [end]
    for place in range(emissions.shape[1] - 1, 0, -1):
        on = (chain.transitions + (emissions[:, place] + found[-1])[:, None]).logsumexp(-1)
        found.append(torch.where((place < lengths)[:, None], on, end))
    return torch.stack(found[::-1], 1)


def log_partition(alphas: Tensor, chain: Chain, lengths: Tensor) -> Tensor:
    """log Z of each row, from what `forward` gave: B."""
    return (_at_end(alphas, lengths) + chain.end).logsumexp(-1)


def path_scores(emissions: Tensor, tags: Tensor, chain: Chain, lengths: Tensor) -> Tensor:
    """The score of these tags (B x N), 0 for a row of no length: B."""
    real = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]
    own = emissions.gather(-1, tags[:, :, None])[:, :, 0] * real
    pairs = tags[:, :-1] * len(chain.end) + tags[:, 1:]
    # not by two indices: their gradient is slow
    steps = chain.transitions.flatten().index_select(0, pairs.flatten()).view_as(pairs) * real[:, 1:]
    last = _at_end(tags[:, :, None], lengths)[:, 0]
    edges = (chain.start.index_select(0, tags[:, 0]) + chain.end.index_select(0, last)) * (lengths > 0)
    return own.sum(1) + steps.sum(1) + edges


def log_marginals(emissions: Tensor, chain: Chain, lengths: Tensor) -> Tensor:
    """log p(tag at a place) over all taggings of a row: B x N x C; what lies after a row's end means nothing."""
    alphas = forward(emissions, chain)
    return alphas + backward(emissions, chain, lengths) - log_partition(alphas, chain, lengths)[:, None, None]


def viterbi(emissions: Tensor, chain: Chain, lengths: Tensor) -> Tensor:
    """The tags of the highest score: B x N; after a row's end its last tag goes on."""
    best, came = chain.start + emissions[:, 0], []
    stay = torch.arange(emissions.shape[2], device=emissions.device).expand_as(best)
    for place in range(1, emissions.shape[1]):
        scores, before = (best[:, :, None] + chain.transitions).max(1)
        real = (place < lengths)[:, None]
        best = torch.where(real, scores + emissions[:, place], best)
        came.append(torch.where(real, before, stay))
    found = [(best + chain.end).argmax(-1, keepdim=True)]
    for before in reversed(came):
        found.append(before.gather(1, found[-1]))
    return torch.cat(found[::-1], 1)


class Sums(NamedTuple):
    """All that is known of one row, without padding: its emissions, `forward` and `backward` (each N x C)."""

    emissions: Tensor
    alphas: Tensor
    betas: Tensor
    chain: Chain


def stretch_log_prob(sums: Sums, first: int, tags: Sequence[int], *, before: Tensor, after: Tensor) -> Tensor:
    """log p(these tags stand from place `first` on, and beside them only what `before` and `after` (C) allow)."""
    (emissions, alphas, betas, chain), stop = sums, first + len(tags)
    total = alphas[first, tags[0]] if first == 0 else emissions[first, tags[0]]
    if first > 0:
        into = alphas[first - 1] + chain.transitions[:, tags[0]]
        total = total + into.masked_fill(~before, -torch.inf).logsumexp(0)
    for place, (tag, following) in enumerate(itertools.pairwise(tags), first + 1):
        total = total + chain.transitions[tag, following] + emissions[place, following]
    if stop == len(emissions):
        total = total + chain.end[tags[-1]]
    else:
        on = chain.transitions[tags[-1]] + emissions[stop] + betas[stop]
        total = total + on.masked_fill(~after, -torch.inf).logsumexp(0)
    return total - (alphas[-1] + chain.end).logsumexp(0)


def _at_end(values: Tensor, lengths: Tensor) -> Tensor:
    """What stands at the last real place of each row: B x N x C -> B x C."""
    place = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, values.shape[2])
    return values.gather(1, place)[:, 0]
