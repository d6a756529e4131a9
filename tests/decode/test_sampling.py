import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decode.sampling import draw, sample, truncate

EOS = 2
distributions = st.lists(st.floats(-8, 8), min_size=2, max_size=12).map(
    lambda logits: torch.tensor(logits, dtype=torch.float64).log_softmax(-1)
)


def kept(log_probs):
    return (log_probs > -torch.inf).tolist()


@given(distributions, st.integers(1, 14))
def test_top_k_keeps_the_k_likeliest(log_probs, k):
    found = truncate(log_probs, top_k=k)
    inside = torch.tensor(kept(found))
    assert inside.sum() == min(k, len(log_probs))
    assert log_probs[inside].min() >= log_probs[~inside].max() if (~inside).any() else True


@given(distributions, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_that_reaches_p(log_probs, p):
    inside = torch.tensor(kept(truncate(log_probs, top_p=p)))
    probs = log_probs.exp()
    assert probs[inside].sum() >= p - 1e-9
    # without its least likely member it would not reach p
    assert probs[inside].sum() - probs[inside].min() < p + 1e-9
    assert probs[inside].min() >= probs[~inside].max() if (~inside).any() else True


@given(distributions, st.floats(0.0, 1.0))
def test_min_p_keeps_a_share_of_the_likeliest(log_probs, share):
    probs = log_probs.exp()
    assert kept(truncate(log_probs, min_p=share)) == (probs >= share * probs.max()).tolist()


@given(distributions, st.floats(0.2, 5.0), st.integers(0, 12), st.floats(0.1, 1.0), st.floats(0.0, 1.0))
def test_what_is_kept_passes_every_rule_and_keeps_its_proportions(log_probs, temperature, k, p, share):
    found = truncate(log_probs, temperature=temperature, top_k=k, top_p=p, min_p=share)
    tempered = (log_probs / temperature).log_softmax(-1)
    rules = [truncate(tempered, top_k=k), truncate(tempered, top_p=p), truncate(tempered, min_p=share)]
    inside = torch.tensor([all(column) for column in zip(*map(kept, rules), strict=True)])
    assert kept(found) == inside.tolist()
    assert inside[tempered.argmax()]
    torch.testing.assert_close(found[inside], tempered[inside].log_softmax(-1))


@given(distributions, st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_cumulative_distribution(log_probs, uniform):
    token = int(draw(log_probs, torch.tensor(uniform)))
    below, upto = log_probs.exp()[:token].sum(), log_probs.exp()[: token + 1].sum()
    assert below - 1e-7 <= uniform <= upto + 1e-7


@pytest.mark.parametrize("uniform", [0.0, 0.3, 1 - 2**-24, 1.0])
def test_draw_never_gives_a_token_of_probability_zero(uniform):
    log_probs = torch.tensor([0.0, 1e-8, 0.0, 1.0, 1e-30, 0.0]).log().log_softmax(-1)
    assert int(draw(log_probs, torch.tensor(uniform))) in (1, 3, 4)


def test_samples_follow_the_distribution_of_the_model(toys):
    """The first tokens of many sources with one table: their counts fit the probabilities (chi-square)."""
    model = toys.chain(vocab_size=8)
    count = 4000
    state = toys.start(model, [[3, 4, EOS]]).select(torch.zeros(count, dtype=torch.long))
    found = sample(model.step, state, max_length=1, temperature=1.3, top_k=4, seed=5, **toys.specials)
    logits, _ = model.step(torch.tensor([[1]]), toys.start(model, [[3, 4, EOS]]))
    logits[..., :2] = -torch.inf
    wanted = truncate(logits[0, 0].log_softmax(-1), temperature=1.3, top_k=4).exp() * count
    counts = torch.zeros(8, dtype=torch.float64)
    for [hypothesis] in found:
        counts[hypothesis.ids[0] if hypothesis.ids else EOS] += 1
    inside = wanted > 0
    assert counts[~inside].sum() == 0
    assert float(((counts - wanted)[inside] ** 2 / wanted[inside]).sum()) < 16.3  # 0.1 % of true samples, 3 degrees


def test_log_probs_are_those_of_the_model_before_truncation(toys):
    model = toys.chain(vocab_size=8)
    [[found]] = sample(
        model.step, toys.start(model, [[3, EOS]]), max_length=9, temperature=2.0, top_k=3, **toys.specials
    )
    chosen = torch.tensor([*found.ids, *[EOS] * found.finished])
    logits, _ = model.step(torch.tensor([[1, *found.ids]]), toys.start(model, [[3, EOS]]))
    wanted = logits[0, : len(chosen)].log_softmax(-1).gather(1, chosen[:, None]).sum().item()
    assert found.log_prob == pytest.approx(wanted)
    assert found.score == pytest.approx(wanted / len(chosen))


def test_a_draw_depends_on_seed_place_and_number_only(toys):
    model, sources = toys.chain(vocab_size=9), toys.sources(10, vocab_size=9)

    def run(rows, **options):
        state = toys.start(model, [sources[row] for row in rows])
        return sample(model.step, state, indices=rows, **{"max_length": 9, **options}, **toys.specials)

    together = run(list(range(10)), num_samples=3)
    assert run([7, 2], num_samples=3) == [together[7], together[2]]
    first = run([4])[0][0]
    assert first in together[4]
    assert run(list(range(10)), num_samples=3, seed=1) != together
    assert len({h.ids for h in run([4], num_samples=20)[0]}) > 1
    assert all(row == sorted(row, key=lambda h: (not h.finished, -h.score)) for row in together)


def test_a_cold_sample_is_greedy_search(toys):
    from regard.decode.greedy import greedy_search

    model, sources = toys.chain(vocab_size=9), toys.sources(10, vocab_size=9)
    greedy = greedy_search(model.step, toys.start(model, sources), max_length=9, **toys.specials)
    for options in ({"temperature": 1e-4}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert sample(model.step, toys.start(model, sources), max_length=9, **options, **toys.specials) == greedy


def test_noise_is_the_same_on_every_machine(toys):
    """These outputs are part of the promise that a seed makes."""
    uniform = torch.zeros(1, 1, 8, dtype=torch.float64)

    def step(tokens, state):
        return uniform.expand(len(tokens), tokens.shape[1], 8), state.advance(tokens.shape[1])

    state = toys.start(toys.chain(), [[3, EOS]])
    [[found]] = sample(step, state, max_length=8, min_length=8, seed=3, **toys.specials)
    assert found.ids == (4, 5, 6, 5, 5, 4, 4, 6)
    assert found.log_prob == pytest.approx(-8 * math.log(8))
