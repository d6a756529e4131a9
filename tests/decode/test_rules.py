"""What every search obeys: NaN, minimal length, n-grams, prefixes, and the same answer in every batch."""

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decode.beam import beam_search
from regard.decode.greedy import greedy_search
from regard.decode.rules import repeats
from regard.decode.sampling import sample
from regard.errors import RegardError

EOS = 2
SEARCHES = {
    "greedy": greedy_search,
    "beam": functools.partial(beam_search, beam=4, n_best=3),
    "sample": functools.partial(sample, num_samples=3, top_p=0.9),
}
every_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


@every_search
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_make_no_distribution_are_an_error(toys, search, bad):
    model, sources = toys.chain(vocab_size=7), toys.sources(3)

    def step(tokens, state):
        logits, state = model.step(tokens, state)
        logits[state.position > 3] = bad
        return logits, state

    with pytest.raises(RegardError) as error:
        search(step, toys.start(model, sources), max_length=9, min_length=8, **toys.specials)
    assert str(error.value) == (
        "the model gives no possible next token\n"
        "  got:    logits that are NaN, or -inf for every token allowed here\n"
        "  wanted: finite logits\n"
        "  where:  token 4 of the output for row 0 of the batch\n"
        "  try:    look for NaN in the weights; where they are finite, decode in float32"
    )


@every_search
def test_one_nan_in_one_row_is_enough(toys, search):
    model, sources = toys.chain(vocab_size=7), toys.sources(3)

    def step(tokens, state):
        logits, state = model.step(tokens, state)
        logits[-1, -1, 5] = torch.nan
        return logits, state

    with pytest.raises(RegardError, match="token 1 of the output for row 2 of the batch"):
        search(step, toys.start(model, sources), max_length=9, **toys.specials)


@every_search
def test_a_row_is_over_before_what_comes_after_it_can_harm(toys, search):
    """A row that waits in the batch for the others may see anything."""
    model, sources = toys.chain(vocab_size=7), toys.sources(8)
    limits = [2] + [6] * 7
    poisoned = toys.start(model, sources).memory["table"][0]

    def step(tokens, state):
        logits, state = model.step(tokens, state)
        first = (state.memory["table"] == poisoned).all(-1).all(-1) & (state.position > 2)
        return logits.masked_fill(first[:, None, None], torch.nan), state

    options = {"max_length": limits, "min_length": 1, **toys.specials}
    assert search(step, toys.start(model, sources), **options) == search(
        model.step, toys.start(model, sources), **options
    )


@every_search
def test_an_output_is_not_shorter_than_the_minimum(toys, search):
    model, sources = toys.chain(vocab_size=7), toys.sources(30)
    options = {"max_length": 9, "prefixes": [[3] * (row % 3) for row in range(30)], **toys.specials}
    free = search(model.step, toys.start(model, sources), **options)
    held = search(model.step, toys.start(model, sources), min_length=5, **options)
    assert any(len(h.ids) < 5 for row in free for h in row)
    assert all(len(h.ids) >= 5 + place % 3 for place, row in enumerate(held) for h in row)


@every_search
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_comes_twice(toys, search, size):
    model, sources = toys.chain(vocab_size=7), toys.sources(20)
    options = {"max_length": 12, "min_length": 10, "prefixes": [[3, 4][: row % 3] for row in range(20)]}
    found = search(model.step, toys.start(model, sources), no_repeat_ngram=size, **options, **toys.specials)
    for hypothesis in (h for row in found for h in row):
        ngrams = [hypothesis.ids[i : i + size] for i in range(len(hypothesis.ids) - size + 1)]
        assert len(set(ngrams)) == len(ngrams)
    if size == 1:  # four letters only: where nothing is left, an output ends before its minimum
        assert {(len(h.ids), h.finished) for row in found for h in row} == {(4, True)}


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_repeats_names_the_tokens_that_would_repeat_an_ngram(rows, size):
    for row, banned in zip(rows, repeats(torch.tensor(rows), size, 4).tolist(), strict=True):
        seen = {tuple(row[i : i + size]) for i in range(len(row) - size + 1)}
        context = row[len(row) - size + 1 :]
        assert banned == [(*context, token) in seen for token in range(4)]


@every_search
def test_a_prefix_is_a_start_from_further_on(toys, search):
    """Forcing a prefix gives what the search gives from a state that has consumed it."""
    model = toys.chain(vocab_size=9)
    [source] = toys.sources(1, vocab_size=9)

    def step(tokens, state):
        logits, state = model.step(tokens, state)
        return logits.index_fill(-1, torch.tensor([1, 8]), -torch.inf), state

    options = {"max_length": 8, **toys.specials}
    [forced] = search(step, toys.start(model, [source]), prefixes=[[5, 3, 8]], **options)
    _, consumed = step(torch.tensor([[1, 5, 3]]), toys.start(model, [source]))
    # A search feeds `bos` first; here the last token of the prefix stands in its place.
    [continued] = search(step, consumed, **options | {"bos": 8})
    assert [h.ids for h in forced] == [(5, 3, 8, *h.ids) for h in continued]
    assert [(h.log_prob, h.score) for h in forced] == [(h.log_prob, h.score) for h in continued]


@every_search
def test_prefixes_of_all_lengths_in_one_batch(toys, search):
    model, sources = toys.chain(vocab_size=9), toys.sources(12, vocab_size=9)
    prefixes = [[3, 4, 5, 6, 7][: row % 6] for row in range(12)]
    limits = [1 + row % 7 for row in range(12)]
    together = search(model.step, toys.start(model, sources), max_length=limits, prefixes=prefixes, **toys.specials)
    for row, source in enumerate(sources):
        extra = {"indices": [row]} if search is SEARCHES["sample"] else {}
        [alone] = search(
            model.step,
            toys.start(model, [source]),
            max_length=limits[row],
            prefixes=[prefixes[row]],
            **extra,
            **toys.specials,
        )
        assert together[row] == alone
        for hypothesis in alone:
            assert list(hypothesis.ids[: len(prefixes[row])]) == prefixes[row]
            assert len(hypothesis.ids) - len(prefixes[row]) + hypothesis.finished <= limits[row]


@every_search
def test_a_prefix_that_the_model_finds_impossible_is_still_forced(toys, search):
    model = toys.chain(vocab_size=7)

    def step(tokens, state):
        logits, state = model.step(tokens, state)
        return logits.index_fill(-1, torch.tensor([6]), -torch.inf), state

    found = search(step, toys.start(model, toys.sources(2)), max_length=5, prefixes=[[6, 6], [6]], **toys.specials)
    assert [h.ids[:1] for row in found for h in row] == [(6,)] * sum(map(len, found))
    assert all(h.log_prob > -torch.inf for row in found for h in row)


@every_search
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 5, "prefixes": [[3], [4, EOS]]}, "a forced prefix cannot hold the end token\n  got:    [4, 2]"),
        ({"max_length": [5]}, "got:    1 limits and 2 prefixes for 2 sources"),
        ({"max_length": 5, "prefixes": [[3]]}, "got:    2 limits and 1 prefixes for 2 sources"),
        ({"max_length": [5, 0]}, "an output needs room\n  got:    max_length 0"),
    ],
)
def test_what_cannot_be_meant_is_an_error(toys, search, options, message):
    model = toys.chain()
    with pytest.raises(RegardError) as error:
        search(model.step, toys.start(model, [[3, EOS], [4, EOS]]), **options, **toys.specials)
    assert message in str(error.value)


@every_search
def test_a_state_without_rows_is_an_error(toys, search):
    model = toys.chain()
    state = toys.start(model, [[3, EOS]]).select(torch.tensor([], dtype=torch.long))
    with pytest.raises(RegardError, match="there is nothing to decode"):
        search(model.step, state, max_length=5, **toys.specials)


@every_search
def test_bfloat16_logits_are_summed_in_float32(toys, search):
    model = toys.chain(dtype=torch.float32)

    def rounded(dtype):
        def step(tokens, state):
            logits, state = model.step(tokens, state)
            return logits.bfloat16().to(dtype), state

        return search(step, toys.start(model, toys.sources(4)), max_length=9, **toys.specials)

    assert rounded(torch.bfloat16) == rounded(torch.float32)
