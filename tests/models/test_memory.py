"""A memory network against the equations of Sukhbaatar et al. 2015, written out word by word."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import ConfigError
from regard.layers.hops import Hop
from regard.models import Sizes, memory
from regard.types import Batch, Sequences

SENTENCES = [[[4, 5, 6], [7, 5], [8, 8, 9, 4]], [[6], [4, 9]]]  # of two rows
QUESTIONS = [[10, 4], [10, 11, 6]]


def network(**keys: Any) -> memory.MemoryNetwork:
    torch.manual_seed(3)
    config = memory.Config(**{"hops": 3, "model_dim": 6, "max_sentences": 5, **keys})
    return memory.build(config, Sizes(12, 12, shared=True)).double().eval()


def rows(marks: bool = True) -> Batch:
    """<s> sentence </s> .. question </s>, the marks of no text."""
    ids, segments = [], []
    for story, question in zip(SENTENCES, QUESTIONS, strict=True):
        own, numbers = ([2], [-1]) if marks else ([], [])
        for number, text in [*enumerate(story, 1), (0, question)]:
            own += [*text, 3] if marks else text
            numbers += [number] * len(text) + ([-1] if marks else [])
        ids.append(own)
        segments.append(numbers)
    lengths = torch.tensor([len(row) for row in ids])
    pad = [[*row, *[5] * (int(lengths.max()) - len(row))] for row in ids]
    numbers = [[*row, *[1] * (int(lengths.max()) - len(row))] for row in segments]  # padding may say anything
    return Batch(Sequences(torch.tensor(pad), lengths, torch.tensor(numbers)))


def encoded(words: list[int], table: Tensor) -> Tensor:
    """sum_j l_j * A x_j, l_kj = (1 - j/J) - (k/d)(1 - 2j/J)."""
    number, width, total = len(words), table.shape[1], torch.zeros(table.shape[1], dtype=table.dtype)
    for j, word in enumerate(words, 1):
        l = [(1 - j / number) - (k / width) * (1 - 2 * j / number) for k in range(1, width + 1)]  # noqa: E741
        total = total + torch.tensor(l, dtype=table.dtype) * table[word]
    return total


def by_the_paper(
    model: memory.MemoryNetwork, story: list[list[int]], question: list[int], linear: bool
) -> list[Tensor]:
    """The state after each hop."""
    tables, times = (weight.split(model.width, dim=1) for weight in (model.source.weight, model.times.weight))

    def memories(k: int) -> Tensor:
        last = len(story) - 1
        return torch.stack([encoded(words, tables[k]) + times[k][last - i] for i, words in enumerate(story)])

    u = encoded(question, tables[0])
    states = []
    for hop in range(len(model.hops)):
        m, c = (memories(1), memories(2)) if model.turn is not None else (memories(hop), memories(hop + 1))
        p = m @ u if linear else torch.softmax(m @ u, dim=0)
        o = p @ c
        u = o + (u if model.turn is None else model.turn.weight @ u)
        states.append(u)
    return states


@pytest.mark.parametrize("tying", ["adjacent", "layer-wise"])
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("marks", [False, True])
def test_the_equations_of_the_paper(tying: str, linear: bool, marks: bool) -> None:
    model, batch = network(tying=tying, linear_steps=10 * linear), rows(marks)
    hidden = model.hidden(batch)
    asked = batch.source.segments == 0
    for i, (story, question) in enumerate(zip(SENTENCES, QUESTIONS, strict=True)):
        wanted = by_the_paper(model, story, question, linear)[-1]
        real = asked[i] & (torch.arange(hidden.shape[1]) < batch.source.lengths[i])
        torch.testing.assert_close(hidden[i][real], wanted.expand(len(question), -1))
        if marks:
            torch.testing.assert_close(model.pooled(hidden, batch.source.lengths)[i], wanted)


def test_gradients_are_those_of_the_equations() -> None:
    model, batch = network(), rows()
    model.pooled(model.hidden(batch), batch.source.lengths).sum().backward()
    found = model.source.weight.grad.clone()  # type: ignore[union-attr]
    model.zero_grad()
    pairs = zip(SENTENCES, QUESTIONS, strict=True)
    torch.stack([by_the_paper(model, *pair, linear=False)[-1] for pair in pairs]).sum().backward()
    torch.testing.assert_close(found, model.source.weight.grad)


def test_each_hop_is_observed_over_the_sentences() -> None:
    model, batch = network(), rows()
    with regard.observe(model) as trace, torch.no_grad():
        model.hidden(batch)
    assert [(view.name, view.kind, view.rows_axis, view.keys_axis) for view in trace] == [
        (f"hops.{i}", "cross", "question", "sentences") for i in range(3)
    ]
    tables, times = (weight.split(6, dim=1) for weight in (model.source.weight, model.times.weight))
    before = [encoded(QUESTIONS[1], tables[0]), *by_the_paper(model, SENTENCES[1], QUESTIONS[1], linear=False)]
    for hop, view in enumerate(trace):
        assert view.shape == (2, 1, 1, 3)
        m = torch.stack([encoded(words, tables[hop]) + times[hop][1 - i] for i, words in enumerate(SENTENCES[1])])
        wanted = torch.softmax(m @ before[hop], dim=0)
        torch.testing.assert_close(view.rows(range(1))[1, 0, 0], nn.functional.pad(wanted, (0, 1)))


def test_a_captured_hop_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a CUDA graph nobody can say how many sentences there are: all slots are shown, and those of none weigh 0."""

    class OnGpu(Tensor):
        is_cuda = True  # type: ignore[assignment]

        def __int__(self) -> int:
            raise AssertionError("the device was waited for")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    hop, there = Hop(), torch.tensor([[True, True, False, False], [True, False, False, False]])
    with regard.observe(nn.ModuleDict({"hop": hop})) as trace, torch.no_grad():
        hop(torch.randn(2, 6), *torch.randn(2, 2, 4, 6), there.as_subclass(OnGpu))
    weights = trace[0].rows(range(1))[:, 0, 0]
    assert weights.shape == (2, 4)
    assert torch.equal(weights > 0, there)


def test_a_linear_start_ends_and_is_remembered() -> None:
    model, batch = network(linear_steps=2), rows()
    linear = model.hidden(batch)
    model.train()
    model.time_noise = 0.0
    for _ in range(2):
        torch.testing.assert_close(model.hidden(batch), linear)
    model.eval()
    weighed = model.hidden(batch)
    assert not torch.allclose(weighed, linear)
    other = network(linear_steps=2)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.hidden(batch), weighed)
    plain = network(linear_steps=0)
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(plain.hidden(batch), weighed)


def test_noise_ages_sentences_in_training_and_keeps_their_order() -> None:
    model = network(time_noise=0.5, max_sentences=100)
    there = torch.tensor([[True] * 20 + [False] * 5] * 50)
    assert model._ages(there)[0, :20].tolist() == list(range(19, -1, -1))
    model.train()
    ages = model._ages(there)[:, :20]
    assert (ages[:, :-1] > ages[:, 1:]).all()
    assert 5 < (ages[:, 0] - 19).float().mean() < 15
    model.time_noise = 0.0
    assert model._ages(there)[0, 0] == 19


def test_what_is_older_than_all_ages_has_the_last_one() -> None:
    model = network(max_sentences=2)
    assert model._ages(torch.tensor([[True] * 4])).tolist() == [[1, 1, 1, 0]]


def test_without_segments_a_row_is_a_question() -> None:
    model = network()
    found = model.hidden(Batch(Sequences(torch.tensor([QUESTIONS[1]]), torch.tensor([3]))))
    torch.testing.assert_close(found[0, 0], encoded(QUESTIONS[1], model.source.weight[:, :6]))


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"hops": 0}, "hops is too small"),
        ({"time_noise": 1.0}, "time_noise is a share"),
        ({"linear_steps": -1}, "linear_steps is negative\n  got:    -1\n  wanted: 0 or more"),
    ],
)
def test_keys_that_cannot_be_meant(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        memory.Config(**keys)
