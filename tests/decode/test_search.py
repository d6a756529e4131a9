"""The driver: batches, order, limits, prefixes, empty inputs; batch of one = batch of many."""

import dataclasses

import pytest
import torch

from regard.decode.config import DecodeConfig
from regard.decode.rules import Hypothesis
from regard.decode.search import batches, decode, pad_rows
from regard.errors import RegardError

EOS = 2
CONFIGS = {
    "greedy": DecodeConfig(method="greedy"),
    "beam": DecodeConfig(beam=4, n_best=3, max_ratio=0.5),
    "early": DecodeConfig(beam=4, n_best=2, early_stop=True, no_repeat_ngram=2),
    "sample": DecodeConfig(method="sample", n_best=3, top_p=0.8, max_length=12),
}
every_method = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@every_method
@pytest.mark.parametrize("name", ["chain", "reader"])
@pytest.mark.parametrize("with_prefixes", [False, True])
def test_batch_of_one_is_batch_of_many(toys, config, name, with_prefixes):
    model = getattr(toys, name)(vocab_size=8, dtype=torch.float64)
    sources = toys.sources(25, vocab_size=8)
    prefixes = [[3, 4, 5, 6][: row % 5] for row in range(25)] if with_prefixes else [[]] * 25
    many = decode(model, sources, config, prefixes=prefixes, **toys.specials)
    small = dataclasses.replace(config, batch_tokens=100)
    assert same(decode(model, sources, small, prefixes=prefixes, **toys.specials), many)
    for row, source in enumerate(sources):
        one = decode(model, [source], config, prefixes=[prefixes[row]], first_index=row, **toys.specials)
        assert same(one, [many[row]])
    assert len({len(h.ids) for row in many for h in row}) > 3  # the case is not a trivial one


def same(left, right):
    flat_left, flat_right = ([h for row in rows for h in row] for rows in (left, right))
    return [(h.ids, h.finished) for h in flat_left] == [(h.ids, h.finished) for h in flat_right] and [
        h.log_prob for h in flat_left
    ] == pytest.approx([h.log_prob for h in flat_right], rel=1e-9)


@every_method
def test_the_order_of_the_input_does_not_matter(toys, config):
    if config.method == "sample":
        config = dataclasses.replace(config, top_k=1)  # a draw depends on the place
    model, sources = toys.chain(), toys.sources(20)
    found = decode(model, sources, config, **toys.specials)
    assert decode(model, sources[::-1], config, **toys.specials) == found[::-1]


@every_method
def test_empty_texts_have_empty_outputs_and_the_model_is_not_asked(toys, config):
    model = toys.chain()
    empty = [Hypothesis((), 0.0, 0.0, True)]
    assert decode(model, [], config, **toys.specials) == []
    assert decode(model, [[EOS], [EOS]], config, **toys.specials) == [empty, empty]
    assert model.rows_stepped == 0
    sources = [[3, EOS], [EOS], [4, 5, EOS]]
    found = decode(model, sources, config, **toys.specials)
    assert found[1] == empty
    assert found[0] == decode(model, sources[:1], config, **toys.specials)[0]


@every_method
def test_no_source_and_a_forced_prefix_are_decoded(toys, config):
    model = toys.chain()
    found = decode(model, [[], [EOS], []], config, prefixes=[[], [3], [4, 5]], **toys.specials)
    assert found[0][0].ids
    assert [row[0].ids[: len(prefix)] for row, prefix in zip(found[1:], [[3], [4, 5]], strict=True)] == [(3,), (4, 5)]


def test_limits_come_from_the_own_source(toys):
    """An output has at most max_ratio times its source's tokens and ten more, and at most max_length."""
    model = toys.chain()

    class Endless:
        def start(self, source, max_length):
            return model.start(source, max_length)

        def step(self, tokens, state):
            logits, state = model.step(tokens, state)
            return logits.index_fill(-1, torch.tensor([EOS]), -50.0), state

    sources = [[3] * 3 + [EOS], [3] * 9 + [EOS], [3] * 30 + [EOS]]
    config = DecodeConfig(method="greedy", max_ratio=1.5, max_length=40)
    found = decode(Endless(), sources, config, prefixes=[[], [4] * 5, []], **toys.specials)
    assert [len(row[0].ids) for row in found] == [16, 25 + 5, 40]
    config = DecodeConfig(method="greedy", max_ratio=0.1, min_length=15)
    assert len(decode(Endless(), sources[:1], config, **toys.specials)[0][0].ids) == 16


def test_batches_keep_to_the_budget_and_hold_every_row_once(toys):
    sources, config = toys.sources(60, longest=30), DecodeConfig(beam=3, batch_tokens=200)
    found = batches(range(60), sources, [[]] * 60, config)
    assert sorted(row for batch in found for row in batch) == list(range(60))
    sizes = [3 * len(batch) * max(len(sources[row]) for row in batch) for batch in found]
    assert max(sizes) <= 200
    assert len(found) <= 2 * sum(3 * len(source) for source in sources) / 200
    assert batches([0], [[3] * 500], [[]], config) == [[0]]


def test_progress_is_told(toys):
    told = []
    sources = [*toys.sources(9), [EOS]]
    config = DecodeConfig(method="greedy", batch_tokens=20)
    decode(toys.chain(), sources, config, on_batch=lambda done, total: told.append((done, total)), **toys.specials)
    assert told[-1] == (10, 10)
    assert told == sorted(told)
    assert len(told) > 2


def test_sources_are_padded_at_the_right():
    sequences = pad_rows([[5, EOS], [6, 7, EOS], []], 0)
    assert sequences.ids.tolist() == [[5, 2, 0], [6, 7, 2], [0, 0, 0]]
    assert sequences.lengths.tolist() == [2, 3, 0]


def test_prefixes_that_do_not_fit_the_sources_are_an_error(toys):
    with pytest.raises(RegardError, match="each source needs one prefix\n  got:    1\n  wanted: 2"):
        decode(toys.chain(), [[3, EOS]] * 2, DecodeConfig(), prefixes=[[3]], **toys.specials)
