"""Contrastive search against the paper's formula, over whole texts that are read anew at every step."""

import pytest
import torch
import torch.nn.functional as F

from regard.config import read_section
from regard.decode.config import DecodeConfig
from regard.decode.search import decode, stream
from regard.errors import RegardError
from regard.models import Sizes, family, with_preset
from regard.types import Batch, Sequences

EOS = 2
FORMS = {
    "gpt": {"layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 24, "max_length": 32},
    "transformer_xl": {"layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 24, "memory": 8},
}


def build(name, vocab_size=11):
    config = read_section(family(name).Config, with_preset(name, FORMS[name]), where="this test")
    model = family(name).build(config, Sizes(vocab_size, vocab_size, shared=True)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def by_the_formula(model, prompt, *, top_k, penalty, limit):
    """argmax over the k likeliest v of (1 - penalty) p(v | x) - penalty max_j cos(h_v, h_j) (Su et al. 2022, (5))."""

    def states(ids):
        return model.hidden(Batch(Sequences(torch.tensor([ids]), torch.tensor([len(ids)]))))[0]

    ids, total = list(prompt), 0.0
    while len(ids) < len(prompt) + limit:
        before = states(ids)
        probs = model.head(before[-1]).softmax(-1)
        probs[0] = 0  # no output holds pad
        scores = {}
        for token in probs.topk(top_k).indices.tolist():
            after = states([*ids, token])[-1]
            likeness = F.cosine_similarity(before, after[None]).max()
            scores[token] = float((1 - penalty) * probs[token] - penalty * likeness)
        best = max(scores, key=scores.__getitem__)
        total += float(probs[best].log())
        if best == EOS:
            return tuple(ids[len(prompt) :]), total, True
        ids.append(best)
    return tuple(ids[len(prompt) :]), total, False


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("top_k", "penalty"), [(1, 0.6), (4, 0.0), (4, 0.3), (6, 0.6), (6, 1.0)])
@torch.no_grad()
def test_every_token_is_the_formulas(name, top_k, penalty, toys):
    model = build(name)
    prompts = [[3], [5, 4, 9, 10], [7, 8, 3], [6, 6]]
    config = DecodeConfig(method="contrastive", top_k=top_k, penalty=penalty, max_length=9)
    options = {**toys.specials, "bos": None}
    many = decode(model, [[]] * 4, config, prefixes=prompts, **options)
    for prompt, [found] in zip(prompts, many, strict=True):
        ids, total, finished = by_the_formula(model, prompt, top_k=top_k, penalty=penalty, limit=9)
        assert found.ids == (*prompt, *ids)
        assert found.finished is finished
        assert found.log_prob == pytest.approx(total, abs=1e-5)
        pieces = stream(model, [], config, prefix=prompt, **options)
        assert tuple(pieces) == ids


@torch.no_grad()
def test_the_limits_are_those_of_the_search(toys):
    """One candidate, or no penalty, is greedy search; a vocabulary smaller than k is taken whole."""
    model, prompts = build("gpt"), [[3], [5, 4, 9], [7, 8]]
    options = {**toys.specials, "bos": None, "prefixes": prompts}
    greedy = decode(model, [[]] * 3, DecodeConfig(method="greedy", max_length=12), **options)
    for keys in ({"top_k": 1}, {"top_k": 5, "penalty": 0.0}, {"top_k": 50, "penalty": 0.0}):
        found = decode(model, [[]] * 3, DecodeConfig(method="contrastive", max_length=12, **keys), **options)
        assert [row[0].ids for row in found] == [row[0].ids for row in greedy]
    # all of the learned positions and of the cache are used, and no more
    for bos, prefix in ((None, [3]), (1, [])):
        config = DecodeConfig(method="contrastive", top_k=3, max_length=31, min_length=30)
        [[found]] = decode(model, [[]], config, **options | {"bos": bos, "prefixes": [prefix]})
        assert len(found.ids) - len(prefix) >= 30


@torch.no_grad()
def test_rules_hold_for_it_too(toys):
    model = build("gpt")
    config = DecodeConfig(method="contrastive", top_k=3, penalty=0.0, max_length=20, min_length=15, no_repeat_ngram=2)
    [[found]] = decode(model, [[]], config, prefixes=[[3, 4]], **toys.specials | {"bos": None})
    assert len(found.ids) >= 17
    pairs = list(zip(found.ids, found.ids[1:], strict=False))
    assert len(set(pairs)) == len(pairs)


def test_a_model_without_states_is_an_error(toys):
    with pytest.raises(RegardError, match="contrastive search compares hidden states, which this model does not give"):
        decode(toys.chain(), [[3, EOS]], DecodeConfig(method="contrastive", top_k=3), **toys.specials)
