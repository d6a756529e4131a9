"""Beam search against enumeration of all outputs, and against a plain beam search over Python lists."""

import math

import pytest
import torch

from regard.decode.beam import beam_search
from regard.decode.greedy import greedy_search
from regard.types import Sequences

PAD, BOS, EOS = 0, 1, 2


def as_rows(hypotheses):
    return [(h.ids, pytest.approx(h.log_prob), pytest.approx(h.score), h.finished) for h in hypotheses]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("prefixes", [None, [(), (3,), (4, 5)]])
def test_a_beam_as_wide_as_all_outputs_finds_the_true_best_ones(toys, alpha, prefixes):
    model = toys.chain(seed=int(alpha * 10))
    sources = toys.sources(3)
    found = beam_search(
        model.step,
        toys.start(model, sources),
        beam=300,
        n_best=12,
        max_length=[4, 3, 4],
        length_penalty=alpha,
        prefixes=prefixes,
        **toys.specials,
    )
    for row, source in enumerate(sources):
        prefix = prefixes[row] if prefixes else ()
        truth = toys.truth(model, source, max_length=[4, 3, 4][row], alpha=alpha, prefix=prefix)
        assert [tuple(output) for output in truth[:12]] == as_rows(found[row])


def test_a_beam_as_wide_as_all_outputs_keeps_to_the_minimal_length(toys):
    model, sources = toys.chain(), toys.sources(2)
    found = beam_search(
        model.step, toys.start(model, sources), beam=300, n_best=9, max_length=4, min_length=2, **toys.specials
    )
    for row, source in enumerate(sources):
        truth = toys.truth(model, source, max_length=4, alpha=1.0, min_length=2)
        assert truth[:9] == as_rows(found[row])
    assert all(len(h.ids) >= 2 for hypotheses in found for h in hypotheses)


def plain_beam_search(model, source, *, beam, n_best, max_length, alpha, early_stop):
    """The same search over lists, one source, no tensors but the model's: (ids, finished) of each output."""
    start = model.start(Sequences(torch.tensor([source]), torch.tensor([len(source)])), 99)
    opened, ended, cut = [(0.0, ())], [], []
    for time in range(max_length):
        candidates = []
        for total, ids in opened:
            logits, _ = model.step(torch.tensor([[BOS, *ids]]), start)
            log_probs = logits[0, -1].log_softmax(-1).tolist()
            candidates += [(total + log_probs[v], (*ids, v)) for v in range(model.vocab_size) if v not in (PAD, BOS)]
        candidates = sorted(candidates, reverse=True)[: 2 * beam]
        last = time + 1 == max_length
        for place, (total, ids) in enumerate(candidates):
            score = total / len(ids) ** alpha
            if ids[-1] == EOS and (place < beam or last):
                ended.append((score, ids[:-1], True))
            elif ids[-1] != EOS and last:
                cut.append((score, ids, False))
        opened = [c for c in candidates if c[1][-1] != EOS][:beam]
        kept = sorted(ended, reverse=True)[:n_best]
        worst = kept[-1][0] if len(kept) == n_best else -math.inf
        if opened[0][0] / max_length**alpha <= worst or (early_stop and len(ended) >= beam):
            break
    return [(ids, finished) for _, ids, finished in (sorted(ended, reverse=True) + sorted(cut, reverse=True))[:n_best]]


@pytest.mark.parametrize("early_stop", [False, True])
@pytest.mark.parametrize(("beam", "n_best"), [(2, 1), (2, 2), (3, 2), (5, 1), (5, 5)])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_equals_a_plain_beam_search(toys, beam, n_best, alpha, early_stop):
    model, sources = toys.chain(vocab_size=9, seed=beam, scale=2.5), toys.sources(24, vocab_size=9)
    limits = [3 + row % 9 for row in range(24)]
    options = {"beam": beam, "n_best": n_best, "early_stop": early_stop}
    found = beam_search(
        model.step, toys.start(model, sources), max_length=limits, length_penalty=alpha, **options, **toys.specials
    )
    wanted = [
        plain_beam_search(model, source, max_length=limit, alpha=alpha, **options)
        for source, limit in zip(sources, limits, strict=True)
    ]
    assert [[(h.ids, h.finished) for h in row] for row in found] == wanted
    assert any(len(ids) > 2 for row in wanted for ids, _ in row)  # the case is not a trivial one


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_of_one_is_greedy_search(toys, alpha):
    model, sources = toys.chain(vocab_size=9), toys.sources(20)
    options = {"max_length": 12, "length_penalty": alpha, **toys.specials}
    assert beam_search(model.step, toys.start(model, sources), beam=1, **options) == greedy_search(
        model.step, toys.start(model, sources), **options
    )


def never_ending(toys, ends_at=None):
    """Logits of one token all the time; the end token has no chance before `ends_at`."""
    model = toys.chain()

    def step(tokens, state):
        logits, state = model.step(tokens, state)
        flat = torch.full_like(logits, -1.0)
        flat[..., 3] = 1.0
        may_end = torch.full((len(tokens),), False) if ends_at is None else state.position > ends_at
        flat[..., EOS] = torch.where(may_end, 9.0, -torch.inf)[:, None]
        return flat, state

    return step, toys.start(model, [[3, EOS]])


def test_outputs_cut_off_by_the_limit_come_back_unfinished(toys):
    step, state = never_ending(toys)
    [found] = beam_search(step, state, beam=3, n_best=3, max_length=4, **toys.specials)
    assert [h.finished for h in found] == [False] * 3
    assert found[0].ids == (3, 3, 3, 3)
    assert found[0].score == pytest.approx(found[0].log_prob / 4)


def test_unfinished_outputs_only_fill_up_behind_finished_ones(toys):
    step, state = never_ending(toys, ends_at=3)
    [found] = beam_search(step, state, beam=3, n_best=3, max_length=4, **toys.specials)
    assert [(h.ids, h.finished) for h in found][:1] == [((3, 3, 3), True)]
    assert all(h.finished for h in found)
    step, state = never_ending(toys, ends_at=0)  # ends at once, with near certainty: few others get anywhere
    [found] = beam_search(step, state, beam=2, n_best=2, max_length=1, **toys.specials)
    assert [(h.ids, h.finished) for h in found] == [((), True), ((3,), False)]


def test_a_later_and_longer_output_wins_where_its_score_is_better(toys):
    """The first output to end is not the best one under a length penalty; the search must go on for it."""
    model = toys.chain()

    def step(tokens, state):
        logits, state = model.step(tokens, state)
        probs = torch.full_like(logits, 1e-9)
        probs[..., EOS] = torch.where(state.position == 1, 0.4, torch.where(state.position == 6, 0.99, 1e-9))[:, None]
        probs[..., 3] = 1 - probs[..., EOS]
        return probs.log(), state

    best = {}
    for alpha in (0.0, 1.0):
        state = toys.start(model, [[3, EOS]])
        [[best[alpha]]] = beam_search(step, state, beam=2, max_length=9, length_penalty=alpha, **toys.specials)
    assert best[0.0].ids == (3,) * 5  # log 0.6 > log 0.4
    assert best[1.0].ids == (3,) * 5
    state = toys.start(model, [[3, EOS]])
    [[early]] = beam_search(step, state, beam=2, max_length=3, length_penalty=0.0, early_stop=True, **toys.specials)
    assert early.ids == ()


def test_sources_that_are_over_leave_the_batch(toys):
    model = toys.chain(vocab_size=9)
    sources = toys.sources(32, vocab_size=9)
    limits = [2] * 31 + [30]
    beam_search(model.step, toys.start(model, sources), beam=4, max_length=limits, min_length=1, **toys.specials)
    assert model.rows_stepped < 32 + 32 * 4 * 2 + 4 * 30


def test_the_state_is_reordered_within_its_source_only(toys):
    """The memory is selected when rows are made or dropped, not in the steps between."""
    model, sources = toys.reader(), toys.sources(4, vocab_size=8)
    memories = []

    def step(tokens, state):
        if not any(state.memory["hidden"] is memory for memory in memories):
            memories.append(state.memory["hidden"])
        return model.step(tokens, state)

    beam_search(step, toys.start(model, sources, 12), beam=3, max_length=12, min_length=11, **toys.specials)
    assert len(memories) == 2


def test_float64_logits_keep_their_precision(toys):
    for dtype in (torch.float32, torch.float64):
        model = toys.chain(dtype=dtype)
        [[found]] = beam_search(
            model.step, toys.start(model, [[3, 4, EOS]]), beam=4, max_length=8, length_penalty=0.0, **toys.specials
        )
        inputs = torch.tensor([[BOS, *found.ids]])
        logits, _ = toys.chain(dtype=torch.float64).step(inputs, toys.start(toys.chain(), [[3, 4, EOS]]))
        chosen = torch.tensor([*found.ids, EOS])[: inputs.shape[1]]
        exact = logits[0].log_softmax(-1).gather(1, chosen[:, None]).sum().item()
        assert found.log_prob == pytest.approx(exact, rel=1e-14 if dtype == torch.float64 else 1e-5)
