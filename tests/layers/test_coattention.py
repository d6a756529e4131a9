"""Texts that read each other: by the formula of the paper, and each for itself where it is alone."""

from __future__ import annotations

import torch

from regard.layers.coattention import CoAttention, read_apart
from regard.layers.recurrent import BidirectionalLayer
from regard.look.collect import observe


def test_both_ways_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    layer = CoAttention(4)
    question, text = torch.randn(1, 3, 4), torch.randn(1, 5, 4)
    row = torch.cat([question, text, torch.randn(1, 2, 4)], dim=1)  # and padding
    second = torch.tensor([[False] * 3 + [True] * 5 + [False] * 2])
    with observe(layer) as trace:
        found = layer(row, torch.tensor([8]), second)
    w1, w2, w3 = layer.weight
    similarity = torch.empty(5, 3)
    for i, h in enumerate(text[0]):
        for j, u in enumerate(question[0]):
            similarity[i, j] = w1 @ h + w2 @ u + w3 @ (h * u)
    to_query = similarity.softmax(1) @ question[0]
    to_context = similarity.amax(1).softmax(0) @ text[0]
    h = text[0]
    wanted = torch.cat([h, to_query, h * to_query, h * to_context], dim=1)
    torch.testing.assert_close(found[0, 3:8], wanted)
    other, own = trace
    assert (other.name, own.name) == ("other", "own")
    torch.testing.assert_close(other.rows(range(3, 8))[0, 0, :, :3], similarity.softmax(1))
    torch.testing.assert_close(own.rows(range(3, 4))[0, 0, 0, 3:8], similarity.amax(1).softmax(0))
    assert other.rows(range(10))[0, 0, :, 8:].abs().max() == 0  # nobody reads padding


def test_one_text_reads_itself_and_an_empty_one_nothing() -> None:
    layer, x = CoAttention(4), torch.randn(2, 3, 4)
    found = layer(x, torch.tensor([3, 0]), None)
    w1, w2, w3 = layer.weight
    scores = (x[0] @ w1)[:, None] + (x[0] @ w2) + (x[0] * w3) @ x[0].T
    torch.testing.assert_close(found[0, :, 4:8], scores.softmax(1) @ x[0])
    assert found[1, :, 4:].abs().max() == 0
    assert found.isfinite().all()


def test_each_text_is_read_as_if_it_stood_alone() -> None:
    torch.manual_seed(0)
    layer, x = BidirectionalLayer("lstm", 4, 3), torch.randn(3, 6, 4)
    lengths, numbers = torch.tensor([6, 5, 2]), [2, 1, 2]  # the last has no second text
    places = torch.arange(6)
    second = (places >= torch.tensor(numbers)[:, None]) & (places < lengths[:, None])
    found = read_apart(layer, x, lengths, second)
    for row, (length, number) in enumerate(zip(lengths.tolist(), numbers, strict=True)):
        for part in (slice(0, number), slice(number, length)):
            if part.stop > part.start:
                alone = layer(x[row : row + 1, part], torch.tensor([part.stop - part.start]))
                torch.testing.assert_close(found[row, part], alone[0])
    torch.testing.assert_close(read_apart(layer, x, lengths, None), layer(x, lengths))
