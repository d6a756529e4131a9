"""Vectors of runs of tokens: each against the arithmetic of its definition, in whole numbers of Python."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from regard.layers.embedding import token_table
from regard.layers.ngrams import FACTOR, PRIME, STEP, NgramEmbedding, NgramWeights, hash_ngrams
from regard.types import Sequences

BIG = 2**18 - 1  # larger ids than any vocabulary has


def number(run: list[int], rows: int) -> int:
    """a F^2 + b F + c ..., without a limit to its size, stirred once."""
    total = sum(one * FACTOR**i for i, one in enumerate(reversed(run))) % PRIME
    return (total ^ (total >> 15)) * FACTOR % PRIME % rows


@pytest.mark.parametrize("length", [2, 3, 7])
@pytest.mark.parametrize("rows", [1, 7, 50_000, 2**17])
def test_a_run_has_the_row_of_its_number(length: int, rows: int) -> None:
    texts = [[3, 5, 1, 4, 5, 1], [BIG, BIG, BIG - 1, 0, BIG, 9]]
    found = hash_ngrams(torch.tensor(texts), length, rows)
    wanted = [[number(([0] * length + text[: i + 1])[-length:], rows) for i in range(6)] for text in texts]
    assert found.tolist() == wanted


@pytest.mark.parametrize("rows", [1000, 1024, 997, 20_000])  # round numbers are what people write
def test_pairs_are_spread_over_the_rows_as_by_chance(rows: int) -> None:
    ids = torch.cartesian_prod(torch.arange(4, 204), torch.arange(4, 204))
    found = hash_ngrams(ids, 2, rows)[:, 1]
    alike = (found.bincount(minlength=rows).double() ** 2).sum() / len(ids)
    assert alike < 1.2 * (1 + len(ids) / rows)  # of how many pairs a pair's row is: chance gives the right side
    turned = hash_ngrams(ids.flip(1), 2, rows)[:, 1]
    assert (found == turned)[ids[:, 0] != ids[:, 1]].float().mean() < 0.02


def learned(longest: int = 3, rows: int = 5) -> NgramEmbedding:
    made = NgramEmbedding(token_table(11, 4), longest=longest, rows=rows, dim=2, position=None, scale=False)
    torch.nn.init.normal_(made.ngrams.weight)
    return made.eval()


@torch.no_grad()
@pytest.mark.parametrize("rows", [5, 1])  # with one row all runs of a length share it: that is allowed
def test_runs_of_each_length_are_added_up_beside_the_token(rows: int) -> None:
    made, ids = learned(rows=rows), torch.tensor([[3, 5, 1, 4]])
    found = made(ids)[0]
    for place in range(4):
        run = [0, 0, *ids[0].tolist()][place : place + 3]
        pair, three = (made.ngrams.weight[k * rows + number(run[1 - k :], rows)] for k in (0, 1))
        assert_close(found[place], torch.cat([made.tokens.weight[ids[0, place]], pair + three]))


@torch.no_grad()
def test_what_comes_after_a_place_does_not_matter_to_it() -> None:
    made, ids = learned(), torch.randint(11, (2, 6))
    other = torch.cat([ids[:, :4], torch.randint(11, (2, 5))], dim=1)
    assert_close(made(other)[:, :4], made(ids)[:, :4], rtol=0.0, atol=0.0)


def test_what_was_never_seen_says_nothing() -> None:
    made = NgramEmbedding(token_table(11, 4), longest=3, rows=50, dim=2, position=None)
    ids = torch.tensor([[3, 5, 1, 4]])
    assert not made(ids)[..., 4:].any()
    made(ids).sum().backward()
    assert made.ngrams.weight.grad is not None
    learns = made.ngrams.weight.grad.any(1).nonzero()[:, 0].tolist()
    seen = [hash_ngrams(ids, length, 50) + (length - 2) * 50 for length in (2, 3)]
    assert learns == sorted({*torch.cat(seen).flatten().tolist()})


@torch.no_grad()
def test_dropout_acts_on_both_parts_and_in_training_only() -> None:
    made = NgramEmbedding(token_table(11, 40), longest=2, rows=50, dim=40, position=None, dropout=0.5)
    torch.nn.init.ones_(made.ngrams.weight)
    ids = torch.tensor([[3, 5, 1, 4]])
    dropped = made.train()(ids) == 0
    assert 0.2 < dropped[..., :40].float().mean() < 0.8
    assert 0.2 < dropped[..., 40:].float().mean() < 0.8
    assert (made.eval()(ids)[..., 40:] == 1).all()


# --- runs that speak for classes


def weights(longest: int = 3, rows: int = 50) -> NgramWeights:
    made = NgramWeights(2, longest=longest, rows=rows)
    torch.nn.init.normal_(made.weight)
    return made


@torch.no_grad()
@pytest.mark.parametrize("rows", [50_000, 7, 1])
def test_each_run_of_a_text_speaks_once_over_the_root_of_their_number(rows: int) -> None:
    made, texts = weights(rows=rows), [[2, 5, 5, 5, 4, 5, 3], [2, 9, 3], []]
    ids = torch.full((3, 9), 0)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    found = made(Sequences(ids, torch.tensor([len(text) for text in texts])))
    for said, text in zip(found, texts, strict=True):
        runs = {
            (n - 1) * rows + number(([0] * n + text[: i + 1])[-n:], rows) for n in (1, 2, 3) for i in range(len(text))
        }
        wanted = sum((made.weight[run] for run in runs), torch.zeros(2)) / max(1, len(runs)) ** 0.5
        assert_close(said, STEP * wanted)
    assert not found[2].any()


@torch.no_grad()
def test_what_pads_a_text_does_not_speak() -> None:
    made, ids = weights(), torch.tensor([[2, 5, 4, 3]])
    wide = torch.cat([ids, torch.tensor([[7, 8, 9]])], dim=1)
    assert_close(made(Sequences(wide, torch.tensor([4]))), made(Sequences(ids, torch.tensor([4]))))


def test_runs_say_nothing_at_first_and_only_those_that_are_read_learn() -> None:
    made, source = NgramWeights(2, longest=2, rows=50), Sequences(torch.tensor([[2, 5, 4, 3, 0]]), torch.tensor([4]))
    assert not made(source).any()
    made(source)[0, 1].backward()
    assert made.weight.grad is not None
    assert not made.weight.grad[:, 0].any()
    seen = [hash_ngrams(source.ids[:, :4], n, 50) + (n - 1) * 50 for n in (1, 2)]
    assert made.weight.grad[:, 1].nonzero()[:, 0].tolist() == sorted({*torch.cat(seen).flatten().tolist()})
