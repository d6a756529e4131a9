"""Losses are sums over real tokens, and their hand-made gradients are the true ones."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import losses
from regard.ops.losses import token_cross_entropy

T, D, V = 23, 5, 11


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    labels = torch.randint(0, V, (T,))
    labels[[2, 5, 22]] = -100
    hidden, weight = (torch.randn(n, D).to(dtype).requires_grad_() for n in (T, V))
    return hidden, weight, labels


def plain(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    logits = F.linear(hidden, weight)
    return F.cross_entropy(logits, labels, ignore_index=-100, label_smoothing=smoothing, reduction="sum")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_by_hand(smoothing: float) -> None:
    """- sum over v of q(v) log p(v), q = 1 - e on the label and e / V everywhere (Szegedy et al. 2016, 7)."""
    hidden, weight, labels = problem()
    wanted = 0.0
    for t in range(T):
        if labels[t] == -100:
            continue
        logits = [(hidden[t] @ weight[v]).item() for v in range(V)]
        total = math.log(sum(math.exp(x) for x in logits))
        for v in range(V):
            q = smoothing / V + (1 - smoothing if v == labels[t] else 0.0)
            wanted -= q * (logits[v] - total)
    assert token_cross_entropy(hidden, weight, labels, smoothing).item() == pytest.approx(wanted)


@pytest.mark.parametrize("chunk", [1, 4 * V, 10**6], ids=["a row", "4 rows", "all"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_value_and_gradients(chunk: int, smoothing: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As autograd has them in float64, times whatever came from above; tolerance relative to the largest entry."""
    monkeypatch.setattr(losses, "CHUNK", {"cpu": chunk})
    hidden, weight, labels = problem(dtype)
    loss = token_cross_entropy(hidden, weight, labels, smoothing)
    got = [loss, *torch.autograd.grad(3 * loss, (hidden, weight))]
    wide = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    whole = plain(*wide, labels, smoothing)
    wanted = [whole, *torch.autograd.grad(3 * whole, wide)]
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=0, atol=tolerance * w.abs().max().item())
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert got[1].dtype == got[2].dtype == dtype


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_bias_of_each_token(smoothing: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one more column of the weight, which a hidden state of 1 reads: the plain form in float64 has it there."""
    monkeypatch.setattr(losses, "CHUNK", {"cpu": 4 * V})
    hidden, weight, labels = problem(dtype)
    bias = torch.randn(V).to(dtype).requires_grad_()
    loss = token_cross_entropy(hidden, weight, labels, smoothing, bias)
    got = [loss, *torch.autograd.grad(3 * loss, (hidden, weight, bias))]
    wide = [x.detach().double().requires_grad_() for x in (hidden, weight, bias)]
    columns = torch.cat([wide[0], torch.ones(T, 1).double()], 1), torch.cat([wide[1], wide[2][:, None]], 1)
    whole = plain(*columns, labels, smoothing)
    wanted = [whole, *torch.autograd.grad(3 * whole, wide)]
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=0, atol=tolerance * w.abs().max().item())
    assert got[3].dtype == dtype


def test_parts_add_up_to_the_whole() -> None:
    hidden, weight, labels = problem()
    parts = [token_cross_entropy(hidden[a:b], weight, labels[a:b], 0.1) for a, b in ((0, 3), (3, T))]
    torch.testing.assert_close(sum(parts), token_cross_entropy(hidden, weight, labels, 0.1))


def test_nothing_to_predict_is_zero_with_zero_gradients() -> None:
    hidden, weight, _ = problem()
    loss = token_cross_entropy(hidden, weight, torch.full((T,), -100), 0.1)
    assert loss.item() == 0
    loss.backward()
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_no_gradient_is_made_that_nobody_asked_for() -> None:
    hidden, weight, labels = problem()
    wanted = plain(hidden, weight, labels, 0.1)
    with torch.no_grad():
        torch.testing.assert_close(token_cross_entropy(hidden, weight, labels, 0.1), wanted.detach())
    bias = torch.zeros(V, dtype=torch.float64)
    for i, learns in enumerate((hidden, weight, bias.requires_grad_())):
        given = [x if x is learns else x.detach() for x in (hidden, weight, bias)]
        loss = token_cross_entropy(*given[:2], labels, 0.1, given[2])
        assert loss.grad_fn is not None
        # a frozen weight's is as large as the vocabulary
        made = [x is not None for x in loss.grad_fn.saved_tensors]  # type: ignore[attr-defined]
        assert made[:2] == [i == 0, i == 1]
        got, whole = torch.autograd.grad(loss, learns)[0], plain(hidden, weight, labels, 0.1)
        if i < 2:
            torch.testing.assert_close(got, torch.autograd.grad(whole, learns)[0])


def test_a_gradient_of_the_gradient_is_refused() -> None:
    """The gradients were made with the loss and have no graph: what would come would be a part of the truth."""
    hidden, weight, labels = problem()
    (grad,) = torch.autograd.grad(token_cross_entropy(hidden, weight, labels) ** 2, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.square().sum().backward()


def test_autocast_gives_float32_gradients() -> None:
    hidden, weight, labels = problem(torch.float32)
    wanted = plain(hidden, weight, labels, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = token_cross_entropy(hidden, weight, labels, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, wanted, rtol=1e-2, atol=0)
    pairs = zip(*(torch.autograd.grad(x, (hidden, weight)) for x in (loss, wanted)), strict=True)
    for got, true in pairs:
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, true, rtol=0, atol=2e-2 * true.abs().max().item())


@pytest.mark.parametrize("chunk", [1, 4 * V, 10**6], ids=["a row", "4 rows", "all"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
def test_several_labels_of_a_state(chunk: int, smoothing: float, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the state stood there once for each of them; some states have none."""
    monkeypatch.setattr(losses, "CHUNK", {"cpu": chunk})
    hidden, weight, _ = problem()
    bias = torch.randn(V, dtype=torch.float64).requires_grad_() if biased else None
    labels = torch.where(torch.rand(T, 3) < 0.6, torch.randint(0, V, (T, 3)), -100)
    labels[[0, 7]] = -100
    wrt = (hidden, weight) if bias is None else (hidden, weight, bias)
    loss = token_cross_entropy(hidden, weight, labels, smoothing, bias)
    apart = token_cross_entropy(hidden.repeat_interleave(3, 0), weight, labels.flatten(), smoothing, bias)
    got, wanted = ([x, *torch.autograd.grad(3 * x, wrt)] for x in (loss, apart))
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w)
