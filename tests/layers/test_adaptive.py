"""Adaptive embedding and softmax: each token by hand, and PyTorch's own adaptive softmax."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.errors import ConfigError
from regard.layers.adaptive import AdaptiveEmbedding, AdaptiveHead, AdaptiveTables
from regard.ops import losses

EXACT = {"rtol": 0.0, "atol": 1e-10}
SIZE, DIM, CUTOFFS, SHRINK = 30, 12, (5, 11), 3


def tables() -> AdaptiveTables:
    return AdaptiveTables(SIZE, DIM, CUTOFFS, SHRINK)


def theirs(head: AdaptiveHead) -> nn.AdaptiveLogSoftmaxWithLoss:
    """PyTorch's module with the same weights."""
    module = nn.AdaptiveLogSoftmaxWithLoss(DIM, SIZE, list(CUTOFFS), div_value=SHRINK)
    shortlist, *bands = head.tables.bands
    with torch.no_grad():
        module.head.weight.copy_(torch.cat([shortlist, head.gates]))
        for (down, out), band, own in zip(module.tail, bands, head.down, strict=True):
            down.weight.copy_(own.weight)
            out.weight.copy_(band)
    return module


def test_each_token_has_the_vector_of_its_band() -> None:
    layer = AdaptiveEmbedding(tables())
    found = layer(torch.arange(SIZE).view(5, 6)).view(SIZE, DIM)
    shortlist, first, second = layer.tables.bands
    assert [band.shape for band in layer.tables.bands] == [(5, 12), (6, 4), (19, 1)]
    for token in range(SIZE):
        if token < 5:
            wanted = shortlist[token]
        elif token < 11:
            wanted = layer.up[0].weight @ first[token - 5]
        else:
            wanted = layer.up[1].weight @ second[token - 11]
        assert_close(found[token], wanted, **EXACT)


def test_log_probabilities_are_pytorchs() -> None:
    head, x = AdaptiveHead(tables()), torch.randn(4, 7, DIM)
    found = head(x)
    assert_close(found.exp().sum(-1), torch.ones(4, 7), **EXACT)
    assert_close(found.flatten(0, 1), theirs(head).log_prob(x.flatten(0, 1)), **EXACT)


def test_loss_and_gradients_are_pytorchs() -> None:
    head, x = AdaptiveHead(tables()), torch.randn(40, DIM, requires_grad=True)
    labels = torch.randint(SIZE, (40,))
    module = theirs(head)
    loss, wanted = head.loss(x, labels), module(x, labels).loss * 40
    assert_close(loss, wanted, **EXACT)
    assert_close(loss, -head(x).gather(1, labels[:, None]).sum(), **EXACT)
    ours = [x, head.gates, *head.tables.bands, *(down.weight for down in head.down)]
    outer, *tails = torch.autograd.grad(
        wanted, [module.head.weight, *(part.weight for tail in module.tail for part in tail)]
    )
    expected = [torch.autograd.grad(module(x, labels).loss * 40, x)[0], outer[5:], outer[:5], *tails[1::2], *tails[::2]]
    for found, right in zip(torch.autograd.grad(loss, ours), expected, strict=True):
        assert_close(found, right, **EXACT)


@pytest.mark.parametrize("low", [0, 5, 11])
def test_labels_that_leave_bands_empty(low: int) -> None:
    """And those under 0, which count nothing: the gradients are there and finite."""
    head, x = AdaptiveHead(tables()), torch.randn(8, DIM, requires_grad=True)
    labels = torch.tensor([low, low + 1, low + 4, -100, low, -1, low + 2, -100])
    loss = head.loss(x, labels)
    real = labels >= 0
    assert_close(loss, -head(x[real]).gather(1, labels[real, None]).sum(), **EXACT)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())
    assert x.grad is not None
    assert (x.grad[~real] == 0).all()


def test_a_band_makes_logits_of_its_own_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    whole = losses.token_cross_entropy

    def counted(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        made.append((len(hidden), len(weight)))
        return whole(hidden, weight, labels, smoothing)

    monkeypatch.setattr(losses, "token_cross_entropy", counted)
    labels = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 5, 10, 29])
    AdaptiveHead(tables()).loss(torch.randn(11, DIM), labels)
    assert made == [(2, 6), (1, 19), (11, 7)]  # tokens x logits of each: 113 and not 11 x 30


def test_tied_tables_are_one_parameter() -> None:
    shared = tables()
    model = nn.ModuleList([AdaptiveEmbedding(shared), AdaptiveHead(shared)])
    assert sum(p.numel() for p in model.parameters()) == 5 * 12 + 6 * 4 + 19 + 2 * (4 * 12 + 12) + 2 * 12


def test_an_adaptive_softmax_smooths_no_labels() -> None:
    with pytest.raises(ConfigError, match=r"smooths no labels\n  got:    0.1\n  wanted: label_smoothing = 0"):
        AdaptiveHead(tables()).loss(torch.randn(1, DIM), torch.tensor([0]), 0.1)


@pytest.mark.parametrize("cutoffs", [(), (0, 5), (5, 5), (7, 3), (5, SIZE)])
def test_cutoffs_that_cannot_be_meant(cutoffs: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="cutoffs must rise, and stay under the size of the vocabulary") as caught:
        AdaptiveTables(SIZE, DIM, cutoffs, SHRINK)
    assert f"got:    {list(cutoffs)} of 30 tokens\n  wanted: 0 < first < next < 30" in str(caught.value)


def test_bands_too_narrow() -> None:
    with pytest.raises(ConfigError, match=r"the last band has no width left\n  got:    12 / 4\^2"):
        AdaptiveTables(SIZE, DIM, CUTOFFS, 4)
