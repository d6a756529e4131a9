"""Linear-chain CRFs against every path, one by one, in float64: sums, gradients, marginals, the best path, spans."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from regard.ops import crf

TAGS, LENGTHS = 3, (4, 1, 3, 0)
NEVER = -1e4


def draw(seed: int = 0, *, illegal: bool = False) -> tuple[Tensor, crf.Chain, Tensor]:
    """Emissions of four rows, one of them empty, and a chain, perhaps with tags that may not follow others."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    chain = crf.Chain(normal(TAGS, TAGS), normal(TAGS), normal(TAGS))
    if illegal:
        chain.transitions[0, 2] = chain.transitions[1, 0] = chain.start[2] = chain.end[1] = NEVER
    return normal(len(LENGTHS), max(LENGTHS), TAGS), chain, torch.tensor(LENGTHS)


def score(emissions: Tensor, path: tuple[int, ...], chain: crf.Chain) -> Tensor:
    """What a path is worth, by its definition."""
    total = chain.start[path[0]] + chain.end[path[-1]]
    for place, tag in enumerate(path):
        total = total + emissions[place, tag]
    for before, tag in itertools.pairwise(path):
        total = total + chain.transitions[before, tag]
    return total


def every(emissions: Tensor, length: int, chain: crf.Chain) -> tuple[list[tuple[int, ...]], Tensor]:
    paths = list(itertools.product(range(TAGS), repeat=length))
    return paths, torch.stack([score(emissions, path, chain) for path in paths])


@pytest.mark.parametrize("illegal", [False, True])
def test_sums_are_those_over_every_path(illegal: bool) -> None:
    emissions, chain, lengths = draw(illegal=illegal)
    alphas = crf.forward(emissions, chain)
    found = crf.log_partition(alphas, chain, lengths)
    best, marginals = crf.viterbi(emissions, chain, lengths), crf.log_marginals(emissions, chain, lengths)
    for row, length in enumerate(LENGTHS):
        if not length:
            continue
        paths, scores = every(emissions[row], length, chain)
        torch.testing.assert_close(found[row], scores.logsumexp(0))
        assert tuple(best[row, :length].tolist()) == paths[int(scores.argmax())]
        for place, tag in itertools.product(range(length), range(TAGS)):
            with_it = torch.stack([s for path, s in zip(paths, scores, strict=True) if path[place] == tag])
            torch.testing.assert_close(marginals[row, place, tag], with_it.logsumexp(0) - scores.logsumexp(0))


def test_the_score_of_a_path_and_of_none() -> None:
    emissions, chain, lengths = draw(1)
    tags = torch.tensor([[2, 0, 1, 1], [1, 0, 0, 0], [0, 0, 2, 1], [2, 2, 2, 2]])
    found = crf.path_scores(emissions, tags, chain, lengths)
    for row, length in enumerate(LENGTHS):
        wanted = score(emissions[row], tuple(tags[row, :length].tolist()), chain) if length else torch.tensor(0.0)
        torch.testing.assert_close(found[row], wanted.double())


def test_gradients_are_those_of_every_path_and_padding_has_none() -> None:
    emissions, chain, lengths = draw(2, illegal=True)
    tags = torch.randint(0, TAGS, emissions.shape[:2], generator=torch.Generator().manual_seed(3))
    leaves = [emissions, *chain]
    for leaf in leaves:
        leaf.requires_grad_()
    every_path = crf.log_partition(crf.forward(emissions, chain), chain, lengths) * (lengths > 0)
    loss = (every_path - crf.path_scores(emissions, tags, chain, lengths)).sum()
    found = torch.autograd.grad(loss, leaves)
    plain = torch.zeros(())
    for row, length in enumerate(LENGTHS):
        if length:
            _, scores = every(emissions[row], length, chain)
            plain = plain + scores.logsumexp(0) - score(emissions[row], tuple(tags[row, :length].tolist()), chain)
    torch.testing.assert_close(loss, plain.double())
    for ours, wanted in zip(found, torch.autograd.grad(plain, leaves), strict=True):
        torch.testing.assert_close(ours, wanted)
    padded = torch.arange(emissions.shape[1]) >= lengths[:, None]
    assert not found[0][padded].any()
    assert all(part.isfinite().all() for part in found)


def test_marginals_have_gradients() -> None:
    emissions, chain, lengths = draw(4)

    def of(emissions: Tensor, *chain: Tensor) -> Tensor:
        return crf.log_marginals(emissions, crf.Chain(*chain), lengths)[:3]  # the last row has no place

    assert torch.autograd.gradcheck(of, tuple(part.requires_grad_() for part in (emissions, *chain)))


@pytest.mark.parametrize(("first", "tags"), [(0, (1,)), (1, (2, 0)), (3, (1,)), (0, (0, 1, 2, 1)), (2, (1, 1))])
def test_how_likely_a_stretch_is(first: int, tags: tuple[int, ...]) -> None:
    """Not before tag 0, and not after tag 2."""
    emissions, chain, _ = draw(5)
    row, length = emissions[0], LENGTHS[0]
    before, after = torch.tensor([True, True, False]), torch.tensor([False, True, True])
    paths, scores = every(row, length, chain)
    stop = first + len(tags)
    with_it = [
        own
        for path, own in zip(paths, scores, strict=True)
        if path[first:stop] == tags
        and (first == 0 or before[path[first - 1]])
        and (stop == length or after[path[stop]])
    ]
    alphas, betas = crf.forward(row[None], chain)[0], crf.backward(row[None], chain, torch.tensor([length]))[0]
    sums = crf.Sums(row, alphas, betas, chain)
    found = crf.stretch_log_prob(sums, first, tags, before=before, after=after)
    torch.testing.assert_close(found, torch.stack(with_it).logsumexp(0) - scores.logsumexp(0))
