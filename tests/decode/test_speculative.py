"""Speculative decoding: what comes out is what the model alone says, whatever the draft guesses."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.config import read_section
from regard.decode.config import DecodeConfig
from regard.decode.sampling import draw, truncate
from regard.decode.search import decode, stream
from regard.decode.speculative import Draft, accept, certain, rest
from regard.errors import ConfigError, RegardError
from regard.models import Sizes, family, with_preset

EOS = 2
PRESETS = {"gpt": "tiny", "transformer_xl": "tiny", "transformer": "tiny", "t5": "v1.1-small"}
CONFIGS = {
    "plain": DecodeConfig(method="greedy", max_length=15),
    "rules": DecodeConfig(method="greedy", max_length=15, min_length=6, no_repeat_ngram=2),
    "one": DecodeConfig(method="greedy", max_length=15, draft_tokens=1),
    "many": DecodeConfig(method="greedy", max_length=15, draft_tokens=9),
    "short": DecodeConfig(method="greedy", max_length=1),
}
distributions = st.lists(st.floats(0.01, 1), min_size=5, max_size=5).map(
    lambda weights: torch.tensor(weights, dtype=torch.float64) / sum(weights)
)


def flat(rows):
    return [(h.ids, h.finished, pytest.approx(h.log_prob, rel=1e-4, abs=1e-4)) for row in rows for h in row]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("seed", [0, 1])  # 0: the draft is the model itself
@pytest.mark.parametrize("bos", [1, None])
def test_greedy_is_greedy_alone(toys, config, seed, bos):
    model, draft = toys.reader(vocab_size=9), Draft(toys.reader(vocab_size=9, seed=seed))
    sources, least = toys.sources(8, vocab_size=9), 0 if bos else 1
    prefixes = [[3, 4, 5, 6][: least + row % 4] for row in range(8)]
    options = {**toys.specials, "bos": bos}
    alone = decode(model, sources, config, prefixes=prefixes, **options)
    assert flat(decode(model, sources, config, prefixes=prefixes, draft=draft, **options)) == flat(alone)
    assert len({len(h.ids) for row in alone for h in row}) > 3
    if config.max_length > 1:
        assert draft.share > 0.9 if seed == 0 else 0 < draft.share < 0.9
    for row, prefix in enumerate(prefixes[:2]):
        pieces = stream(model, sources[row], config, prefix=prefix, draft=draft, **options)
        assert (*prefix, *pieces) == alone[row][0].ids


@given(distributions, distributions)
def test_guess_and_check_has_the_models_distribution(p, q):
    """P(x) = q(x) min(1, p / q) + P(no guess is taken) rest(x), summed over every guess: it is p, exactly."""
    tokens = torch.arange(5)
    grid = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    taken = accept(p.expand(5, 20000, 5), q.expand(5, 20000, 5), tokens[:, None].expand(5, 20000), grid.expand(5, -1))
    share = taken.double().mean(1)
    torch.testing.assert_close(share, (p / q).clamp(max=1), rtol=0, atol=1e-4)
    share = (p / q).clamp(max=1)
    found = q * share + (1 - (q * share).sum()) * rest(p, q).exp()
    torch.testing.assert_close(found, p)


def test_what_is_certain_or_alike_needs_no_chance():
    p = torch.tensor([0.3, 0.7])
    torch.testing.assert_close(rest(p, p).exp(), p)  # nothing is left of p - q: any answer will do, as it is not asked
    assert certain(p.log()).exp().tolist() == [0.0, 1.0]
    assert rest(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])).exp().tolist() == [0.0, 1.0]
    assert int(draw(rest(p, torch.zeros(2)), torch.tensor(0.29))) == 0


@pytest.mark.parametrize("keys", [{}, {"temperature": 1.5, "top_k": 4, "draft_tokens": 2}])
def test_samples_follow_the_distribution_of_the_model(toys, keys):
    """Whole outputs of three tokens: counts of many fit what the model alone gives them (chi-square)."""
    model, draft = toys.reader(vocab_size=6, dim=4), Draft(toys.reader(vocab_size=6, dim=4, seed=2))
    count, source = 6000, [3, 4, EOS]
    config = DecodeConfig(method="sample", n_best=count, max_length=3, seed=5, **keys)
    [found] = decode(model, [source], config, draft=draft, **toys.specials)
    [alone] = decode(model, [source], config, **toys.specials)
    assert 0.2 < draft.share < 0.9
    outputs = [tuple(o) for n in range(4) for o in itertools.product((3, 4, 5), repeat=n)]
    truth = truths(model, source, toys, keys)
    assert sum(truth.values()) == pytest.approx(1)
    for drawn in (found, alone):
        statistic = 0.0
        for ids in outputs:
            for finished in (True, False):
                seen = sum(h.ids == ids and h.finished is finished for h in drawn)
                wanted = truth.get((ids, finished), 0.0) * count
                assert wanted or not seen
                statistic += (seen - wanted) ** 2 / wanted if wanted else 0.0
        cells = len(truth) - 1
        assert statistic < cells + 4 * (2 * cells) ** 0.5


def truths(model, source, toys, keys):
    """The probability of every output, by the step and the truncation of plain sampling."""
    options = {name: value for name, value in keys.items() if name != "draft_tokens"}
    found = {}

    def follow(ids, probability):
        logits, _ = model.step(torch.tensor([[1, *ids]]), toys.start(model, [source]))
        log_probs = logits[0, -1].log_softmax(-1)
        log_probs[:2] = -torch.inf
        for token, p in enumerate(truncate(log_probs, **options).exp().tolist()):
            if p and token == EOS:
                found[(*ids,), True] = probability * p
            elif p and len(ids) == 2:
                found[(*ids, token), False] = probability * p
            elif p:
                follow([*ids, token], probability * p)

    follow([], 1.0)
    return found


@pytest.mark.parametrize("keys", [{"n_best": 3}, {"temperature": 0.7, "draft_tokens": 2, "min_length": 3}])
def test_batch_of_one_is_batch_of_many(toys, keys):
    model, draft = toys.reader(dtype=torch.float64), Draft(toys.reader(dtype=torch.float64, seed=3))
    config = DecodeConfig(method="sample", max_length=12, seed=2, **keys)
    sources = toys.sources(9, vocab_size=8)
    prefixes = [[3, 4, 5, 6][: row % 5] for row in range(9)]
    many = decode(model, sources, config, prefixes=prefixes, draft=draft, **toys.specials)
    for row, source in enumerate(sources):
        one = decode(model, [source], config, prefixes=[prefixes[row]], first_index=row, draft=draft, **toys.specials)
        assert flat(one) == flat([many[row]])


def test_a_model_reads_less_often_than_it_writes(toys):
    model, steps = toys.reader(), []

    class Counted:
        start = staticmethod(model.start)

        def step(self, tokens, state):
            steps.append(tokens.shape[1])
            return model.step(tokens, state)

    config = DecodeConfig(method="greedy", max_length=21, min_length=20)
    [[found]] = decode(Counted(), [[3, EOS]], config, draft=Draft(model), **toys.specials)
    assert len(found.ids) >= 20
    assert steps == [5, 5, 5, 5, 1]  # bos and four guesses, and so on


def test_a_broken_draft_costs_time_and_nothing_else(toys):
    model, broken = toys.reader(), toys.reader()
    broken.out = broken.out * torch.nan
    for method in ("greedy", "sample"):
        config = DecodeConfig(method=method, max_length=9)
        draft = Draft(broken)
        found = decode(model, [[3, 4, EOS]], config, draft=draft, **toys.specials)
        assert found[0][0].log_prob > -torch.inf
        assert draft.share < 0.5
    with pytest.raises(RegardError, match="the model gives no possible next token"):
        decode(broken, [[3, 4, EOS]], config, draft=Draft(model), **toys.specials)


def test_what_cannot_be_drafted_is_an_error(toys):
    draft = Draft(toys.reader())
    for config in (DecodeConfig(), DecodeConfig(method="contrastive", top_k=2)):
        with pytest.raises(ConfigError, match="a draft guesses for greedy search or sampling"):
            decode(toys.reader(), [[3, EOS]], config, draft=draft, **toys.specials)
    with pytest.raises(
        RegardError, match="takes guesses back, which a recurrent state cannot\n  got:    the model's code"
    ):
        decode(toys.chain(), [[3, EOS]], DecodeConfig(method="greedy"), draft=draft, **toys.specials)
    with pytest.raises(RegardError, match="the draft's code"):
        decode(toys.reader(), [[3, EOS]], DecodeConfig(method="greedy"), draft=Draft(toys.chain()), **toys.specials)


@pytest.mark.parametrize("name", ["gpt", "transformer_xl", "transformer", "t5"])
def test_families_speculate(toys, name):
    """A model and a smaller one of the same family: greedy output is that of the model alone."""
    models = []
    for seed, scale in ((0, 0.5), (1, 0.52)):
        torch.manual_seed(seed)
        table = with_preset(name, {"model_dim": 16, "num_heads": 2, "ffn_dim": 16, "preset": PRESETS[name]})
        config = read_section(family(name).Config, table, where="this test")
        model = family(name).build(config, Sizes(9, 9, shared=True)).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(scale * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
        models.append(model)
    large, small = models
    sources = toys.sources(4, vocab_size=9) if family(name).KINDS == ("seq2seq",) else [[]] * 4
    config, prefixes = DecodeConfig(method="greedy", max_length=25, max_ratio=20.0), [[3], [4, 5], [6], [7, 7, 8]]
    draft = Draft(small)
    found = decode(large, sources, config, prefixes=prefixes, draft=draft, **toys.specials)
    assert flat(found) == flat(decode(large, sources, config, prefixes=prefixes, **toys.specials))
    assert draft.accepted
