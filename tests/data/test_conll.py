"""CoNLL files and .jsonl with spans: every scheme, every way of writing them, and what is wrong with a file."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import random
from pathlib import Path

import pytest

from regard.data.conll import Format, TaggedText, format_of, read_tagged, read_to_tag, tagged, with_words
from regard.data.marked import cut, mark, marked_places, shape_of, units_of, unmark, words_of
from regard.data.readers import ReadReport
from regard.data.schemes import is_legal, mistakes, scheme_of, tag_names, to_spans, to_tags
from regard.errors import DataError
from regard.types import Example, Span

SPANS = [(0, 1, "x"), (1, 3, "x"), (4, 7, "y"), (7, 8, "y")]
WRITTEN = {
    "bio": "B-x B-x I-x O B-y I-y I-y B-y O",
    "bioes": "S-x B-x E-x O B-y I-y E-y S-y O",
    "bmes": "S-x B-x E-x O B-y M-y E-y S-y O",
    "iob1": "I-x B-x I-x O I-y I-y I-y B-y O",
}


@pytest.mark.parametrize("scheme", WRITTEN)
def test_every_scheme_is_recognised_and_read(scheme: str) -> None:
    tags = WRITTEN[scheme].split()
    assert scheme_of([tags]) == scheme
    assert to_spans(tags) == SPANS
    assert list(mistakes(tags, scheme)) == []  # type: ignore[arg-type]
    if scheme != "iob1":
        assert to_tags(SPANS, 9, scheme) == tags  # type: ignore[arg-type]


def test_other_ways_to_write_tags() -> None:
    assert scheme_of([["U-x", "B-x", "L-x", "O", "B-y", "I-y", "L-y", "U-y", "O"]]) == "bioes"  # BILOU
    assert to_spans(["U-x", "B-x", "L-x", "O", "B-y", "I-y", "L-y", "U-y", "O"]) == SPANS
    assert scheme_of([["I-x", "I-x", "O", "I-y"]]) == "io"
    assert scheme_of([["person", "person", "O"]]) == "io"  # labels alone
    assert to_spans(["person", "person", "O", "city"]) == [(0, 2, "person"), (3, 4, "city")]
    assert scheme_of([["B", "M", "E", "S"]]) == "bmes"  # words of a text: letters alone
    assert to_spans(["B", "M", "E", "S"]) == [(0, 3, "span"), (3, 4, "span")]
    assert scheme_of([["B-x", "O", "B-x"]]) == "bio"
    assert scheme_of([["O"]]) == "io"
    assert to_tags([(0, 1, "x"), (1, 2, "y")], 2, "io") == ["I-x", "I-y"]


@pytest.mark.parametrize("scheme", ["io", "bio", "bioes", "bmes"])
def test_what_is_legal_is_what_spans_can_give(scheme: str) -> None:
    """All pairs of tags that some spans of four words, written down, have side by side."""
    labels, seen = ["x", "y"], set()
    stretches = [(a, b, label) for a in range(4) for b in range(a + 1, 5) for label in labels]
    for number in range(3):
        for some in itertools.product(stretches, repeat=number):
            if all(first[1] <= second[0] for first, second in itertools.pairwise(some)):
                tags = ["O", *to_tags(some, 4, scheme), "O"]  # type: ignore[arg-type]
                seen |= set(itertools.pairwise(tags))
    names = tag_names(labels, scheme)  # type: ignore[arg-type]
    assert seen == {(a, b) for a in names for b in names if is_legal(scheme, a, b)}  # type: ignore[arg-type]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("between", ["\t", " ", " _ NNP ", "\tNNP\tB-NP\t"])
def test_a_file_of_two_sentences(tmp_path: Path, between: str) -> None:
    rows = [("Alice", "B-person"), ("'s", "O"), ("New", "B-city"), ("York", "I-city")]
    lines = [f"{token}{between}{tag}\n" for token, tag in rows]
    text = f"-DOCSTART-{between}O\n\n" + "".join(lines) + "\n\t\n\n" + f"ok{between}O"
    path = write(tmp_path / "a.conll", text)
    first, second = read_tagged([path], units="words")
    assert isinstance(first, TaggedText)
    assert first.source == "Alice 's New York"
    assert first.spans == (Span(0, 5, "person"), Span(9, 17, "city"))
    assert first.units == ((0, 5), (6, 8), (9, 12), (13, 17))
    assert first.targets == ("[Alice](person) 's [New York](city)",)
    assert first.place == f"{path}:3"
    assert second.source == "ok"
    assert format_of(path) == Format("bio", "words")
    assert tagged(Example(first.source, first.targets), "words") == TaggedText(
        first.source, first.targets, "", first.units, first.spans
    )


def test_characters_are_joined_without_spaces_and_files_may_be_compressed(tmp_path: Path) -> None:
    text = "高 B-NAME\n勇 E-NAME\n， O\n男 O\n".encode()
    (tmp_path / "a.bmes.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.bmes.xz").write_bytes(lzma.compress(text))
    for path in (tmp_path / "a.bmes.gz", tmp_path / "a.bmes.xz"):
        assert format_of(path) == Format("bioes", "characters")
        (found,) = read_tagged([path], units="characters")
        assert (found.source, found.targets) == ("高勇，男", ("[高勇](NAME)，男",))


def test_spans_of_a_jsonl(tmp_path: Path) -> None:
    records = [
        {
            "text": "In Paris, Ann.",
            "spans": [{"start": 9, "end": 13, "label": "person"}, {"start": 3, "end": 8, "label": "city"}],
        },
        {"text": "nothing", "spans": []},
    ]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    first, second = (tagged(each, "words") for each in read_tagged([path], units="words"))
    assert first.spans == (Span(3, 8, "city"), Span(10, 13, "person"))  # in their order, without the space
    assert second.spans == ()
    assert words_of(first.spans, first.units) == [(1, 2, "city"), (3, 4, "person")]
    assert format_of(path) == Format("bio", "words")


def test_other_words_have_the_same_spans() -> None:
    text = tagged(Example("Ann, in New  York!", ("[Ann](x), in [New  York](y)!",)), "words")
    found = with_words(text, ["Anna", ";", "i", "Neww", "Yok", "!"])
    assert found.targets == ("[Anna](x); i [Neww  Yok](y)!",)
    assert [found.source[start:end] for start, end in found.units] == ["Anna", ";", "i", "Neww", "Yok", "!"]
    assert with_words(text, [text.source[start:end] for start, end in text.units]) == text


BAD = [
    ("a.conll", "a B-x\nb\n", 2, "one column; wanted a token, and its tag in the last column"),
    ("a.conll", "a\tB-x\n\tO\n", 2, "the token is empty"),
    ("a.conll", "a\tB-x\nb\t\n", 2, "the tag is empty"),
    ("a.conll", "a B-x\n\nb y\n", 3, 'the tag "y" has no B- or I- before it, as others of the file have'),
    ("a.jsonl", '{"text": "ab"}\n', 1, 'no key "spans"; there are: text'),
    ("a.jsonl", '{"spans": []}\n', 1, 'no key "text"; there are: spans'),
    ("a.jsonl", '{"text": "ab", "spans": {}}\n', 1, r"spans is not a list; wanted \[{start, end, label}, ..\]"),
    ("a.jsonl", '{"text": "ab", "spans": [{"start": 0}]}\n', 1, "not a span: {'start': 0}; wanted start and end"),
    (
        "a.jsonl",
        '{"text": "ab", "spans": [{"start": 1, "end": 9, "label": "x"}]}\n',
        1,
        "a span from 1 to 9 of a text of 2 characters marks nothing",
    ),
    (
        "a.jsonl",
        '{"text": "abc", "spans": [{"start": 0, "end": 2, "label": "x"}, {"start": 1, "end": 3, "label": "y"}]}\n',
        1,
        "two spans overlap: 0-2 and 1-3; a word has one tag",
    ),
]


@pytest.mark.parametrize(("name", "text", "line", "reason"), BAD)
def test_bad_lines_are_named_or_left_out_with_their_sentence(
    tmp_path: Path, name: str, text: str, line: int, reason: str
) -> None:
    good = '{"text": "ok", "spans": []}' if name.endswith("l") and "json" in name else "\nok O"
    path = write(tmp_path / name, text + good + "\n")
    with pytest.raises(DataError, match=f"a bad line\n  got:    {reason}.*\n  where:  .*{name}:{line}\n"):
        list(read_tagged([path], units="words"))
    report = ReadReport()
    texts = [each.source for each in read_tagged([path], units="words", on_bad_line="skip", report=report)]
    assert texts[-1] == "ok"
    assert report.num_bad == 1
    assert report.bad[0][0] == f"{path}:{line}"


def test_tags_that_break_their_scheme_are_counted_named_and_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "a B-x\nb O\nc I-x\n\nd I-y\ne I-y\n")
    report = ReadReport()
    found = [tagged(each, "words") for each in read_tagged([path], units="words", report=report)]
    assert [len(each.spans) for each in found] == [2, 1]
    assert report.bad == [
        (f"{path}:3", "I-x after O in BIO; read as conlleval does"),
        (f"{path}:5", "I-y after O in BIO; read as conlleval does"),
    ]
    path = write(tmp_path / "b.bmes", "a B-x\nb M-x\n\nc S-x\n")
    report = ReadReport()
    list(read_tagged([path], units="words", report=report))
    assert report.bad == [(f"{path}:2", "an end after M-x in BMES; read as conlleval does")]


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tagged texts are one file\n  got:    2 files"):
        read_tagged([tmp_path / "a", tmp_path / "b"], units="words")
    with pytest.raises(DataError, match="no such file"):
        format_of(tmp_path / "a.conll")


def test_what_is_to_be_answered_needs_no_tags(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.txt", "Ann lives.\n\nOh O\n")
    assert [(each.source, each.targets) for each in read_to_tag(plain, units="words")] == [
        ("Ann lives.", ()),
        ("", ()),
        ("Oh O", ()),
    ]
    conll = write(tmp_path / "b.txt", "Ann B-x\nlives O\n\nOh O\n")
    assert [each.targets for each in read_to_tag(conll, units="words")] == [("[Ann](x) lives",), ("Oh",)]
    records = write(tmp_path / "c.jsonl", '{"text": "a"}\n{"source": "b", "spans": []}\n')
    assert [(each.source, each.targets) for each in read_to_tag(records, units="words")] == [("a", ()), ("b", ("b",))]


# --- marks, words


def test_marks_come_back_as_they_were() -> None:
    chooser = random.Random(0)
    for _ in range(300):
        text = "".join(chooser.choices("ab []()\\é\n", k=chooser.randint(1, 12)))
        edges = sorted(chooser.sample(range(len(text) + 1), k=2 * chooser.randint(0, (len(text) + 1) // 2)))
        pairs = zip(edges[::2], edges[1::2], strict=True)
        spans = tuple(Span(start, end, chooser.choice(["x", "a)b", "\\", "[y]"])) for start, end in pairs)
        marked = mark(text, spans)
        assert unmark(marked) == (text, spans)
        places = marked_places(text, spans)
        assert [marked[place] for place in places[:-1]] == list(text)
        assert places[-1] == len(marked)


@pytest.mark.parametrize("wrong", ["[a", "a](x)", "[a [b](x) c](y)", "[[a](x)](y)"])
def test_marks_that_do_not_fit(wrong: str) -> None:
    with pytest.raises(DataError, match="the marks of a text do not fit together"):
        unmark(wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's in Paris, U.S.!", "It 's in Paris , U.S . !"),
        ("see http://t.co/a1?b=c. (no)", "see http://t.co/a1?b=c . ( no )"),
        ('"Ann"...#fun @bob', '" Ann " ... #fun @bob'),
        ("1,000 at 10:30 well-known AT&T", "1,000 at 10:30 well-known AT&T"),
        ("他住在Paris的", "他 住 在 Paris 的"),
        ("a_b don’t they'll", "a_b don’t they 'll"),
        ("_ 😀😀 naïve", "_ 😀😀 naïve"),
        ("Jose\u0301's in Sa\u0303o Paulo", "Jose\u0301 's in Sa\u0303o Paulo"),  # accents apart from their letters
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940, \u092d\u093e\u0937\u093e",
            "\u0939\u093f\u0928\u094d\u0926\u0940 , \u092d\u093e\u0937\u093e",
        ),
    ],
)
def test_words(text: str, words: str) -> None:
    assert [text[start:end] for start, end in cut(text, "words")] == words.split()


def test_no_character_but_space_is_lost() -> None:
    chooser = random.Random(1)
    for units in ("words", "characters"):
        for _ in range(300):
            text = "".join(chooser.choices("aB1 '’.,:/@#-_&+()!\t高\u0301é😀", k=20))
            places = cut(text, units)  # type: ignore[arg-type]
            assert "".join(text[start:end] for start, end in places) == "".join(text.split())
            assert list(places) == sorted(places)


def test_units_and_shapes() -> None:
    assert units_of(["a", "b", "c", "word"]) == "words"
    assert units_of(["東京タワーへ行く。"]) == "characters"
    assert units_of([]) == "words"
    assert shape_of("McDonald's") == "XxXxx'x"
    assert shape_of("") == ""
