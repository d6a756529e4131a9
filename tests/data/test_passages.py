"""Rows of questions and texts: an answer is found by its characters, whatever the tokenizer does to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.data.batching import NONE
from regard.data.passages import BEGINS, BOTH, ENDS, Reader, begins, covering
from regard.data.squad import Question
from regard.data.tokenizers import Kind, Tokenizer
from regard.errors import DataError
from regard.types import Specials

ENGLISH = "The  Eiffel\nTower, built in 1889 by Gustave Eiffel (İzmir's café!), stands in Paris."
JAPANESE = "手塚治虫(てづかおさむ、1928年11月3日-1989年)は、日本の漫画家、アニメーターである。"
CHINESE = "黑豹队的防守只丢了 308分，在联赛中排名第六。"
ANSWERS = [
    (ENGLISH, ["1889", "Gustave Eiffel", "Eiffel\nTower", "Paris", "The", "café"]),
    (JAPANESE, ["手塚治虫", "1928年11月3日", "漫画家", "手"]),
    (CHINESE, ["308", "第六", "防守"]),
]
TEXTS = [text for text, _ in ANSWERS]


def foreign() -> Tokenizer:
    """A lower-casing WordPiece as BERT's, which drops accents and parts Chinese characters."""
    from tokenizers import AddedToken, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Inner

    inner = Inner(models.WordPiece({}, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces = {piece for text in TEXTS for piece, _ in inner.pre_tokenizer.pre_tokenize_str(_plain(inner, text))}
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(pieces)]
    inner.model = models.WordPiece({piece: i for i, piece in enumerate(vocabulary)}, unk_token="[UNK]")
    inner.add_special_tokens([AddedToken(piece, special=True) for piece in vocabulary[:4]])
    return Tokenizer.foreign(inner, Specials(2, 3, 0, unk=1))


def _plain(inner: Any, text: str) -> str:
    return str(inner.normalizer.normalize_str(text))


def trained(kind: Kind, lowercase: bool) -> Tokenizer:
    return Tokenizer.train(TEXTS, kind=kind, vocab_size=500, lowercase=lowercase)


def reader(tokenizer: Tokenizer, **keys: Any) -> Reader:
    return Reader(tokenizer, **{"max_length": 300, "stride": 50, "question_length": 20, "too_long": "error", **keys})


@pytest.mark.parametrize(("text", "answers"), ANSWERS, ids=["en", "ja", "zh"])
@pytest.mark.parametrize(
    ("kind", "lowercase"),
    [
        ("bpe", False),
        ("byte-bpe", False),
        ("byte-bpe", True),
        ("unigram", False),
        ("wordpiece", True),
        ("characters", False),
        ("characters", True),
        ("foreign", True),
    ],
)
def test_an_answer_is_found_by_its_characters(kind: Any, lowercase: bool, text: str, answers: list[str]) -> None:
    tokenizer = foreign() if kind == "foreign" else trained(kind, lowercase)
    (window,) = reader(tokenizer).windows("308 ?", text)
    for answer in answers:
        start = text.index(answer)
        places = window.places(start, start + len(answer))
        assert places is not None
        first, last = window.span(*places)
        assert first <= start < start + len(answer) <= last  # a piece may hold more than the answer
        if kind in ("characters", "foreign") or (text is ENGLISH and answer != "café"):
            assert text[first:last].strip() == answer


def test_what_pieces_an_answer_has() -> None:
    assert covering([(0, 2), (2, 2), (2, 5)], 2, 3) == (2, 2)  # a piece of nothing is none of it
    assert covering([(0, 2)], 5, 6) is None


def test_windows_overlap_and_leave_nothing_out() -> None:
    tokenizer = trained("characters", False)
    read = reader(tokenizer, max_length=24, stride=8)
    ids = tokenizer.encode_batch([JAPANESE])[0]
    windows = read.windows("漫画家", JAPANESE)
    assert [window.begin for window in windows] == begins(len(ids), 21, 8) == [0, 8, 16, 24, len(ids) - 21]
    special = tokenizer.specials
    for window in windows:
        assert window.ids[: window.first] == [special.start, *tokenizer.encode_batch(["漫画家"])[0], special.end]
        assert window.ids[window.first :] == [*ids[window.begin : window.begin + 21], special.end]
        assert window.number == 21
    seen = {token for window in windows for token in range(window.begin, window.begin + window.number)}
    assert seen == set(range(len(ids)))
    # windows without all of the answer point at <s>
    start = JAPANESE.index("漫画家")
    rows = list(read.rows(Question("a", "漫画家", JAPANESE, (("漫画家", start),))))
    held = [window.begin <= start and start + 3 <= window.begin + 21 for window in windows]
    assert held == [False, False, True, True, True]
    for window, (row, labels), inside in zip(windows, rows, held, strict=True):
        assert row == window.ids
        assert len(labels) == len(row)
        where = {place: label for place, label in enumerate(labels) if label != NONE}
        first = start - window.begin + window.first
        assert where == ({first: BEGINS, first + 2: ENDS} if inside else {0: BOTH})
    # a question without an answer, and an answer of one token
    assert all(labels[0] == BOTH for _, labels in read.rows(Question("a", "漫画家", JAPANESE, ())))
    _, labels = next(read.rows(Question("a", "漫画家", JAPANESE, (("手", 0),))))
    assert labels[5] == BOTH


def test_windows_never_leave_a_gap() -> None:
    for length in range(40):
        for stride in (1, 3, 5, 90):
            found = begins(length, 5, stride)
            assert {i for first in found for i in range(first, first + 5)} >= set(range(length))
            assert found == sorted(set(found))


def test_a_question_cannot_spell_where_the_text_begins() -> None:
    tokenizer = foreign()
    assert tokenizer.encode_batch(["[SEP] 308 [UNK]"])[0][0] == 3
    assert reader(tokenizer).question("[SEP] 308 [UNK]") == tokenizer.encode_batch(["308 [UNK]"])[0]


def test_a_question_that_is_too_long(tmp_path: Path) -> None:
    tokenizer = trained("characters", False)
    with pytest.raises(DataError) as error:
        reader(tokenizer, question_length=3).windows("漫画家は", JAPANESE, "a.json: data[0]")
    assert str(error.value) == (
        "the question is too long\n  got:    4 tokens\n  wanted: at most 3 (task.question_length)\n"
        '  where:  a.json: data[0]\n  try:    raise task.question_length, or set data.too_long = "truncate"'
    )
    (window,) = reader(tokenizer, question_length=3, too_long="truncate").windows("漫画家は", JAPANESE)
    assert window.first == 5
