"""Rollout against the dense product, kinds of heads on heads made for it, alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from regard.errors import RegardError
from regard.look import measures
from regard.look.collect import observe
from regard.look.measures import (
    alignment,
    alignment_error,
    head_kinds,
    head_scores,
    induction_keys,
    information,
    reads_ahead,
    rollout,
)
from regard.models import Sizes, transformer
from regard.ops.call import Call
from regard.ops.masks import Mask, causal, padding, window
from regard.ops.observe import Observed, Weighed
from regard.types import Batch, Sequences, Trace

TIGHT = {"rtol": 0.0, "atol": 1e-6}


def named(view: Any, name: str = "", kind: str = "self", rows_axis: str = "", keys_axis: str = "") -> Any:
    """A view with the names that a trace gives it."""
    view.name, view.kind, view.rows_axis, view.keys_axis = name, kind, rows_axis, keys_axis
    return view


def random(batch: int, heads: int, rows: int, keys: int, *, mask: Mask | None = None, **names: str) -> Any:
    q, k = torch.randn(batch, heads, rows, 4), torch.randn(batch, heads, keys, 4)
    return named(Observed(Call(q, k, k, mask, (), 2.0, 0.0, None)), **names)


def whole(view: Any) -> Tensor:
    """The mean of the heads: B x N x M, with all of it in memory."""
    return view.rows(range(view.shape[2])).mean(1)


def dense(views: Sequence[Any]) -> Tensor:
    """The product of (I + P) / 2, the last layer first."""
    product = torch.eye(views[0].shape[2])
    for view in views:
        product = (torch.eye(view.shape[2]) + whole(view)) / 2 @ product
    return product


def pattern(keys: Sequence[int], length: int, share: float = 1.0) -> Tensor:
    """A head that gives `share` of each row's weight to one key, and the rest to all evenly: rows x length."""
    return share * F.one_hot(torch.tensor(keys), length).float() + (1 - share) / length


def weighed(*heads: Tensor, **names: str) -> Any:
    return named(Weighed(torch.stack(heads)[None]), **names)


class TestRollout:
    @pytest.mark.parametrize("strip", [1, 100, 2**24])
    def test_it_equals_the_dense_product(self, strip: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measures, "STRIP", strip)
        views = [random(2, 3, 7, 7, mask=causal()) for _ in range(4)]
        found = rollout(Trace(views))
        assert_close(found.weights, dense(views), **TIGHT)
        assert found.bin == (1, 1)
        assert found.own is None

    def test_bins_are_sums_of_keys_and_means_of_rows(self) -> None:
        views = [random(1, 2, 7, 7) for _ in range(3)]
        found = rollout(Trace(views), (4, 2))
        pooled = F.pad(dense(views), (0, 1)).unflatten(2, (2, 4)).sum(3)  # keys 0-3, 4-6
        rows = torch.stack([pooled[:, 0:2].mean(1), pooled[:, 2:4].mean(1), pooled[:, 4:6].mean(1), pooled[:, 6]], 1)
        assert found.bin == (2, 4)
        assert_close(found.weights, rows, **TIGHT)

    @pytest.mark.parametrize("axes", [True, False])
    @pytest.mark.parametrize("length", [4, 6])
    def test_a_decoder_reads_the_encoders_rollout(self, axes: bool, length: int) -> None:
        """As one square system of source and target places; known by axes, or by the names of the stacks."""
        source, target = ("source", "target") if axes else ("", "")
        encoder = [random(1, 2, 6, 6, name=f"encoder.{i}.a", rows_axis=source, keys_axis=source) for i in range(2)]
        decoder = [
            random(1, 2, length, columns, name=f"decoder.{i}.{kind}", kind=kind, rows_axis=target, keys_axis=keys)
            for i in range(2)
            for kind, columns, keys in (("self", length, target), ("cross", 6, source))
        ]
        mixing = torch.eye(6 + length)
        for view in [*encoder, *decoder]:
            step = torch.eye(6 + length)
            part = slice(0, 6) if view in encoder else slice(6, None)
            step[part] /= 2
            step[part, slice(6, None) if view.kind == "self" and view in decoder else slice(0, 6)] += whole(view)[0] / 2
            mixing = step @ mixing
        found = rollout(Trace([*encoder, *decoder]))
        assert (found.rows, found.keys) == (target, source)
        assert found.own is not None
        assert_close(found.weights[0], mixing[6:, :6], **TIGHT)
        assert_close(found.own[0], mixing[6:, 6:], **TIGHT)
        assert_close(found.weights.sum(-1) + found.own.sum(-1), torch.ones(1, length), **TIGHT)

    def test_recurrent_attention_is_one_cross_layer(self) -> None:
        view = random(1, 1, 3, 5, name="decoder.attention", kind="cross")
        assert_close(rollout(Trace([view])).weights, whole(view) / 2, **TIGHT)

    def test_what_reads_nowhere_stays_and_what_is_padding_does_not_count(self) -> None:
        q = torch.randn(2, 2, 4, 4)
        lengths = torch.tensor([4, 2])
        seen = Observed(Call(q, q, q, padding(lengths), (), 1.0, 0.0, None), row_lengths=lengths)
        alone = Observed(Call(*[q[1:, :, :2]] * 3, None, (), 1.0, 0.0, None))
        found = rollout(Trace([named(seen), named(seen)]), 1)
        assert_close(found.weights.sum(-1), torch.ones(2, 1), **TIGHT)
        assert_close(rollout(Trace([named(seen)] * 2)).weights[1, :2, :2], dense([alone, alone])[0], **TIGHT)
        assert rollout(Trace([named(seen)])).weights[1, 2:].eq(0).all()
        blind = weighed(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        reader = weighed(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        assert_close(rollout(Trace([reader, blind])).weights[0, 0], torch.tensor([0.5, 0.5]), **TIGHT)

    def test_memory_grows_with_the_length_alone(self) -> None:
        """4,096 places: the matrix of one head alone would hold 16 million weights, a strip here 262 thousand."""
        view = random(1, 1, 4096, 4096)
        asked: list[int] = []
        rows = view.rows
        view.rows = lambda part, heads=None: asked.append(len(part) * 4096) or rows(part, heads)
        before, measures.STRIP = measures.STRIP, 2**18
        try:
            found = rollout(Trace([view]), 16)
        finally:
            measures.STRIP = before
        assert max(asked) == 2**18
        assert found.weights.shape == (1, 16, 16)
        assert_close(found.weights.sum(-1), torch.ones(1, 16), **TIGHT)

    @torch.no_grad()
    def test_of_a_real_trace(self) -> None:
        config = transformer.Config(encoder_layers=2, decoder_layers=2, model_dim=16, num_heads=2, ffn_dim=16)
        model = transformer.build(config, Sizes(9, 9, False)).eval()
        source, target = (Sequences(torch.randint(4, 9, (1, n)), torch.tensor([n])) for n in (6, 5))
        with observe(model) as trace:
            model.hidden(Batch(source, target))
        found = rollout(trace)
        assert (found.rows, found.keys) == ("target", "source")
        assert found.own is not None
        assert (found.weights.shape, found.own.shape) == ((1, 4, 6), (1, 4, 4))
        assert_close(found.weights.sum(-1) + found.own.sum(-1), torch.ones(1, 4), **TIGHT)
        assert found.own.triu(1).eq(0).all(), "no row holds a later one"
        # two cross-attentions: a row's own text keeps a half of a half
        assert_close(found.own.sum(-1), torch.full((1, 4), 0.25), **TIGHT)

    def test_errors(self) -> None:
        with pytest.raises(RegardError, match="nothing to roll out"):
            rollout(Trace([]))
        with pytest.raises(
            RegardError, match=r"over the same places(.|\n)*4 rows, 4 keys(.|\n)*5 rows(.|\n)*where: +a"
        ):
            rollout(Trace([random(1, 1, 4, 4, name="a"), random(1, 1, 5, 5, name="b")]))


class TestHeads:
    ids = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4]])

    def scores(self, *heads: Tensor, ids: Tensor | None = None, kind: str = "self") -> list[dict[str, float | None]]:
        return head_scores(weighed(*heads, kind=kind), ids)

    def test_heads_made_to_be_known(self) -> None:
        places = list(range(8))
        made = {
            "previous": [0, 0, 1, 2, 3, 4, 5, 6],
            "next": [1, 2, 3, 4, 5, 6, 7, 7],
            "induction": [7, 6, 7, 1, 2, 3, 4, 5],
            "first": [0] * 8,
            "positional": places,
        }
        found = self.scores(*(pattern(keys, 8, 0.9) for keys in made.values()), torch.full((8, 8), 1 / 8), ids=self.ids)
        assert [head_kinds(scores) for scores in found] == [
            ["previous"],
            ["next"],
            ["induction", "positional"],  # a text that repeats itself every three tokens looks the same to both
            ["first"],
            ["positional"],
            ["broad"],
        ]
        assert [scores["offset"] for scores in found] == [-1, 1, -2, 0, 0, 0]
        assert found[0]["previous"] == found[0]["positional"] == pytest.approx(0.9 + 0.1 / 8)
        assert found[1]["next"] == pytest.approx(0.9 + 0.1 / 8)
        assert found[2]["induction"] == pytest.approx(0.9 + 0.1 / 8)
        assert found[3]["first"] == pytest.approx(0.9 + 0.1 / 8)
        assert found[3]["positional"] == pytest.approx(0.1 / 8 + 0.9 / 8)  # at distance 0 only row 0 reads key 0
        assert found[5]["evenness"] == pytest.approx(1.0)

    def test_plain_measures_are_means_over_rows_that_read(self) -> None:
        weights = torch.rand(2, 3, 5, 5).softmax(-1)
        weights[1, :, 3:] = 0
        view = named(Weighed(weights))
        for head, scores in enumerate(head_scores(view)):
            rows = torch.cat([weights[0, head], weights[1, head, :3]])
            place = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
            assert scores["entropy"] == pytest.approx(-(rows * rows.log()).sum(-1).mean().item())
            assert scores["confidence"] == pytest.approx(rows.amax(-1).mean().item())
            distances = (place[:, None] - torch.arange(5)).abs()
            assert scores["distance"] == pytest.approx((rows * distances).sum(-1).mean().item())
            later = rows[place > 0]
            assert scores["first"] == pytest.approx(later[:, 0].mean().item())
            before = later.gather(1, place[place > 0][:, None] - 1)
            assert scores["previous"] == pytest.approx(before.mean().item())
            assert scores["induction"] is None

    @pytest.mark.parametrize("strip", [1, 2**24])
    @pytest.mark.parametrize("mask", [None, causal(), causal() & window(2), padding(torch.tensor([3, 6]))])
    def test_evenness_knows_how_many_keys_a_row_sees(
        self, mask: Mask | None, strip: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Equal keys are read evenly: the entropy is as large as the mask lets it be."""
        monkeypatch.setattr(measures, "STRIP", strip)
        q, k = torch.randn(2, 2, 6, 4), torch.ones(2, 2, 6, 4)
        observed = head_scores(named(Observed(Call(q, k, k, mask, (), 1.0, 0.0, None))))
        known = head_scores(named(Weighed(Observed(Call(q, k, k, mask, (), 1.0, 0.0, None)).rows(range(6)))))
        for scores in (*observed, *known):
            assert scores["evenness"] == pytest.approx(1.0, abs=1e-6)
            assert "broad" in head_kinds(scores)

    def test_cross_attention_has_no_previous_token(self) -> None:
        scores = self.scores(pattern([0, 1, 2], 8, 0.9), kind="cross", ids=self.ids)[0]
        assert scores["previous"] is scores["next"] is scores["induction"] is None
        assert (scores["offset"], head_kinds(scores)) == (0, ["positional"])

    def test_the_first_row_of_cross_attention_counts(self) -> None:
        assert self.scores(pattern([0, 1], 4), kind="cross")[0]["first"] == 0.5
        assert self.scores(pattern([0, 1], 2))[0]["first"] == 0.0

    def test_a_text_without_repetition_has_no_induction(self) -> None:
        assert self.scores(pattern([0, 0, 0], 3), ids=torch.tensor([[1, 2, 3]]))[0]["induction"] is None

    def test_induction_keys_are_what_one_would_look_up(self) -> None:
        ids = torch.randint(-1, 6, (4, 40))
        wanted = torch.full_like(ids, -1)
        for row in range(4):
            for i in range(40):
                for j in range(i):
                    if ids[row, j] == ids[row, i] >= 0:
                        wanted[row, i] = j + 1
        assert torch.equal(induction_keys(ids), wanted)

    def test_the_usual_offset_is_the_most_frequent_one(self) -> None:
        assert self.scores(pattern([1, 2, 0, 1, 2], 5))[0]["offset"] == -2  # three times; +1 twice
        assert self.scores(pattern([1, 0, 3, 2], 4))[0]["offset"] == -1  # of equals the earlier
        assert self.scores(pattern([2, 3, 2, 3], 4))[0]["offset"] == 0  # and the nearer
        blind = torch.cat([pattern([1, 2], 5), torch.zeros(3, 5)])
        assert self.scores(blind)[0]["offset"] == 1  # rows that read nowhere have no say


class TestAlignment:
    def test_the_head_that_aligns_is_found(self) -> None:
        """Not the sure head that always rests on one key, nor the one that reads all evenly."""
        sink, even = pattern([4] * 5, 5, 0.99), torch.full((5, 5), 0.2)
        crossed = pattern([1, 0, 2, 4, 3], 5, 0.8)
        views = [
            weighed(crossed, even, kind="self"),
            weighed(sink, even, kind="cross"),
            weighed(even, sink, crossed, kind="cross"),
        ]
        found = alignment(Trace(views))
        assert (found.layer, found.head) == (2, 2)
        assert found.pairs == (((0, 1), (1, 0), (2, 2), (3, 4), (4, 3)),)

    @pytest.mark.parametrize("strip", [2**24, 60])
    def test_a_head_that_looks_up_what_was_read_is_passed_over(self, strip: int, monkeypatch: Any) -> None:
        """It is the most informative one, but a row late; alone it is all that there is."""
        monkeypatch.setattr(measures, "STRIP", strip)
        keys = [3, 1, 0, 2, 5, 4]
        late = pattern([0, *keys[:-1]], 6, 0.99)
        views = [weighed(late, kind="cross"), weighed(pattern(keys, 6, 0.6), pattern(keys, 6, 0.7), kind="cross")]
        assert [ahead.tolist() for ahead in reads_ahead(views)] == [[False], [True, True]]
        found = alignment(Trace(views))
        assert (found.layer, found.head, found.pairs[0]) == (1, 1, tuple(enumerate(keys)))
        assert alignment(Trace(views[:1])).layer == 0
        assert alignment(Trace(views), 0, 0).pairs[0][1:] == tuple(enumerate(keys[:-1], 1))

    def test_a_head_that_was_pruned_is_passed_over(self) -> None:
        """It aligns best, but nothing of what it reads is written; nor is a late head better than none."""
        keys = [3, 1, 0, 2, 5, 4]
        sharp, blurred, late = pattern(keys, 6, 0.9), pattern(keys, 6, 0.5), pattern([0, *keys[:-1]], 6, 0.9)
        projection = torch.ones(3, 6)

        def found(*silent: int) -> int | None:
            left = projection.clone()
            for head in silent:
                left[:, 2 * head : 2 * head + 2] = 0
            seen = Weighed(torch.stack([sharp, blurred, late])[None], values=torch.randn(1, 3, 6, 2), projection=left)
            return alignment(Trace([named(seen, kind="cross")])).head

        assert [found(), found(0), found(1), found(0, 1)] == [0, 1, 0, 2]
        with pytest.raises(RegardError, match="there is no alignment\n  got:    cross-attention that writes nothing"):
            found(0, 1, 2)

    def test_layers_over_other_places_are_not_compared(self) -> None:
        views = [random(1, 2, 5, 4, kind="cross"), random(1, 3, 5, 7, kind="cross")]
        assert [ahead.tolist() for ahead in reads_ahead(views)] == [[True] * 2, [True] * 3]

    def test_information_is_what_the_row_tells_of_the_key(self) -> None:
        view = random(2, 3, 6, 5, kind="cross")
        weights = view.rows(range(6))
        mean = weights.mean(2, keepdim=True)
        wanted = (weights * (weights / mean).log()).sum(-1).mean(2).mean(0)  # the mean divergence from the mean row
        assert_close(information(view), wanted, **TIGHT)

    def test_a_head_may_be_given_and_none_is_the_mean_of_all(self) -> None:
        view = random(2, 3, 6, 5, kind="cross")
        weights = view.rows(range(6))
        for head, keys in ((1, weights[:, 1].argmax(-1)), (None, weights.mean(1).argmax(-1))):
            found = alignment(Trace([view]), 0, head)
            assert found.pairs == tuple(tuple(enumerate(row)) for row in keys.tolist())
        assert (found.layer, found.head) == (0, None)

    def test_rows_that_read_nowhere_are_not_aligned(self) -> None:
        view = weighed(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), kind="cross")
        assert alignment(Trace([view])).pairs == (((0, 1),),)
        assert alignment(Trace([view]), 0, None).pairs == (((0, 1),),)

    def test_a_head_is_one_of_a_layer(self) -> None:
        with pytest.raises(RegardError) as refused:
            alignment(Trace(()), head=3)
        assert str(refused.value) == (
            "a head is one of a layer\n  got:    head 3 without a layer\n  wanted: layer and head"
        )

    def test_without_cross_attention_there_is_none(self) -> None:
        with pytest.raises(RegardError, match="there is no alignment"):
            alignment(Trace([random(1, 1, 3, 3)]))

    def test_the_error_rate_by_hand(self) -> None:
        sure, possible = {(0, 0), (1, 1)}, {(2, 1)}
        assert alignment_error(sure, sure) == 0.0
        assert alignment_error(sure | possible, sure, possible) == 0.0  # a possible link costs nothing
        assert alignment_error({(0, 0), (2, 2)}, sure, possible) == 0.5  # 1 - (1 + 1) / (2 + 2)
        assert alignment_error({(0, 0), (1, 1), (3, 3)}, sure) == pytest.approx(0.2)  # 1 - (2 + 2) / 5
        assert alignment_error([], sure) == 1.0
        assert alignment_error([], []) == 0.0
        assert alignment_error([(0, 0, 0), (1, 0, 0)], [(0, 0, 0), (1, 0, 0)]) == 0.0
