"""Marked entities: how they are read, what a tokenizer makes of the marks, what is cut."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from regard.data.markers import MARKS, MarkedTokenizer, flaw, need_marked, places_to_keep, read_marked, train_marked
from regard.data.readers import ReadReport
from regard.data.tokenizers import Kind, Tokenizer, TokenizerConfig
from regard.errors import DataError
from regard.types import Specials

TEXT = "the <e1>old birds</e1> build their <e2>nests</e2>."
SEMEVAL = """1\t"the <e1>birds</e1> build "<e2>nests</e2>"."
Product-Producer(e2,e1)
Comment: a comment
of two lines

2\t"a <e1>man</e1> and a <e2>dog</e2>"
Other
Comment:

"""


# --- reading


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (TEXT, ""),
        ("<e2>a</e2><e1>b</e1>", ""),
        ("<e1>the <e2>inner</e2> one</e1>", ""),
        ("a b", "there is no <e1>"),
        ("<e1>a</e1> <e2>b", "there is no </e2>"),
        ("<e1>a</e1> <e1>b</e1> <e2>c</e2>", "<e1> is there 2 times"),
        ("</e1>a<e1> <e2>b</e2>", "</e1> stands before <e1>"),
        ("<e1> </e1> <e2>b</e2>", "nothing stands between <e1> and </e1>"),
    ],
)
def test_what_is_wrong_with_the_marks(text: str, wanted: str) -> None:
    assert flaw(text) == wanted


def test_texts_to_be_answered_need_marks_unless_they_are_empty() -> None:
    need_marked([TEXT, "", "  "])
    with pytest.raises(DataError) as error:
        need_marked([TEXT, "a bird"], first_index=4)
    assert str(error.value) == (
        "the entities of a text are not marked\n  got:    there is no <e1>: a bird\n"
        "  wanted: a text with one <e1>..</e1> and one <e2>..</e2>\n  where:  source 6"
    )


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("a.tsv", f"label\ttext\nMakes\t{TEXT}\n", [(TEXT, ("Makes",))]),
        ("a.jsonl", '{"label": "Makes", "text": "<e1>a</e1> <e2>b</e2>"}\n', [("<e1>a</e1> <e2>b</e2>", ("Makes",))]),
        (
            "TRAIN_FILE.TXT",
            SEMEVAL,
            [
                ('the <e1>birds</e1> build "<e2>nests</e2>".', ("Product-Producer(e2,e1)",)),
                ("a <e1>man</e1> and a <e2>dog</e2>", ("Other",)),
            ],
        ),
    ],
)
def test_what_is_read(tmp_path: Path, name: str, content: str, wanted: list[tuple[str, tuple[str, ...]]]) -> None:
    (tmp_path / name).write_text(content)
    assert [(e.source, e.targets) for e in read_marked([tmp_path / name])] == wanted
    with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
        file.write(content.replace("\n", "\r\n"))
    assert [(e.source, e.targets) for e in read_marked([tmp_path / f"{name}.gz"])] == wanted
    assert [e.source for e in read_marked([tmp_path / name], need_labels=False)] == [text for text, _ in wanted]


def test_files_to_be_answered_need_no_labels(tmp_path: Path) -> None:
    (tmp_path / "TEST_FILE.TXT").write_text(f'8001\t"{TEXT}"\n8002\t"<e1>a</e1> <e2>b</e2>"\n')
    found = list(read_marked([tmp_path / "TEST_FILE.TXT"], need_labels=False))
    assert [(e.source, e.targets) for e in found] == [(TEXT, ()), ("<e1>a</e1> <e2>b</e2>", ())]
    assert found[1].place == f"{tmp_path / 'TEST_FILE.TXT'}:2"
    (tmp_path / "plain.txt").write_text(f"{TEXT}\n\nno marks\n")
    assert [e.source for e in read_marked([tmp_path / "plain.txt"], need_labels=False)] == [TEXT, "", "no marks"]
    with pytest.raises(DataError, match="a file without labels"):
        list(read_marked([tmp_path / "plain.txt"]))


@pytest.mark.parametrize(
    ("name", "content", "line", "message"),
    [
        ("a.tsv", "A\tno marks\n", 1, "there is no <e1>; wanted a text with one <e1>..</e1> and one <e2>..</e2>"),
        ("a.txt", f'1\t"{TEXT}"\nComment:\n\n', 1, "no label on the line below"),
        ("a.txt", f'1\t"{TEXT}"\nA\n\n2\t"{TEXT}"\nB\n', 4, 'the label "B" is not one of the training split'),
    ],
)
def test_bad_lines(tmp_path: Path, name: str, content: str, line: int, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError) as error:
        list(read_marked([path], known=["A"]))
    assert str(error.value).startswith(f"a bad line\n  got:    {message}\n  where:  {path}:{line}\n")
    report = ReadReport()
    assert len(list(read_marked([path], known=["A"], on_bad_line="skip", report=report))) == line // 4
    assert report.bad == [(f"{path}:{line}", message)]


# --- tokens


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "wordpiece", "characters", "words"])
def test_marks_are_whole_in_a_tokenizer_of_ours(kind: Kind, tmp_path: Path) -> None:
    tokenizer = train_marked(TokenizerConfig(kind=kind, vocab_size=300), [TEXT, "a <e2>bird</e2> of <e1>prey</e1>"])
    ids = tokenizer.encode_batch([TEXT])[0]
    assert [ids.count(i) for i in tokenizer.markers] == [1, 1, 1, 1]
    assert [token for token in tokenizer.tokens(ids) if token in MARKS] == list(MARKS)
    first, last = ids.index(tokenizer.markers[0]), ids.index(tokenizer.markers[1])
    assert tokenizer.decode(ids[first:last]).strip() == "old birds"
    spans = tokenizer.offsets(TEXT)
    assert len(spans) == len(ids)
    assert (TEXT[slice(*spans[first])], TEXT[slice(*spans[last])]) == ("<e1>", "</e1>")
    assert TEXT[spans[first + 1][0] : spans[last - 1][1]] == "old birds"
    assert set(tokenizer.markers) <= set(tokenizer.special_ids)
    # no text can spell them, and the tokenizer comes back from its file
    spelled = tokenizer.encode_batch(["< e1 > x < /e2 >"])[0]
    assert not set(spelled) & set(tokenizer.markers)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = MarkedTokenizer.load(tmp_path / "tokenizer.json")
    assert again.markers == tokenizer.markers
    assert again.encode_batch([TEXT, "a nest"]) == tokenizer.encode_batch([TEXT, "a nest"])


def foreign(pieces: list[str], size: int | None = None) -> MarkedTokenizer:
    inner = tokenizers.Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    specials = Specials(start=2, end=3, pad=0, unk=1)
    return MarkedTokenizer.foreign(inner, specials, size)


USUAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def test_marks_take_the_pieces_that_a_tokenizer_keeps_unused() -> None:
    unused = [f"[unused{i}]" for i in range(1, 6)]
    tokenizer = foreign([*USUAL, *unused, "the", "old", "birds", "build", "their", "nests", "."])
    assert tokenizer.markers == (4, 5, 6, 7)
    assert tokenizer.encode_batch([TEXT]) == [[9, 4, 10, 11, 5, 12, 13, 6, 14, 7, 15]]
    assert tokenizer.tokens([4, 5, 6, 7, 8]) == [*MARKS, "[unused5]"]
    assert tokenizer.offsets(TEXT)[1:4] == [(4, 8), (8, 11), (12, 17)]


def test_or_rows_that_only_the_model_has() -> None:
    tokenizer = foreign([*USUAL, "a", "b"], size=16)
    assert tokenizer.markers == (6, 7, 8, 9)
    assert tokenizer.encode_batch(["<e1>a</e1> <e2>b</e2>"]) == [[6, 4, 7, 8, 5, 9]]


def test_or_the_last_pieces_which_are_unknown_then() -> None:
    tokenizer = foreign([*USUAL, "a", "b", "c", "d", "e", "f"])
    assert tokenizer.markers == (9, 8, 7, 6)
    assert tokenizer.encode_batch(["<e1>a</e1> <e2>b c f</e2>"]) == [[9, 4, 8, 7, 5, 1, 1, 6]]


def test_a_text_without_marks_is_read_as_before() -> None:
    plain = Tokenizer.train(["a bird in the hand"], kind="bpe", vocab_size=60)
    marked = MarkedTokenizer(plain.inner)
    text = "the bird and the band"
    ids = [i for i in plain.encode_batch([text])[0] if i not in marked.markers]
    assert [i for i in marked.encode_batch([text])[0] if i != 1] == [i for i in ids if i != 1]
    assert marked.offsets(text) == plain.offsets(text)


# --- what is cut


def test_what_is_cut_lies_outside_of_the_entities() -> None:
    drawn = random.Random(1)
    for _ in range(200):
        lengths = [drawn.randrange(8) for _ in range(5)]
        before, first, between, second, after = ([9] * length for length in lengths)
        ids = [*before, 1, *first, 2, *between, 3, *second, 4, *after]
        most = drawn.randrange(4, len(ids) + 2)
        kept = places_to_keep(ids, (1, 2, 3, 4), most)
        assert len(kept) == min(most, len(ids))
        assert kept == sorted(set(kept))
        read = [ids[i] for i in kept]
        assert [i for i in read if i != 9] == [1, 2, 3, 4]
        entities = len(first) + len(second) + 4
        if most >= entities:  # the entities are whole
            begin = len(before)
            whole = {*range(begin, begin + len(first) + 2)}
            begin += len(first) + 2 + len(between)
            assert whole | {*range(begin, begin + len(second) + 2)} <= set(kept)
        if most >= entities + len(between):  # and so is what stands between them
            assert {*range(len(before), len(ids) - len(after))} <= set(kept)
            assert kept == list(range(kept[0], kept[-1] + 1))
