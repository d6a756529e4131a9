"""Transformer-XL: the paper's equations a pair of tokens at a time, and memory as attention to a longer text.

No library has this model any more, so its oracle is here: `paper` follows Dai et al. 2019, 3.2 and 3.3, with loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config import read_section
from regard.errors import ConfigError, RegardError
from regard.look.collect import observe
from regard.models import Sizes, with_preset
from regard.models import transformer_xl as family
from regard.ops.attention import backends_used
from regard.ops.masks import visible
from regard.types import Batch, Sequences, State

EXACT = {"rtol": 0.0, "atol": 1e-10}
VOCABULARY, LAYERS, DIM, HEADS = 23, 3, 12, 3
FORMS: list[dict[str, Any]] = [
    {},
    {"share_biases": False, "tie_embeddings": False},
    {"norm_first": True},
    {"clamp": 3},
    {"same_length": True},
    {"cutoffs": [4, 9]},
    {"cutoffs": [8], "tie_embeddings": False, "norm_first": True, "activation": "swiglu"},
    {"backend": "reference", "activation": "gelu"},
]
every_form = pytest.mark.parametrize(
    "form", FORMS, ids=lambda form: " ".join(f"{k}={v}" for k, v in form.items()) or "-"
)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def config(**form: Any) -> family.Config:
    small = {"layers": LAYERS, "model_dim": DIM, "num_heads": HEADS, "ffn_dim": 16, "memory": 5, "shrink": 3}
    return read_section(family.Config, with_preset("transformer_xl", {**small, **form}), where="this test")


def build(**form: Any) -> family.TransformerXL:
    """The model, with no parameter left at a zero that would hide what it does."""
    model = family.build(config(**form), Sizes(VOCABULARY, VOCABULARY, True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def batch(ids: Tensor, lengths: list[int] | None = None) -> Batch:
    return Batch(Sequences(ids, torch.tensor(lengths or [ids.shape[1]] * len(ids))))


def stream(model: family.TransformerXL, ids: Tensor, sizes: list[int], memory: State) -> tuple[Tensor, State]:
    """The states of a stream that is read in segments of these sizes."""
    found = []
    for part in ids.split(sizes, dim=1):
        hidden, memory = model.remember(batch(part), memory)
        found.append(hidden)
    return torch.cat(found, dim=1), memory


# --- the paper --------------------------------------------------------------------------------------------------------


def paper(model: family.TransformerXL, ids: Tensor, sizes: list[int], room: int, *, clamp: int = 0) -> Tensor:
    """h^n of one text read in segments of these sizes, with `room` states of memory: N x D."""
    num_heads, width = HEADS, DIM // HEADS
    memory = [torch.zeros(0, DIM)] * LAYERS
    found = []
    for segment in ids.split(sizes):
        h = model.source.tokens(segment) * math.sqrt(DIM)
        for n, block in enumerate(model.blocks):
            attention, keys = block.attention.body, block.attention.body.relative
            tilde = torch.cat([memory[n], h])  # h~ = [SG(m) o h]
            memory[n] = tilde[max(len(tilde) - room, 0) :].detach()
            first = len(tilde) - len(h)
            w_q, w_k, w_v = attention.qkv.weight.chunk(3)
            a = torch.zeros(len(h), num_heads, width)
            for i in range(len(h)):
                for head in range(num_heads):
                    part = slice(head * width, (head + 1) * width)
                    u, v = keys.content_bias[head], keys.position_bias[head]
                    q = w_q[part] @ h[i]
                    scores = []
                    for j in range(first + i + 1):
                        distance = first + i - j if not clamp else min(first + i - j, clamp)
                        k, r = w_k[part] @ tilde[j], keys.project.weight[part] @ wave(distance)
                        scores.append((q @ k + q @ r + u @ k + v @ r) / math.sqrt(width))
                    a[i, head] = torch.stack(scores).softmax(0) @ (tilde[: first + i + 1] @ w_v[part].T)
            o = norm(h + a.flatten(1) @ attention.out.weight.T, block.attention.norm)
            forward = block.feedforward.body
            inner = F.relu(o @ forward.up.weight.T + forward.up.bias)
            h = norm(o + inner @ forward.down.weight.T + forward.down.bias, block.feedforward.norm)
        found.append(h)
    return torch.cat(found)


def wave(distance: int) -> Tensor:
    """R_distance: sin and cos of distance / 10000^(2n/D), in turns."""
    angles = [distance / 10000 ** (2 * n / DIM) for n in range(DIM // 2)]
    return torch.tensor([f(a) for a in angles for f in (math.sin, math.cos)])


def norm(x: Tensor, layer: Any) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


@pytest.mark.parametrize(
    ("sizes", "room", "clamp"),
    [([7], 0, 0), ([3, 3, 3], 3, 0), ([4, 4, 2], 6, 0), ([2, 5, 1], 3, 2), ([3, 3, 2], 0, 0)],
)
def test_the_papers_equations(sizes: list[int], room: int, clamp: int) -> None:
    """Values, and the gradients of the last segment: none flows into the memory."""
    model, ids = build(clamp=clamp), torch.randint(VOCABULARY, (2, sum(sizes)))
    found, _ = stream(model, ids, sizes, model.empty_memory(2, room))
    wanted = torch.stack([paper(model, row, sizes, room, clamp=clamp) for row in ids])
    torch.testing.assert_close(found, wanted, **EXACT)
    direction = torch.randn(2, sizes[-1], DIM)
    parameters = [p for name, p in model.named_parameters() if not name.startswith("head")]
    ours, theirs = (torch.autograd.grad((x[:, -sizes[-1] :] * direction).sum(), parameters) for x in (found, wanted))
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, right, rtol=0.0, atol=1e-9 * max(1.0, right.abs().max().item()))


# --- memory -----------------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize(("sizes", "room"), [([3, 3, 3, 3], 3), ([3, 3, 3, 3], 6), ([4, 1, 5, 2], 5), ([5, 5, 2], 20)])
@torch.no_grad()
def test_memory_is_attention_to_the_same_span_of_one_long_text(
    form: dict[str, Any], sizes: list[int], room: int
) -> None:
    model, ids = build(**form), torch.randint(VOCABULARY, (2, 12))
    found, memory = stream(model, ids, sizes, model.empty_memory(2, room))
    begins = torch.repeat_interleave(torch.tensor([0, *sizes]).cumsum(0)[:-1], torch.tensor(sizes))
    places = torch.arange(12)
    first = places - room if form.get("same_length") else begins - room
    span = visible((places <= places[:, None]) & (places >= first[:, None]))
    x = model.source(ids)
    for i, block in enumerate(model.blocks):
        last = x[:, max(12 - room, 0) :]
        torch.testing.assert_close(memory.cache[str(i)][:, room - last.shape[1] :], last, **EXACT)
        x = block(x, span)
    torch.testing.assert_close(found, model.norm(x), **EXACT)


@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 4, 3]])
@torch.no_grad()
def test_of_same_length_how_the_text_is_cut_changes_nothing(sizes: list[int]) -> None:
    """Nor whether it is read in segments or in steps."""
    model, ids = build(same_length=True, memory=4), torch.randint(VOCABULARY, (2, 12))
    found, _ = stream(model, ids, sizes, model.empty_memory(2))
    whole = model.hidden(batch(ids))
    torch.testing.assert_close(found, whole, **EXACT)
    torch.testing.assert_close(model.step(ids, model.start(batch(ids).source, 12))[0], model.head(whole), **EXACT)


@every_form
@torch.no_grad()
def test_an_empty_memory_says_nothing(form: dict[str, Any]) -> None:
    model, ids = build(**form), torch.randint(VOCABULARY, (2, 5))
    for room in (0, 5, 9) if not form.get("same_length") else (5,):
        found, _ = model.remember(batch(ids), model.empty_memory(2, room))
        torch.testing.assert_close(found, model.hidden(batch(ids)), **EXACT)


@torch.no_grad()
def test_rows_of_any_length_remember_their_own_text() -> None:
    """A row whose segments are shorter than the others', one that ends, and one that is begun again."""
    model, ids = build(), torch.randint(VOCABULARY, (3, 8))
    lengths = [[4, 2, 4], [4, 3, 0]]
    memory, found = model.empty_memory(3), []
    for part, real in zip(ids.split(4, dim=1), lengths, strict=True):
        hidden, memory = model.remember(batch(part, real), memory)
        found.append([row[:length] for row, length in zip(hidden, real, strict=True)])
    texts = [[ids[0, :4], ids[0, 4:8]], [ids[1, :2], ids[1, 4:7]], [ids[2, :4]]]
    for row, text in enumerate(texts):
        alone, _ = stream(model, torch.cat(text)[None], [len(part) for part in text], model.empty_memory(1))
        torch.testing.assert_close(torch.cat([part[row] for part in found]), alone[0], **EXACT)
    assert memory.position.tolist() == [8, 5, 4]
    again, _ = model.remember(batch(ids[:, :4]), memory.reset(torch.tensor([0, 2])))
    fresh = model.hidden(batch(ids[:, :4]))
    torch.testing.assert_close(again[[0, 2]], fresh[[0, 2]], **EXACT)
    assert (again[1] - fresh[1]).abs().max() > 1e-3
    # and rows go where they are selected
    swapped, _ = model.remember(batch(ids[[2, 0], :4]), memory.select(torch.tensor([2, 0])))
    kept, _ = model.remember(batch(ids[:, :4]), memory)
    torch.testing.assert_close(swapped, kept[[2, 0]], **EXACT)


@torch.no_grad()
def test_it_reaches_a_memory_further_with_each_layer() -> None:
    """Of segments of 2 with memory 2, layer n sees n segments back, and no further (Dai et al. 2019, figure 2)."""
    model, ids = build(memory=2), torch.randint(VOCABULARY, (1, 10))
    before, _ = stream(model, ids, [2] * 5, model.empty_memory(1))
    for segment in range(5):
        changed = ids.clone()
        changed[0, 2 * segment] = (changed[0, 2 * segment] + 1) % VOCABULARY
        after, _ = stream(model, changed, [2] * 5, model.empty_memory(1))
        moved = (after - before)[0].abs().amax(-1) > 1e-9
        last = min(2 * (segment + LAYERS) + 1, 9)
        assert moved.nonzero().flatten().tolist() == list(range(2 * segment, last + 1))


def test_no_gradient_reaches_the_segment_before() -> None:
    model, ids = build(), torch.randint(VOCABULARY, (1, 8))
    _, memory = model.remember(batch(ids[:, :4]), model.empty_memory(1))
    assert all(not tensor.requires_grad for tensor in memory.cache.values())
    hidden, _ = model.remember(batch(ids[:, 4:]), memory)
    hidden.square().sum().backward()
    grad = model.source.tokens.weight.grad  # type: ignore[union-attr]
    touched = grad.abs().amax(-1) > 0  # type: ignore[union-attr]
    assert set(touched.nonzero().flatten().tolist()) == set(ids[0, 4:].tolist())


def test_a_segment_with_memory_is_one_text() -> None:
    model, ids = build(), torch.randint(VOCABULARY, (1, 4))
    rows = Batch(Sequences(ids, torch.tensor([4]), torch.tensor([[0, 0, 1, 1]])))
    with pytest.raises(RegardError, match="a segment with memory is one text\n  got:    several texts in a row"):
        model.remember(rows, model.empty_memory(1))


@torch.no_grad()
def test_texts_in_one_row_do_not_see_each_other() -> None:
    model, ids = build(), torch.randint(VOCABULARY, (1, 7))
    packed = model.hidden(Batch(Sequences(ids, torch.tensor([7]), torch.tensor([[0, 0, 0, 1, 1, 1, 1]]))))
    apart = [model.hidden(batch(part)) for part in ids.split([3, 4], dim=1)]
    torch.testing.assert_close(packed, torch.cat(apart, dim=1), **EXACT)


# --- steps ------------------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("sizes", [[9], [1] * 9, [4, 1, 4]])
@torch.no_grad()
def test_cached_equals_whole(form: dict[str, Any], sizes: list[int]) -> None:
    model, ids = build(**form), torch.randint(VOCABULARY, (2, 9))
    state, found = model.start(batch(ids).source, 11), []
    for part in ids.split(sizes, dim=1):
        logits, state = model.step(part, state)
        found.append(logits)
    torch.testing.assert_close(torch.cat(found, dim=1), model.head(model.hidden(batch(ids))), **EXACT)
    assert state.position.tolist() == [9, 9]
    again, _ = model.step(ids[:, 3:5], state.truncate(torch.tensor([3, 3])))
    torch.testing.assert_close(again, model.head(model.hidden(batch(ids)))[:, 3:5], **EXACT)


# --- all of it --------------------------------------------------------------------------------------------------------


@every_form
def test_gradients_reach_every_parameter(form: dict[str, Any]) -> None:
    model, ids = build(**form), torch.arange(VOCABULARY)[None].repeat(2, 1)
    _, memory = model.remember(batch(ids), model.empty_memory(2))
    hidden, _ = model.remember(batch(ids), memory)
    F.cross_entropy(model.head(hidden).flatten(0, 1), ids.flatten()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-9] == []


@every_form
def test_an_adaptive_loss_is_the_loss_of_its_logits(form: dict[str, Any]) -> None:
    model, ids = build(**form), torch.randint(VOCABULARY, (2, 9))
    hidden = model.hidden(batch(ids)).flatten(0, 1)
    if "cutoffs" in form:
        wanted = F.cross_entropy(model.head(hidden), ids.flatten(), reduction="sum")
        torch.testing.assert_close(model.head.loss(hidden, ids.flatten()), wanted, **EXACT)  # type: ignore[operator]
    else:
        assert model.head.weight.shape == (VOCABULARY, DIM)


def test_which_weights_are_one() -> None:
    def shared(**form: Any) -> set[str]:
        model = build(**form)
        names = {name for name, _ in model.named_parameters()}
        return set(model.state_dict()) - names

    biases = {f"blocks.{i}.attention.body.relative.{name}_bias" for i in (1, 2) for name in ("content", "position")}
    assert shared() == biases | {"head.weight"}
    assert shared(share_biases=False, tie_embeddings=False) == set()
    assert shared(cutoffs=[4, 9]) == biases | {f"head.tables.bands.{i}" for i in range(3)}


def test_bfloat16_autocast_is_near_float32() -> None:
    torch.set_default_dtype(torch.float32)
    model, ids = build(cutoffs=[4, 9]), torch.randint(VOCABULARY, (2, 12))
    wanted, _ = stream(model, ids, [4, 4, 4], model.empty_memory(2))
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = stream(model, ids, [4, 4, 4], model.empty_memory(2))
        model.head.loss(found.flatten(0, 1), ids.flatten()).backward()  # type: ignore[operator]
    torch.testing.assert_close(found.float(), wanted, rtol=0.0, atol=0.05 * wanted.abs().max().item())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_its_memory_is_observed() -> None:
    model, ids = build(), torch.randint(VOCABULARY, (2, 8))
    _, memory = model.remember(batch(ids[:, :4]), model.empty_memory(2))
    with backends_used() as used, observe(model) as trace:
        model.remember(batch(ids[:, 4:]), memory)
    assert used == ["fused"] * LAYERS
    assert [view.shape for view in trace] == [(2, HEADS, 4, 9)] * LAYERS
    weights = trace[0].rows(range(4))
    assert (weights[..., 0] == 0).all()  # the memory has room for one more than it was given
    assert (weights[..., 1:5] > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 4), rtol=0.0, atol=1e-6)


@torch.no_grad()
def test_dropout_acts_in_training_only() -> None:
    model, ids = build(dropout=0.5), torch.randint(VOCABULARY, (1, 5))
    assert torch.equal(model.hidden(batch(ids)), model.hidden(batch(ids)))
    model.train()
    assert not torch.equal(model.hidden(batch(ids)), model.hidden(batch(ids)))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"memory": -1}, "memory is too small\n  got:    -1\n  wanted: 0 or more"),
        ({"clamp": -3}, "clamp is too small\n  got:    -3\n  wanted: 0 or more"),
        ({"num_heads": 5}, r"model_dim \(12\) must be divisible by num_heads \(5\)"),
        ({"memory": 0, "same_length": True}, "a token would see itself alone\n  got:    same_length without memory"),
        ({"dropout": 1.0}, "dropout is a share"),
    ],
)
def test_values_that_cannot_be_meant(form: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config(**form)


def test_cutoffs_beyond_the_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"stay under the size of the vocabulary\n  got:    \[20, 30\] of 23 tokens"):
        build(cutoffs=[20, 30])


@pytest.mark.parametrize("tie", [True, False])
@torch.no_grad()
def test_a_fresh_model_guesses_nearly_evenly(tie: bool) -> None:
    """Vectors of unit length gave 10 here: the residuals carried the token that was just read to the head."""
    torch.manual_seed(1)
    form = family.Config(layers=4, model_dim=128, num_heads=4, ffn_dim=256, memory=0, tie_embeddings=tie)
    model = family.build(form, Sizes(60, 60, True)).eval()
    ids = torch.randint(60, (4, 33))
    loss = model.head.loss(model.hidden(batch(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten()) / ids[:, 1:].numel()
    assert abs(float(loss) - math.log(60)) < 0.3


@pytest.mark.parametrize("tie", [True, False])
def test_vectors_of_every_band_begin_small(tie: bool) -> None:
    form = family.Config(layers=1, model_dim=64, num_heads=4, cutoffs=(200, 400), tie_embeddings=tie)
    model: Any = family.build(form, Sizes(600, 600, True))
    for tables in (model.source.tokens.tables, model.head.tables):
        assert all(0.018 < band.std() < 0.022 for band in tables.bands)
