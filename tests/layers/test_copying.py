"""Copying, as See et al. (2017, eq. 8 and 9) write it, and a head whose logits are log-probabilities."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from regard.errors import ConfigError
from regard.layers.copying import CopyHead, Copying
from regard.look.collect import observe
from regard.models import Sizes, build, family
from regard.types import Batch, Sequences

EXACT = {"rtol": 0.0, "atol": 1e-12}
V, D = 11, 6


@pytest.fixture(autouse=True)
def float64() -> None:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def parts() -> tuple[Copying, CopyHead, Tensor, Tensor, Sequences]:
    """The two modules, states 3 x 4 x D, a memory 3 x 5 x 8, and a source in which tokens come twice."""
    copying, head = Copying(D, 8, V), CopyHead(D, V, bias=True)
    for parameter in (*copying.parameters(), *head.parameters()):
        nn.init.normal_(parameter)
    ids = torch.tensor([[4, 7, 4, 4, 3], [5, 3, 9, 9, 9], [2, 6, 6, 3, 9]])
    return copying, head, torch.randn(3, 4, D), torch.randn(3, 5, 8), Sequences(ids, torch.tensor([5, 2, 4]))


def directly(copying: Copying, head: CopyHead, states: Tensor, memory: Tensor, source: Sequences) -> Tensor:
    """p_gen P_vocab(w) + (1 - p_gen) sum over i with w_i = w of a_i, one place after the other."""
    found = torch.zeros(len(states), states.shape[1], V)
    for row in range(len(states)):
        length = int(source.lengths[row])
        keys = memory[row, :length] @ copying.keys.weight.T
        for place in range(states.shape[1]):
            state = states[row, place]
            query = copying.query.weight @ state + copying.query.bias
            weights = (keys @ query / 8**0.5).softmax(0)
            generate = 1 / (1 + torch.exp(-(head.gate.weight[0] @ state + head.gate.bias[0])))
            found[row, place] = generate * (head.weight @ state + head.bias).softmax(0)
            for i in range(length):
                found[row, place, source.ids[row, i]] += (1 - generate) * weights[i]
    return found


def test_the_mixture_is_that_of_the_paper(parts: tuple[Copying, CopyHead, Tensor, Tensor, Sequences]) -> None:
    copying, head, states, memory, source = parts
    hidden = copying(states, copying.keys(memory), source)
    assert hidden.shape == (3, 4, D + V)
    log_p = head(hidden)
    wanted = directly(copying, head, states, memory, source)
    assert_close(log_p.exp(), wanted, **EXACT)
    assert_close(log_p.exp().sum(-1), torch.ones(3, 4), **EXACT)
    assert_close(log_p.log_softmax(-1), log_p, **EXACT)  # as a search reads them


def test_gradients_are_those_of_the_mixture(parts: tuple[Copying, CopyHead, Tensor, Tensor, Sequences]) -> None:
    copying, head, states, memory, source = parts
    labels = torch.tensor([[4, 7, 1, 3], [5, -100, 3, 0], [6, 6, 10, -100]])
    parameters = [*copying.parameters(), *head.parameters()]
    for smoothing in (0.0, 0.1):
        wanted = directly(copying, head, states, memory, source).log()
        real = labels >= 0
        chosen = wanted.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        loss = -(((1 - smoothing) * chosen + smoothing * wanted.mean(-1)) * real).sum()
        hidden = copying(states, copying.keys(memory), source).flatten(0, 1)
        found = head.loss(hidden, labels.flatten(), smoothing)
        assert_close(found, loss, **EXACT)
        assert_close(torch.autograd.grad(found, parameters), torch.autograd.grad(loss, parameters), **EXACT)
        entropy = F.cross_entropy(head(hidden), labels.flatten(), reduction="sum", label_smoothing=smoothing)
        assert_close(entropy, loss, **EXACT)


def test_an_empty_source_is_not_copied_from(parts: tuple[Copying, CopyHead, Tensor, Tensor, Sequences]) -> None:
    copying, head, states, memory, source = parts
    empty = Sequences(source.ids, torch.tensor([5, 0, 4]))
    hidden = copying(states, copying.keys(memory), empty)
    assert not hidden[1, :, D:].any()
    labels = torch.full((12,), 3).masked_fill(torch.arange(12) // 4 == 1, -100)
    head.loss(hidden.flatten(0, 1), labels).backward()
    assert all(parameter.grad.isfinite().all() for parameter in copying.parameters())


def test_in_bf16_probabilities_stay_exact_enough() -> None:
    torch.set_default_dtype(torch.float32)
    copying, head = Copying(D, 8, V), CopyHead(D, V)
    source = Sequences(torch.randint(V, (2, 5)), torch.tensor([5, 3]))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = copying(torch.randn(2, 4, D), copying.keys(torch.randn(2, 5, 8)), source)
        log_p = head(hidden)
    assert log_p.dtype == torch.float32
    assert_close(log_p.exp().sum(-1), torch.ones(2, 4), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["transformer", "recurrent"])
def test_copying_is_observed_and_needs_one_vocabulary(name: str) -> None:
    config = family(name).Config(copy=True, **family(name).PRESETS["tiny"])
    with pytest.raises(ConfigError) as error:
        build(name, config, Sizes(V, V, shared=False), "seq2seq")
    assert str(error.value) == (
        "what is copied from the source must be in the vocabulary of the target\n"
        "  got:    two vocabularies, model.copy = true\n  wanted: one\n"
        "  try:    tokenizer.shared = true, or model.copy = false"
    )
    model = build(name, config, Sizes(V, V, shared=True), "seq2seq").eval()
    source = Sequences(torch.randint(V, (1, 5)), torch.tensor([5]))
    target = Sequences(torch.randint(V, (1, 4)), torch.tensor([4]))
    with torch.no_grad(), observe(model) as trace:
        hidden = model.hidden(Batch(source, target))
    view = trace[-1]
    assert (view.name, view.kind, view.rows_axis, view.keys_axis) == ("decoder.copying", "cross", "target", "source")
    weights = view.rows(range(3))[0, 0]  # 3 x 5
    copied = torch.zeros(3, V).index_add(1, source.ids[0], weights)
    assert_close(hidden[0, :, -V:], copied, rtol=0, atol=1e-9)


def test_a_recurrent_model_without_attention_has_nothing_to_copy_by() -> None:
    with pytest.raises(ConfigError, match="who copies looks at its source"):
        family("recurrent").Config(copy=True, attention="none")
