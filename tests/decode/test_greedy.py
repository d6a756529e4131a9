import pytest
import torch

from regard.decode.greedy import greedy_search

EOS = 2


def by_hand(model, state, max_length, prefix=()):
    """The likeliest token again and again, for one source: (ids, log_prob, finished)."""
    ids, total = list(prefix), 0.0
    logits, state = model.step(torch.tensor([[1, *prefix]]), state)
    for _ in range(max_length):
        log_probs = logits[0, -1].log_softmax(-1)
        allowed = log_probs.clone()
        allowed[:2] = -torch.inf
        token = int(allowed.argmax())
        total += float(log_probs[token])
        if token == EOS:
            return tuple(ids), total, True
        ids.append(token)
        logits, state = model.step(torch.tensor([[token]]), state)
    return tuple(ids), total, False


@pytest.mark.parametrize("name", ["chain", "reader"])
def test_takes_the_likeliest_token_each_time(toys, name):
    model = getattr(toys, name)(vocab_size=8)
    sources = toys.sources(20, vocab_size=8)
    limits = [1 + row % 8 for row in range(20)]
    prefixes = [[3, 4, 5][: row % 4] for row in range(20)]
    found = greedy_search(
        model.step,
        toys.start(model, sources),
        max_length=limits,
        prefixes=prefixes,
        length_penalty=0.5,
        **toys.specials,
    )
    lengths = set()
    for source, limit, prefix, [hypothesis] in zip(sources, limits, prefixes, found, strict=True):
        ids, log_prob, finished = by_hand(model, toys.start(model, [source]), limit, prefix)
        assert (hypothesis.ids, hypothesis.finished) == (ids, finished)
        assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-5)
        chosen = len(ids) - len(prefix) + finished
        assert hypothesis.score == pytest.approx(log_prob / chosen**0.5, rel=1e-5)
        lengths.add(chosen)
    assert len(lengths) > 3  # the case is not a trivial one


def test_the_specials_never_come_out(toys):
    model = toys.chain()

    def step(tokens, state):
        logits, state = model.step(tokens, state)
        logits[..., :2] += 50.0
        return logits, state

    found = greedy_search(step, toys.start(model, toys.sources(8)), max_length=9, **toys.specials)
    assert all(token > 2 for [hypothesis] in found for token in hypothesis.ids)


def test_rows_that_are_over_are_not_stepped_for_long(toys):
    model, sources = toys.chain(), toys.sources(40)
    greedy_search(model.step, toys.start(model, sources), max_length=[2] * 39 + [50], min_length=1, **toys.specials)
    assert model.rows_stepped <= 40 * 2 + 50
