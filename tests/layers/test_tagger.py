"""The tagger's head: places that are no words do not count, tags that may not be are not, no value is asked for."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.tagger import FASTER, NONE, Tagger, words_only
from regard.ops import crf
from regard.types import Batch, Sequences

VOCABULARY, TAGS = 11, 3


class Body(nn.Module):
    """An encoder that knows tokens alone."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, 8)

    def hidden(self, batch: Batch) -> Tensor:
        return self.source(batch.source.ids)  # type: ignore[no-any-return]


def tagger(*, has_crf: bool, num_shapes: int = 0) -> Tagger:
    torch.manual_seed(0)
    legal = torch.ones(TAGS, TAGS, dtype=torch.bool)
    legal[0, 2] = False
    made = Tagger(
        Body(),
        vocabulary=VOCABULARY,
        legal=legal,
        legal_start=legal[0],
        legal_end=legal[:, 0],
        has_crf=has_crf,
        num_shapes=num_shapes,
    )
    if has_crf:
        nn.init.normal_(made.transitions, std=0.1)
    return made.double()


IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0], [0, 0, 0, 0, 0]])
LABELS = torch.tensor([[NONE, 0, NONE, 1, 2], [NONE, 1, 1, NONE, NONE], [NONE] * 5])
BATCH = Batch(Sequences(IDS, torch.tensor([5, 3, 0])), Sequences(LABELS, torch.tensor([5, 3, 0])))


def test_what_is_no_word_is_moved_out_of_the_way() -> None:
    emissions = torch.arange(15.0).view(3, 5, 1)
    found, place, lengths = words_only(emissions, LABELS)
    assert found[0, :3, 0].tolist() == [1, 3, 4]
    assert found[1, :2, 0].tolist() == [6, 7]
    assert lengths.tolist() == [3, 2, 0]
    assert place[0].tolist() == [5, 0, 5, 1, 2]


def test_the_loss_is_that_of_the_words_tags_in_a_row() -> None:
    model = tagger(has_crf=True)
    emissions, chain = model.emissions(BATCH), model.chain()
    assert emissions.dtype == torch.float32  # whatever the states are in
    rows = [(emissions[0, [1, 3, 4]], [0, 1, 2]), (emissions[1, [1, 2]], [1, 1])]
    wanted = torch.zeros(())
    for row, tags in rows:
        length = torch.tensor([len(tags)])
        every = crf.log_partition(crf.forward(row[None], chain), chain, length)
        wanted = wanted + (every - crf.path_scores(row[None], torch.tensor([tags]), chain, length)).sum()
    loss, number = model.loss(BATCH)
    torch.testing.assert_close(loss, wanted.to(loss.dtype))
    assert int(number) == 5
    linear = tagger(has_crf=False)
    loss, number = linear.loss(BATCH)
    flat = linear.emissions(BATCH).flatten(0, 1)
    torch.testing.assert_close(loss, F.cross_entropy(flat, LABELS.flatten(), reduction="sum"))
    assert int(number) == 5


def test_a_crf_without_transitions_is_the_linear_head() -> None:
    linear = tagger(has_crf=False)
    chain = linear.chain()
    assert not any(part.any() for part in chain)
    emissions, place, lengths = words_only(linear.emissions(BATCH), LABELS)
    found = crf.log_marginals(emissions, chain, lengths).gather(1, place.clamp(max=4)[:, :, None].expand(-1, -1, TAGS))
    words = LABELS != NONE
    torch.testing.assert_close(found[words], linear.log_marginals(BATCH)[words])


@pytest.mark.parametrize("has_crf", [True, False])
def test_marginals_stand_at_their_words(has_crf: bool) -> None:
    model = tagger(has_crf=has_crf)
    found = model.log_marginals(BATCH)
    words = LABELS != NONE
    torch.testing.assert_close(found[words].exp().sum(-1), torch.ones(5), check_dtype=False)
    asked = LABELS.masked_fill(LABELS == 1, -1)  # a word that is not asked for is still one
    other = model.log_marginals(Batch(BATCH.source, Sequences(asked, BATCH.source.lengths)))
    torch.testing.assert_close(other[words], found[words])


def test_what_may_not_be_is_never_said_and_learns_nothing() -> None:
    model = tagger(has_crf=True)
    chain = model.chain()
    assert chain.transitions[0, 2] == -1e4 == chain.start[2]
    torch.testing.assert_close(chain.transitions[1], FASTER * model.transitions[1].float(), check_dtype=False)
    emissions = torch.zeros(1, 4, TAGS)
    emissions[:, :, 2] = 5.0  # tag 2 is the best everywhere, and may neither begin nor follow tag 0
    tags = crf.viterbi(emissions, chain, torch.tensor([4]))[0].tolist()
    assert tags[0] == 1
    assert (0, 2) not in itertools.pairwise(tags)
    model.loss(BATCH)[0].backward()
    assert model.transitions.grad is not None
    assert model.transitions.grad[0, 2] == 0
    assert model.transitions.grad.isfinite().all()


def test_how_a_word_is_written_is_seen_at_the_head_alone() -> None:
    model = tagger(has_crf=False, num_shapes=3)
    shaped = Batch(Sequences(IDS + VOCABULARY * torch.tensor([0, 1, 1, 2, 0]), BATCH.source.lengths), BATCH.target)
    torch.testing.assert_close(model.hidden(shaped), model.hidden(BATCH))
    apart = (model.emissions(shaped) - model.emissions(BATCH)).abs().sum(-1) > 1e-6
    assert apart.tolist() == [[False, True, True, True, False]] * 3


@pytest.mark.parametrize("has_crf", [True, False])
def test_no_value_is_asked_for(has_crf: bool) -> None:
    """On the device that has none: such a step can be captured."""
    model, batch = tagger(has_crf=has_crf, num_shapes=3).to("meta"), BATCH.to("meta")
    loss, number = model.loss(batch)
    loss.backward()
    assert (loss.device.type, number.device.type) == ("meta", "meta")
    model.log_marginals(batch)
