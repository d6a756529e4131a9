"""Texts with gaps: what stands around a gap is read as it would be without it, and gaps are filled the surest first."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.data.tokenizers import Kind, Tokenizer
from regard.decode.config import DecodeConfig
from regard.errors import DataError
from regard.tasks.gaps import GAP, MARKS, Gaps, fill, fill_texts

TEXTS = ["the old cat sat on the mat.", "she reads, and he plays.", "(they) don't know it"]


def gaps_of(kind: Kind) -> Gaps:
    size = 400 if kind == "byte-bpe" else 90
    return Gaps(Tokenizer.train(TEXTS * 5, kind=kind, vocab_size=size, extra=("<mask>",)), MARKS)


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "wordpiece", "characters", "words"])
def test_the_rest_of_a_text_is_read_as_without_gaps(kind: Kind) -> None:
    gaps = gaps_of(kind)
    whole = "the old cat sat on the mat."
    ids, offsets = gaps.tokenizer.encode_batch([whole])[0], gaps.tokenizer.offsets(whole)
    words = np.cumsum(gaps.tokenizer.word_starts([whole])[0])
    for word in ("the", "cat", "on", "mat" if kind != "words" else "mat."):
        start = whole.index(word)
        end = start + len(word)
        text = f"{whole[:start]}<mask>{whole[end:]}"
        hidden = {n for n, (a, b) in zip(words, offsets, strict=True) if a < end and b > start}
        kept = [(i, a, b) for i, (a, b), n in zip(ids, offsets, words, strict=True) if n not in hidden]
        read = gaps.read(text)
        assert [i for i in read.ids if i != GAP] == [i for i, _, _ in kept]
        assert read.ids.count(GAP) == 1
        place = read.ids.index(GAP)
        assert read.gaps == [0 if i == place else -1 for i in range(len(read.ids))]
        assert text[slice(*read.offsets[place])] == "<mask>"
        if kind == "unigram":
            continue  # its spaces are pieces that stand anywhere near
        texts = [whole[a:b].strip() for _, a, b in kept]
        assert [text[a:b].strip() for i, (a, b) in enumerate(read.offsets) if i != place] == texts


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "wordpiece", "characters"])
def test_a_pair_knows_the_tokens_that_fill_each_gap(kind: Kind) -> None:
    gaps = gaps_of(kind)
    text, filled = "the [MASK] cat <mask> the mat.", "the old cat sat on the mat."
    pair = gaps.pair(text, filled)
    assert pair.ids == gaps.tokenizer.encode_batch([filled])[0]
    for number, words in enumerate(("old", "sat on")):
        places = [i for i, gap in enumerate(pair.gaps) if gap == number]
        assert gaps.tokenizer.decode([pair.ids[i] for i in places]).strip() == words
        assert {text[slice(*pair.offsets[i])] for i in places} == {("[MASK]", "<mask>")[number]}
    assert text[slice(*pair.offsets[-1])] == "." == filled[slice(*pair.filled_offsets[-1])]
    assert pair.labels(-100) == [i if gap >= 0 else -100 for i, gap in zip(pair.ids, pair.gaps, strict=True)]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "characters", "words"])
def test_hidden_tokens_become_gaps_that_pair_again(kind: Kind) -> None:
    gaps = gaps_of(kind)
    ids = gaps.tokenizer.encode_batch(["she reads, and he plays."])[0]
    hidden = [i in (1, 2, len(ids) - 1) for i in range(len(ids))]
    example = gaps.example(ids, hidden, lambda number: "<mask>")
    assert example.source.count("<mask>") == 2
    pair = gaps.pair(example.source, example.targets[0])
    assert [gap >= 0 for gap in pair.gaps] == hidden


def test_ids_fill_gaps_one_by_one() -> None:
    gaps = gaps_of("words")
    cat, on = gaps.tokenizer.encode_batch(["cat on"])[0]
    pair = gaps.pair("the old <mask> sat <mask> the", [cat, on])
    assert pair.filled == "the old cat sat on the"
    axes = pair.axes(gaps.tokenizer, pair.ids, [2], 3)
    assert axes["target"].tokens == ("<s>", "the", "old", "cat", "sat", "on", "the", "</s>")
    assert axes["target"].offsets[3] == (8, 11)
    assert axes["source"].offsets[3] == (8, 14)
    for ids in ([cat], [cat, on, on]):
        with pytest.raises(DataError, match="each gap needs one id"):
            gaps.pair("the old <mask> sat <mask> the", ids)


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "wordpiece", "characters", "words"])
def test_what_stands_around_a_gap_comes_back_as_it_was_written(kind: Kind) -> None:
    gaps = gaps_of(kind)
    first, both = gaps.tokenizer.encode_batch(["the", "the cat"])
    cat = both[len(first) + gaps.spaces_apart :]  # where a space is a piece of its own, the gap stands after it
    for before, after in (("THE 猫  ", ", ÖÄ."), ("", "  ÖÄ"), ("ÖÄ (", ") x"), ("the ", " mat")):
        assert gaps.fill_in(f"{before}<mask>{after}", [cat]) == f"{before}cat{after}"
    assert gaps.fill_in("<mask> Ö <mask>", [cat, cat]) == "cat Ö cat"


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "wordpiece"])
def test_what_begins_no_word_goes_on_with_the_one_before(kind: Kind) -> None:
    gaps = gaps_of(kind)
    cat, *_ = gaps.tokenizer.encode_batch([" cats" if kind == "byte-bpe" else "cats"])
    assert len(cat) > 1
    assert gaps.fill_in("Ö <mask> <mask> Ö", [cat[:-1], cat[-1:]]) == "Ö cats Ö"
    assert gaps.fill_in("<mask> Ö <mask> Ö", [[], []]) == "Ö Ö"


def test_the_surest_gap_is_filled_first_and_others_see_it() -> None:
    """Two gaps, four tokens. Alone, 1 is likeliest at the first; once the second is 3, the first is surely 2."""

    def candidates(rows: list[list[int]]) -> list[Tensor]:
        asked.append(rows)
        found = []
        for row in rows:
            probs = {0: [0.1, 0.6, 0.2, 0.1], 1: [0.02, 0.03, 0.25, 0.7]}
            if row[1] == 3:
                probs[0] = [0.03, 0.03, 0.9, 0.04]
            found.append(torch.tensor([probs[i] for i in range(2) if row[i] == GAP]).log())
        return found

    asked: list[list[list[int]]] = []
    ((best, second, _),) = fill([[GAP, GAP, 0]], 3, candidates)
    assert best[1] == [2, 3, 0]
    assert best[0] == pytest.approx(torch.tensor(0.9 * 0.7).log().item())
    assert second[1] == [1, 2, 0]
    assert second[0] == pytest.approx(torch.tensor(0.6 * 0.25).log().item())
    assert asked == [[[GAP, GAP, 0]], [[GAP, 3, 0], [GAP, 2, 0], [GAP, 1, 0]]]


def test_a_score_is_the_mean_over_the_gaps() -> None:
    gaps = gaps_of("words")
    chances = torch.full((gaps.tokenizer.size,), 1e-6)
    chances[7], chances[8] = 0.5, 0.25
    config = DecodeConfig(n_best=2)
    words = {"most": 9, "on_batch": None, "first_index": 0}
    candidates = lambda rows: [chances.log().expand(row.count(GAP), -1) for row in rows]  # noqa: E731
    one, two, none = fill_texts(gaps, ["the <mask>", "<mask> the <mask>", " "], candidates, config, **words)  # type: ignore[arg-type]
    assert one.scores == pytest.approx((math.log(0.5), math.log(0.25)))
    assert two.scores == pytest.approx((math.log(0.5), (math.log(0.5) + math.log(0.25)) / 2))
    assert (none.texts, none.scores) == (("",), (0.0,))
