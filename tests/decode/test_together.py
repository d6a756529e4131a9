"""An ensemble: the mean of the probabilities, whatever the search does with its state."""

import pytest
import torch

from regard.decode.config import DecodeConfig
from regard.decode.search import decode
from regard.decode.together import Together, mean_log_probs
from regard.models import Sizes, build, family
from regard.types import Batch, Sequences

EOS = 2
OPTIONS = {"bos": 1, "eos": EOS, "pad": 0}


def model(name: str, seed: int):
    torch.manual_seed(seed)
    sizes = {"embedding_dim": 8, "hidden_dim": 8} if name == "recurrent" else {"model_dim": 16, "num_heads": 2}
    found = build(name, family(name).Config(**sizes), Sizes(9, 9, False), "seq2seq").eval()
    for weight in found.parameters():  # fresh weights find everything equally likely
        weight.data *= 3
    return found


@pytest.fixture
def members():
    return [model("transformer", 0), model("transformer", 1), model("recurrent", 2)]


@pytest.fixture
def sources():
    return [[5, 3, EOS], [4, 7, 8, 6, EOS], [8, EOS]]


@pytest.mark.parametrize("config", [DecodeConfig(beam=3, n_best=3, max_length=12), DecodeConfig(method="greedy")])
def test_a_model_together_with_itself_answers_as_it_does_alone(members, sources, config):
    for one in members:
        alone, together = (decode(each, sources, config, **OPTIONS) for each in (one, Together([one, one])))
        assert [[h.ids for h in row] for row in together] == [[h.ids for h in row] for row in alone]
        scores = [torch.tensor([h.log_prob for row in found for h in row]) for found in (together, alone)]
        torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)


def test_each_answer_is_as_likely_as_its_tokens_are_on_average(members, sources):
    together = Together(members)
    found = decode(together, sources, DecodeConfig(beam=4, n_best=4, max_length=9), **OPTIONS)
    alone = [decode(one, sources, DecodeConfig(beam=4, n_best=4, max_length=9), **OPTIONS) for one in members]
    assert all(found != each for each in alone)
    for source, row in zip(sources, found, strict=True):
        for answer in row:
            ids = [1, *answer.ids, *[EOS] * answer.finished]
            batch = Batch(*(Sequences(torch.tensor([x]), torch.tensor([len(x)])) for x in (source, ids)))
            each = torch.stack([one.head(one.hidden(batch)).softmax(-1)[0] for one in members]).mean(0).log()
            wanted = each.gather(1, torch.tensor(ids[1:])[:, None]).sum().item()
            assert answer.log_prob == pytest.approx(wanted, abs=1e-4)
            logits = together.head(together.hidden(batch))
            torch.testing.assert_close(logits[0], each, rtol=1e-4, atol=1e-4)


def test_its_loss_is_that_of_the_mean(members):
    hidden = mean_log_probs([torch.randn(6, 9) for _ in members])
    labels = torch.tensor([3, 1, -100, 8, 0, -100])
    for smoothing in (0.0, 0.1):
        wanted = torch.nn.functional.cross_entropy(hidden, labels, reduction="sum", label_smoothing=smoothing)
        torch.testing.assert_close(Together(members).head.loss(hidden, labels, smoothing), wanted)


def test_rows_may_be_taken_in_any_order(members):
    together = Together(members)
    source = Sequences(torch.tensor([[5, 3, 2], [4, 2, 0]]), torch.tensor([3, 2]))
    logits, state = together.step(torch.tensor([[1], [1]]), together.start(source, 5))
    _, wanted = together.step(torch.tensor([[4], [6]]), state.select(torch.tensor([0, 1])))
    turned = state.select(torch.tensor([1, 0]))
    found, after = together.step(torch.tensor([[6], [4]]), turned)
    again, _ = together.step(torch.tensor([[3], [3]]), after)
    straight, _ = together.step(torch.tensor([[3], [3]]), wanted)
    torch.testing.assert_close(again.flip(0), straight, rtol=1e-4, atol=1e-4)
    assert after.position.tolist() == [2, 2]
    assert after.bound == 2
    assert logits.shape == found.shape == (2, 1, 9)


CONFIGS = {
    "beam": DecodeConfig(beam=2, max_length=20),
    "greedy": DecodeConfig(method="greedy", max_length=20),
    "contrastive": DecodeConfig(method="contrastive", top_k=2, max_length=20),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [("transformer", "beam"), ("transformer", "greedy"), ("transformer", "contrastive"), ("convolutional", "beam")],
)
@torch.no_grad()
def test_no_output_is_longer_than_the_positions_that_were_learned(name, method, sources):
    sizes = {"embedding_dim": 8, "hidden_dim": 8} if name == "convolutional" else {"model_dim": 16, "num_heads": 2}
    keys = sizes if name == "convolutional" else {**sizes, "position": "learned"}
    models = [
        build(name, family(name).Config(**keys, max_length=most), Sizes(9, 9, False), "seq2seq") for most in (6, 9)
    ]
    never_ends = lambda head, given, logits: logits.index_fill(-1, torch.tensor([EOS]), -50.0)  # noqa: E731
    for each in models:
        each.eval().head.register_forward_hook(never_ends)
    for model, most in ((models[0], 6), (models[1], 9), (Together(models), 6)):
        if method == "contrastive" and not hasattr(model, "read"):
            continue
        for prefix in ((), (4, 5)):
            found = decode(model, sources, CONFIGS[method], prefixes=[prefix] * 3, **OPTIONS)
            assert {len(answer.ids) for [answer, *_] in found} == {most - (method == "contrastive")}
