"""Six kinds: round trips, specials that no text can spell, the same vocabulary every time."""

from __future__ import annotations

import functools
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import read_section, to_table
from regard.data import tokenizers as tokenizers_module
from regard.data.tokenizers import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    Kind,
    Tokenizer,
    TokenizerConfig,
    train_tokenizers,
)
from regard.errors import ConfigError, DataError, RunError
from regard.types import Example, Specials

KINDS = get_args(Kind)
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Der schnelle braune Fuchs springt über den faulen Hund!",
    "A man's t-shirt (red), isn't it?",
    "我赢了。你好吗？",
    "你用跑的，我也用跑的。",
    "low lower lowest, new newer newest",
] * 3


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(TEXTS, kind=request.param, vocab_size=400)


def test_text_comes_back(tokenizer: Tokenizer) -> None:
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        assert tokenizer.decode(ids) == text
        assert min(ids) >= len(SPECIALS)
        assert max(ids) < tokenizer.size


def test_pieces_are_the_text_as_it_comes(tokenizer: Tokenizer) -> None:
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        for cut in (0, 1, len(ids) // 2):
            before = [EOS, *ids[:cut]]
            pieces = list(tokenizer.pieces(ids[cut:], before))
            # behind the middle of a character, its first whole piece begins with it
            start = tokenizer.decode(before)
            assert "".join(pieces) == text[len(start) :] or start.endswith("\ufffd")
            assert len(pieces) == len(ids) - cut


def test_what_never_becomes_a_character_comes_in_the_end() -> None:
    tokenizer = Tokenizer.train(TEXTS, kind="byte-bpe", vocab_size=260)
    ids = tokenizer.encode_batch(["a好b"])[0]
    assert list(tokenizer.pieces(ids)) == ["a", "", "", "好", "b"]
    assert list(tokenizer.pieces(ids[:3])) == ["a", "", "", "\ufffd"]
    assert list(tokenizer.pieces([*ids[:2], ids[-1]])) == ["a", "", "\ufffdb"]
    assert list(tokenizer.pieces([])) == []


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "characters", "wordpiece"])
def test_new_text_of_known_characters_comes_back(kind: Kind) -> None:
    tokenizer = Tokenizer.train(TEXTS, kind=kind, vocab_size=300)
    for text in ["Hunde springen, lustig!", "newest dog (lazy)", "你好，我用你的。", "über-red fox's"]:
        assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_level_bpe_gives_any_text_back(text: str) -> None:
    tokenizer = byte_level()
    assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == unicodedata.normalize("NFC", text)


@functools.cache
def byte_level() -> Tokenizer:
    return Tokenizer.train(TEXTS, kind="byte-bpe", vocab_size=300)


@pytest.mark.parametrize("kind", KINDS)
def test_what_white_space_does(kind: Kind) -> None:
    tokenizer = Tokenizer.train([*TEXTS, " a\t b\u3000\nc "], kind=kind, vocab_size=400)
    text = " a\t b\u3000\nc "
    kept = kind in ("characters", "byte-bpe")
    assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == (text if kept else "a b c")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seen", [False, True])
def test_no_text_spells_a_special_id(kind: Kind, seen: bool) -> None:
    typed = ["<s> </s> <pad> <unk>", "a<s>b</s>", "<s>", "</s>", "<pad>", "< s > < /s > < pad > < unk >"]
    # Seen often enough, "<s>" is a piece of its own like any other.
    tokenizer = Tokenizer.train(TEXTS + typed * 20 * seen, kind=kind, vocab_size=500)
    for text, ids in zip(typed, tokenizer.encode_batch(typed), strict=True):
        assert not {PAD, BOS, EOS} & set(ids)
        if seen:
            assert UNK not in ids
            assert tokenizer.decode(ids) == text


def test_special_ids_have_names_and_say_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.tokens([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    ids = tokenizer.encode_batch(["dog. 你"])[0]
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == tokenizer.decode(ids)
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_batch([""]) == [[]]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "characters", "words"])
def test_what_was_never_seen_is_unknown(kind: Kind) -> None:
    tokenizer = Tokenizer.train(TEXTS, kind=kind, vocab_size=400)
    assert UNK in tokenizer.encode_batch(["dog ж"])[0]


def test_tokens_can_be_read(tokenizer: Tokenizer) -> None:
    text = "The dog. 我 赢了"
    tokens = tokenizer.tokens(tokenizer.encode_batch([text])[0])
    if "<unk>" not in tokens and not any(token.startswith("<0x") for token in tokens):
        assert "".join(tokens).replace("▁", "").replace(" ", "") == text.replace(" ", "")


def test_every_id_is_spelled_but_for_the_special_ones(tokenizer: Tokenizer) -> None:
    found = tokenizer.spelled()
    assert found[:4] == ("", "", "", "")
    assert list(found[4:]) == tokenizer.tokens(range(4, tokenizer.size))


def test_ids_that_no_text_has_are_not_spelled() -> None:
    inner = Tokenizer.train(["low"], kind="characters").inner
    assert Tokenizer.foreign(inner, Specials(2, 3, 0), size=9).spelled()[4:] == ("l", "o", "w", "", "")


def test_a_byte_that_is_no_character_is_shown_as_one() -> None:
    tokenizer = Tokenizer.train(["abc abc"], kind="byte-bpe", vocab_size=270)
    assert tokenizer.tokens(tokenizer.encode_batch(["ä abc"])[0]) == ["<0xC3>", "<0xA4>", "▁abc"]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "characters", "words"])
def test_offsets_point_into_the_text_as_it_was_given(kind: Kind) -> None:
    tokenizer = Tokenizer.train(TEXTS, kind=kind, vocab_size=400, lowercase=True)
    text = "  The   lazy DOG.  我赢了"
    tokens = tokenizer.tokens(tokenizer.encode_batch([text])[0])
    spans = [text[start:end] for start, end in tokenizer.offsets(text)]
    assert len(spans) == len(tokens)
    for token, span in zip(tokens, spans, strict=True):
        assert token in ("<unk>", "▁") or token.replace("▁", "") == span.lower().strip()


def test_pieces_do_not_join_words_and_punctuation() -> None:
    tokenizer = Tokenizer.train(["stop. stop. (stop) don't, t-shirt: 我赢了。我赢了。"] * 9, kind="bpe", vocab_size=500)
    ids = tokenizer.encode_batch(["stop. (stop) don't, t-shirt: 我赢了。"])[0]
    expected = ["▁stop", ".", "▁(", "stop", ")", "▁don't", ",", "▁t-shirt", ":", "▁我赢了", "。"]
    assert tokenizer.tokens(ids) == expected


def test_lower_case_and_composed_characters() -> None:
    tokenizer = Tokenizer.train(["ÉCOLE e\u0301cole"], kind="characters", vocab_size=30, lowercase=True)
    upper, decomposed = tokenizer.encode_batch(["ÉCOLE", "e\u0301cole"])
    assert upper == decomposed
    assert tokenizer.decode(upper) == "école"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_rare_characters_give_way_where_the_vocabulary_is_small(kind: Kind) -> None:
    rare = "".join(chr(0x4E00 + n) for n in range(200))
    tokenizer = Tokenizer.train(["abc abd " * 50, rare], kind=kind, vocab_size=60)
    assert tokenizer.size <= 60
    assert tokenizer.decode(tokenizer.encode_batch(["abd abc"])[0]) == "abd abc"


def test_min_frequency() -> None:
    tokenizer = Tokenizer.train(["a a b"], kind="words", vocab_size=50, min_frequency=2)
    assert tokenizer.encode_batch(["a b"]) == [[4, UNK]]


def test_the_same_texts_give_the_same_vocabulary_in_another_process(tmp_path: Path) -> None:
    # The library's hash tables are seeded anew in each process: that is where an order could slip in.
    program = f"""
import sys
from regard.data.tokenizers import Tokenizer
for kind in {KINDS!r}:
    Tokenizer.train({TEXTS!r}, kind=kind, vocab_size=300).save(sys.argv[1] + "/" + kind)
"""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        subprocess.run([sys.executable, "-c", program, str(folder)], check=True)
    for kind in KINDS:
        assert (folders[0] / kind).read_bytes() == (folders[1] / kind).read_bytes(), kind


def test_a_unigram_vocabulary_does_not_keep_the_order_of_a_hash_table() -> None:
    specials = [(name, 0.0) for name in "0123"]
    # Twenty letters are there only so as to be known: chance gives them the lowest score plus 0.0001 for each before.
    letters = "bcdefghijklmnopqrstu"
    known = [(letter, -9.0 + 1e-4 * n) for n, letter in enumerate(letters)]
    known_backwards = [(letter, -9.0 + 1e-4 * n) for n, letter in enumerate(reversed(letters))]
    one = [*specials, ("the", -2.00000000001), ("a", -3.0), *known]
    other = [*specials, ("a", -3.0), ("the", -2.0), *known_backwards]
    expected = [*specials, ("the", -2.0), ("a", -3.0), *((letter, -9.0) for letter in letters)]
    assert tokenizers_module._settled(one, 4) == tokenizers_module._settled(other, 4) == expected


def test_an_unknown_character_does_not_hide_a_chinese_sentence_from_wordpiece() -> None:
    tokenizer = Tokenizer.train(TEXTS, kind="wordpiece", vocab_size=400)
    assert tokenizer.tokens(tokenizer.encode_batch(["我赢龘了"])[0]) == ["▁", "我", "赢", "<unk>", "了"]


def test_saved_and_loaded_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert loaded.tokens(range(tokenizer.size)) == tokenizer.tokens(range(tokenizer.size))
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_damaged_tokenizer_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(RunError, match=r"missing[\s\S]*tokenizer\.json"):
        Tokenizer.load(path)
    whole = Tokenizer.train(TEXTS, kind="bpe", vocab_size=200).to_json()
    for content, reason in {
        whole[: len(whole) // 2]: "truncated or not JSON",
        "": "truncated or not JSON",
        "{}": "no tokenizer",
        "[1]": "no tokenizer",
        whole.replace('"< s >"', '"<s>"'): "not one of ours",
    }.items():
        path.write_text(content, encoding="utf-8")
        with pytest.raises(RunError, match=reason) as caught:
            Tokenizer.load(path)
        assert str(path) in str(caught.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match="truncated or not JSON"):
        Tokenizer.load(path)


def test_no_text_no_tokenizer() -> None:
    with pytest.raises(DataError, match="no text"):
        Tokenizer.train(["", "  "], kind="bpe")


@pytest.mark.parametrize("kind", KINDS)
def test_eight_short_texts_are_enough(kind: Kind) -> None:
    texts = ["a b", "b a", "c", "a c b", "aa", "ab ba", "cab", "b"]
    tokenizer = Tokenizer.train(texts, kind=kind)
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)] == texts


def test_one_tokenizer_for_both_sides_or_one_each() -> None:
    examples = [Example("read", ("R EH D", "R IY D")), Example("red", ("R EH D",))]
    source, target = train_tokenizers(TokenizerConfig(kind="characters"), iter(examples))
    assert source is target
    source, target = train_tokenizers(
        TokenizerConfig(kind="characters", shared=False, target_kind="words"), iter(examples)
    )
    assert source.tokens(source.encode_batch(["dear"])[0]) == ["d", "e", "a", "r"]
    assert target.tokens(target.encode_batch(["R IY D"])[0]) == ["R", "IY", "D"]
    assert target.size == 4 + 4
    source, target = train_tokenizers(TokenizerConfig(shared=False, vocab_size=20, target_vocab_size=12), examples)
    assert (source.size <= 20, target.size) == (True, 12)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"vocab_size": 4}, "vocab_size is too small"),
        ({"target_vocab_size": 3, "shared": False}, "target_vocab_size is too small"),
        ({"min_frequency": 0}, "min_frequency"),
        ({"target_kind": "words"}, "tokenizer.shared = false"),
        ({"kind": "sentencepiece"}, "'sentencepiece'"),
        ({"vocabsize": 9}, '"tokenizer.vocab_size"'),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_section(TokenizerConfig, table, where="recipe.toml", name="tokenizer")


def test_the_section_reads_back() -> None:
    config = TokenizerConfig(kind="characters", shared=False, target_kind="words")
    assert read_section(TokenizerConfig, to_table(config), where="recipe.toml", name="tokenizer") == config


def test_strings_with_punctuation_stay_whole_where_that_is_asked_for() -> None:
    texts = ["#Person1#: Hi, Mr. X! #Person2#: #Person1# is here."] * 3
    cut = Tokenizer.train(texts, vocab_size=90)
    assert "Person1" in cut.tokens(cut.encode_batch(["a #Person1#: hi"])[0])
    for kind in ("bpe", "unigram", "wordpiece"):
        whole = Tokenizer.train(texts, kind=kind, vocab_size=90, whole=["#Person1#", "X!"])  # type: ignore[arg-type]
        ids = whole.encode_batch(["Hi, #Person1#: Mr. X!"])[0]
        assert whole.decode(ids) == "Hi, #Person1#: Mr. X!"
        if kind == "bpe":
            assert whole.tokens(ids) == ["\u2581Hi", ",", "\u2581#Person1#", ":", "\u2581Mr", ".", "\u2581X!"]
    low = Tokenizer.train(texts, vocab_size=90, lowercase=True, whole=["#Person1#"])
    assert "\u2581#person1#" in low.tokens(low.encode_batch(["#Person1# is"])[0])
    with pytest.raises(ConfigError, match=r"tokenizer\.whole has no use here"):
        TokenizerConfig(kind="characters", whole=("#Person1#",))
    with pytest.raises(ConfigError, match=r"tokenizer\.whole are strings without spaces"):
        TokenizerConfig(whole=("Mr. X",))


@pytest.mark.parametrize(
    ("kind", "size", "extra", "least"),
    [
        ("byte-bpe", 50, (), 260),
        ("byte-bpe", 260, ("<mask>",), 261),
        ("bpe", 5, ("<a>", "<b>"), 7),
        ("words", 5, ("<a>", "<b>"), 7),
    ],
)
def test_a_vocabulary_that_has_no_room_for_what_its_kind_needs(
    kind: Kind, size: int, extra: tuple[str, ...], least: int
) -> None:
    with pytest.raises(ConfigError) as caught:
        Tokenizer.train(TEXTS, kind=kind, vocab_size=size, extra=extra)
    assert str(caught.value) == (
        f"tokenizer.vocab_size is too small for {kind}\n  got:    {size}\n  wanted: {least} or more"
    )
    assert Tokenizer.train(TEXTS, kind=kind, vocab_size=least, extra=extra).size <= least
