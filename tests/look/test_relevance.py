"""Relevance against the paper's matrices with autograd, importance against a mask on each head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.errors import RegardError
from regard.layers.attention import SelfAttention
from regard.look import measures
from regard.look.intervene import heads_off, layers, prune_curve, prune_order
from regard.look.relevance import gradient_times_input, head_importance, relevance
from regard.models import Sizes, convolutional, recurrent, transformer
from regard.ops import attention
from regard.ops.call import Call
from regard.ops.masks import causal
from regard.types import Batch, Sequences

SIZES = Sizes(20, 20, False)
TIGHT = {"rtol": 1e-9, "atol": 1e-12}
Model = Any


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(params=["sinusoidal", "t5"])
def model(request: pytest.FixtureRequest) -> Model:
    config = transformer.Config(
        encoder_layers=3,
        decoder_layers=3,
        model_dim=24,
        num_heads=4,
        num_kv_heads=2,
        ffn_dim=32,
        position=request.param,
        norm_first=request.param == "t5",
    )
    return transformer.build(config, SIZES).eval()


@pytest.fixture
def batch() -> Batch:
    """Two sources, the second one padded, with targets of five tokens."""
    source, target = torch.randint(4, 20, (2, 6)), torch.randint(4, 20, (2, 5))
    return Batch(Sequences(source, torch.tensor([6, 4])), Sequences(target, torch.tensor([5, 5])))


def scorer(model: Model, batch: Batch, rows: list[int]) -> Callable[[], Tensor]:
    """The log-probability of the target's next token after each of these rows, one for each batch row."""

    def score() -> Tensor:
        hidden = model.hidden(batch)
        every = torch.arange(len(rows))
        chances = model.head(hidden[every, torch.tensor(rows)]).log_softmax(-1)
        return chances[every, batch.target.ids[every, torch.tensor(rows) + 1]]

    return score


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every attention runs by the plain formula, and leaves the matrix of its weights here, in its graph."""
    matrices: list[Tensor] = []

    def plainly(call: Call) -> Tensor:
        out, weights = attention.reference(call)
        matrices.append(weights)
        return out

    monkeypatch.setitem(attention._RUN, "fused", plainly)
    return matrices


def paper_matrices(score: Tensor, matrices: list[Tensor]) -> list[Tensor]:
    """A = mean_h (P * dP)^+ of each layer: B x N x M."""
    gradients = torch.autograd.grad(score.sum(), matrices, retain_graph=True)
    return [(p * dp).clamp(min=0).mean(1).detach() for p, dp in zip(matrices, gradients, strict=True)]


def normalised(r: Tensor) -> Tensor:
    eye = torch.eye(r.shape[1])
    sums = (r - eye).sum(-1, keepdim=True)
    return eye + torch.where(sums > 0, (r - eye) / sums, 0.0)


def by_matrices(model: Model, batch: Batch, kept: list[Tensor], scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """The paper's relevance of the answers after rows 3 and 1: of the source and of the target."""
    rows, every = [3, 1], torch.arange(2)
    a = paper_matrices(scale * scorer(model, batch, rows)(), kept)
    r_ss, r_tt, r_ts = torch.eye(6).expand(2, 6, 6), torch.eye(4).expand(2, 4, 4), torch.zeros(2, 4, 6)
    for layer in a[:3]:
        r_ss = r_ss + layer @ r_ss
    for own, cross in zip(a[3::2], a[4::2], strict=True):
        r_tt, r_ts = r_tt + own @ r_tt, r_ts + own @ r_ts
        r_ts = r_ts + normalised(r_tt).mT @ cross @ normalised(r_ss)
    return r_ts[every, rows], r_tt[every, rows]


class TestRelevance:
    @pytest.mark.parametrize("strip", [1, 200, 2**24])
    def test_it_is_the_papers_in_an_encoder_decoder(
        self, model: Model, batch: Batch, kept: list[Tensor], strip: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(measures, "STRIP", strip)
        weights, own = by_matrices(model, batch, kept)
        found = relevance(model, scorer(model, batch, [3, 1]), [3, 1])
        assert (found.rows, found.keys) == ("target", "source")
        assert found.own is not None
        assert_close(found.weights, weights, **TIGHT)
        assert_close(found.own, own, **TIGHT)
        assert found.weights[1, 4:].eq(0).all(), "padding has no part in it"
        assert found.weights[0].gt(0).any()
        assert found.own[1, 2:].eq(0).all(), "nor has what comes later"

    def test_a_sure_answer_has_small_gradients_and_keeps_its_digits(
        self, model: Model, batch: Batch, kept: list[Tensor]
    ) -> None:
        """A hundred millionth of the score: beside the 1 of I, float32 would see nothing of it."""
        wanted, _ = by_matrices(model, batch, kept, scale=1e-8)
        score = scorer(model.float(), batch, [3, 1])
        found = relevance(model, lambda: 1e-8 * score(), [3, 1])
        assert found.weights.dtype == torch.float32
        assert_close(found.weights.double(), wanted, rtol=1e-3, atol=1e-4 * wanted.max().item())

    @pytest.mark.parametrize("mask", [None, causal()])
    def test_it_is_the_papers_in_one_stack(self, mask: Any, kept: list[Tensor]) -> None:
        """Of an encoder or a language model: one text, R_ss alone."""
        stack, x = nn.ModuleList(SelfAttention(12, 3) for _ in range(3)).eval(), torch.randn(2, 5, 12)
        weight = torch.randn(2, 12)

        def score() -> Tensor:
            y = x
            for layer in stack:
                y = y + layer(y, mask=mask)
            return (y[torch.arange(2), torch.tensor([4, 2])] * weight).sum(-1)

        a = paper_matrices(score(), kept)
        r = torch.eye(5).expand(2, 5, 5)
        for layer in a:
            r = r + layer @ r
        found = relevance(stack, score, torch.tensor([4, 2]))
        assert_close(found.weights, r[torch.arange(2), torch.tensor([4, 2])], **TIGHT)
        assert found.own is None

    def test_the_tokens_of_an_answer_side_by_side_or_one_by_one(self, batch: Batch, model: Model) -> None:
        source = Sequences(batch.source.ids[:1].expand(4, -1), batch.source.lengths[:1].expand(4))
        target = Sequences(batch.target.ids[:1].expand(4, -1), batch.target.lengths[:1].expand(4))
        together = relevance(model, scorer(model, Batch(source, target), [0, 1, 2, 3]), [0, 1, 2, 3])
        alone = Batch(
            Sequences(batch.source.ids[:1], batch.source.lengths[:1]),
            Sequences(batch.target.ids[:1], batch.target.lengths[:1]),
        )
        for row in range(4):
            one = relevance(model, scorer(model, alone, [row]), [row])
            assert_close(together.weights[row : row + 1], one.weights, **TIGHT)

    @pytest.mark.parametrize("attends", ["additive", "multiplicative"])
    def test_recurrent_models_have_one_attention_of_many_steps(self, attends: Any, batch: Batch) -> None:
        config = recurrent.Config(preset="tiny", attention=attends, embedding_dim=8, hidden_dim=12)
        model = recurrent.build(config, SIZES).eval()
        notes = Notes()
        with attention.observing(notes):
            score = scorer(model, batch, [3, 1])()
        gradients = torch.autograd.grad(score.sum(), notes.weights, materialize_grads=True)
        a = torch.cat([(p * dp).clamp(min=0)[:, 0] for p, dp in zip(notes.weights, gradients, strict=True)], dim=1)
        found = relevance(model, scorer(model, batch, [3, 1]), [3, 1])
        assert_close(found.weights, torch.stack([a[0, 3], a[1, 1]]), **TIGHT)
        assert_close(found.own, torch.eye(4)[[3, 1]])

    def test_convolutional_models_read_in_every_block(self, batch: Batch, kept: list[Tensor]) -> None:
        config = convolutional.Config(preset="tiny", embedding_dim=8, hidden_dim=8, decoder_layers=2)
        model = convolutional.build(config, SIZES).eval()
        a = paper_matrices(scorer(model, batch, [3, 1])(), kept)
        found = relevance(model, scorer(model, batch, [3, 1]), [3, 1])
        assert_close(found.weights, sum(layer[torch.arange(2), torch.tensor([3, 1])] for layer in a), **TIGHT)

    def test_it_leaves_nothing_behind(self, model: Model, batch: Batch) -> None:
        with torch.no_grad():
            before = model.hidden(batch)
            found = relevance(model, scorer(model, batch, [3, 1]), [3, 1])
            assert torch.equal(model.hidden(batch), before)
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not found.weights.requires_grad

    def test_errors_say_what_to_do(self, model: Model, batch: Batch) -> None:
        score = scorer(model, batch, [3, 1])
        with pytest.raises(RegardError, match=r"the score has no gradient(.|\n)*torch.no_grad"):
            relevance(model, torch.no_grad()(score), [3, 1])
        with pytest.raises(RegardError, match=r"one number for each batch row(.|\n)*\(\)(.|\n)*\(2,\)"):
            relevance(model, lambda: score().sum(), [3, 1])
        for rows in ([3], [3, 4], [-1, 0]):
            with pytest.raises(RegardError, match=r"rows do not fit(.|\n)*2 numbers from 0 to 3"):
                relevance(model, score, rows)
        with pytest.raises(RegardError, match=r"a score runs the model once(.|\n)*2 passes(.|\n)*encoder.blocks.0"):
            relevance(model, lambda: score() + score(), [3, 1])
        with pytest.raises(RegardError, match="no attention to explain"):
            relevance(model, lambda: model.target.tokens.weight.sum(1), [0])
        with pytest.raises(RegardError, match=r"dropout would blur(.|\n)*model.eval\(\)"):
            relevance(model.train(), score, [3, 1])


class Notes:
    """Keeps the weights that a recurrent attention makes."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def saw(self, call: Call, projection: Tensor | None, out: Tensor) -> None:
        raise AssertionError("a recurrent model does not call attend")

    def saw_weights(self, weights: Tensor, values: Tensor, projection: Tensor | None, out: Tensor) -> None:
        self.weights.append(weights)


class TestImportance:
    def losses(self, model: Model, batch: Batch) -> Tensor:
        """The loss of each example: B."""
        chances = model.head(model.hidden(batch)).log_softmax(-1)
        return -chances.gather(2, batch.target.ids[:, 1:, None]).sum((1, 2))

    def by_mask(self, model: Model, batch: Batch, row: int) -> dict[str, Tensor]:
        """|dL / dxi| of one example, xi a factor on each head's output."""
        found = layers(model)
        factors = {name: torch.ones(layer.num_heads, requires_grad=True) for name, layer in found.items()}

        def fade(name: str) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
            return lambda _, inputs: ((found[name].heads(inputs[0]) * factors[name][:, None]).flatten(-2),)

        hooks = [layer.out.register_forward_pre_hook(fade(name)) for name, layer in found.items()]
        gradients = torch.autograd.grad(self.losses(model, batch)[row], list(factors.values()))
        for hook in hooks:
            hook.remove()
        return {name: gradient.abs() for name, gradient in zip(factors, gradients, strict=True)}

    def test_it_is_the_gradient_of_a_mask_on_each_head(self, model: Model, batch: Batch) -> None:
        single = Batch(
            Sequences(batch.source.ids[1:, :4], batch.source.lengths[1:]),
            Sequences(batch.target.ids[1:, :3], batch.target.lengths[1:] - 2),
        )
        found = head_importance(model, [lambda: self.losses(model, batch), lambda: self.losses(model, single)])
        masks = [self.by_mask(model, batch, 0), self.by_mask(model, batch, 1), self.by_mask(model, single, 0)]
        assert list(found) == list(layers(model))
        for name, values in found.items():
            mean = sum(mask[name] for mask in masks) / 3
            assert_close(values, mean / mean.norm(), **TIGHT)

    def test_a_recurrent_model_has_one_head(self, batch: Batch) -> None:
        model = recurrent.build(recurrent.Config(preset="tiny", embedding_dim=8, hidden_dim=12), SIZES).eval()
        found = head_importance(model, [lambda: self.losses(model, batch)])
        assert {name: values.tolist() for name, values in found.items()} == {"decoder.attention": [1.0]}

    def test_it_guides_pruning(self, model: Model, batch: Batch) -> None:
        """A head that is off moves nothing; the curve asks with those off that went, and equal questions agree."""

        def importance() -> dict[str, Tensor]:
            return head_importance(model, [lambda: self.losses(model, batch)])

        with heads_off(model, [(0, 1), (4, 2), (4, 3)]):
            found = list(importance().values())
        assert [int((values == 0).sum()) for values in found] == [1, 0, 0, 0, 2, 0, 0, 0, 0]
        assert found[0][1] == found[4][2] == found[4][3] == 0
        points = prune_curve(model, lambda: {"loss": self.losses(model, batch).sum()}, importance, keep=30, every=2)
        assert [point["kept"] for point in points] == [36, 35, 34, 33, 32, 31, 30]
        assert points[1]["pruned"] == prune_order(importance())[:1]
        again = prune_curve(model, lambda: {"loss": self.losses(model, batch).sum()}, importance, keep=30, every=2)
        assert again == points

    def test_small_gradients_are_of_one_length_too(self, model: Model, batch: Batch) -> None:
        """A model that is sure of its answer has small ones, and none in the end."""
        wanted = head_importance(model, [lambda: self.losses(model, batch)])
        small = head_importance(model, [lambda: 1e-30 * self.losses(model, batch)])
        none = head_importance(model, [lambda: 0.0 * self.losses(model, batch)])
        for name, values in wanted.items():
            assert_close(small[name], values, **TIGHT)
            assert not none[name].any()

    def test_it_needs_examples(self, model: Model) -> None:
        with pytest.raises(RegardError, match="head importance needs examples"):
            head_importance(model, [])


class TestGradientTimesInput:
    def test_of_a_linear_model_it_is_what_each_token_adds(self) -> None:
        table, weight, ids = nn.Embedding(9, 4), torch.randn(4), torch.randint(0, 9, (2, 5))
        found = gradient_times_input(table, lambda: (table(ids) @ weight).sum(1))
        assert_close(found, (table(ids) @ weight).detach())

    def test_of_a_translation_model(self, model: Model, batch: Batch) -> None:
        score = scorer(model, batch, [3, 1])
        found = gradient_times_input(model.source, score)
        assert found.shape == (2, 6)
        assert found[1, 4:].eq(0).all()
        # by the definition of a derivative: the first token's vector, a little longer
        step = 1e-6
        factor = torch.ones(2, 6, 1)
        factor[:, 0] += step
        hook = model.source.register_forward_hook(lambda module, inputs, output: output * factor)
        with torch.no_grad():
            longer = score()
            hook.remove()
            assert_close(found[:, 0], (longer - score()) / step, rtol=1e-4, atol=1e-7)

    def test_the_embedding_runs_once(self, model: Model, batch: Batch) -> None:
        with pytest.raises(RegardError, match=r"must run once(.|\n)*0 times"):
            gradient_times_input(nn.Embedding(2, 2), scorer(model, batch, [3, 1]))
