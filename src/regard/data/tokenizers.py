"""Text <-> ids. One class over the `tokenizers` library, six kinds, and special ids that no text can spell.

What happens to text: it is brought to Unicode's NFC (and to lower case if asked). The kinds `characters` and
`byte-bpe` keep every character, also each space; the others make one space of any run of white space and drop it
at both ends. But for that, `decode` gives back the text that `encode_batch` was given, where no piece is unknown.

A tokenizer of others (`Tokenizer.foreign`) does what its file says; its special ids, and how many ids its model has,
are kept in a file beside it. Where a model came without one, ids are its text (`Tokenizer.of_ids`): "17 4 99".
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from regard.config import key
from regard.errors import DataError, RunError, require
from regard.files import put_text
from regard.types import Example, Specials

if TYPE_CHECKING:
    import tokenizers

Kind = Literal["bpe", "byte-bpe", "unigram", "wordpiece", "characters", "words"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
# In the vocabulary itself the specials are spelled with spaces. No kind lets a space into a piece of several
# characters, so neither a user who types "<s>" nor a merge learned from a page of HTML can ever meet one of them.
SPELLED = tuple(f"< {name[1:-1]} >" for name in SPECIALS)
MASK = "<mask>"
SPACE = "\u2581"  # how a space looks inside a piece
# A piece never joins a word to the punctuation beside it; apostrophes and hyphens belong to words.
PUNCTUATION = rf"{SPACE}?[\p{{P}}&&[^'\u2019\-]]+"
LEXICAL = ("characters", "words")
LOSSLESS = ("characters", "byte-bpe")


@dataclass(frozen=True)
class TokenizerConfig:
    """The `[tokenizer]` section of a recipe."""

    kind: Kind = key("bpe", "bpe, byte-bpe, unigram, wordpiece, characters or words")
    vocab_size: int = key(
        8000, "pieces in the vocabulary, at most; the four special ones among them; byte-bpe: 260 or more"
    )
    shared: bool = key(True, "one vocabulary for source and target")
    target_kind: Literal["", "bpe", "byte-bpe", "unigram", "wordpiece", "characters", "words"] = key(
        "", 'kind of the target side where it is not shared; "" = as the source'
    )
    target_vocab_size: int = key(0, "pieces of the target side where it is not shared; 0 = as the source")
    lowercase: bool = key(False, "read everything in lower case")
    min_frequency: int = key(1, "rarer pairs are not merged, rarer words and characters are unknown")
    whole: tuple[str, ...] = key((), "strings with punctuation that are cut as words are: #Person1#; bpe, unigram")

    def __post_init__(self) -> None:
        require(self.vocab_size > 4, "tokenizer.vocab_size is too small", got=self.vocab_size, wanted="more than 4")
        size, wanted = self.target_vocab_size, "0 (as the source) or more than 4"
        require(size == 0 or size > 4, "tokenizer.target_vocab_size is too small", got=size, wanted=wanted)
        require(
            self.min_frequency > 0, "tokenizer.min_frequency must count", got=self.min_frequency, wanted="1 or more"
        )
        fits = not self.whole or self.kind in ("bpe", "unigram", "wordpiece")
        require(fits, "tokenizer.whole has no use here", got=f'kind = "{self.kind}"', wanted="bpe, unigram, wordpiece")
        spaced = [text for text in self.whole if text.split() != [text]]
        require(not spaced, "tokenizer.whole are strings without spaces", got=spaced, wanted="as #Person1#")
        apart = bool(self.target_kind or self.target_vocab_size)
        require(
            not (self.shared and apart),
            "a shared vocabulary has no target side of its own",
            got=f'target_kind = "{self.target_kind}", target_vocab_size = {self.target_vocab_size}',
            wanted="neither of them",
            remedy="set tokenizer.shared = false",
        )


class Tokenizer:
    """A trained vocabulary: `encode_batch`, `decode`, and the pieces between them.

    >>> tokenizer = Tokenizer.train(["low lower lowest"], kind="bpe", vocab_size=40)
    >>> ids = tokenizer.encode_batch(["lowest  low"])[0]
    >>> tokenizer.tokens(ids), tokenizer.decode(ids)
    (['▁lowest', '▁low'], 'lowest low')
    """

    markers: tuple[int, ...] = ()  # ids that stand in a text and are none of its words, see `regard.data.markers`

    def __init__(self, inner: tokenizers.Tokenizer, foreign: Specials | None = None, size: int | None = None) -> None:
        self.inner, self._foreign = inner, foreign
        # how many ids there are, the special ones included
        self.size = inner.get_vocab_size() if size is None else size
        if foreign is None:
            self._special = dict(_spelled(inner))
            mask = next((i for i, name in self._special.items() if name == MASK), None)
            self.specials = Specials(BOS, EOS, PAD, UNK, mask)
        else:
            added = {i: token.content for i, token in inner.get_added_tokens_decoder().items() if token.special}
            named = [foreign.start, foreign.end, foreign.pad, foreign.mask]
            self._special = {i: inner.id_to_token(i) or f"<{i}>" for i in named if i is not None} | added
            self.specials = foreign

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        kind: Kind = "bpe",
        vocab_size: int = 8000,
        lowercase: bool = False,
        min_frequency: int = 1,
        extra: Sequence[str] = (),
        whole: Sequence[str] = (),
    ) -> Self:
        """Learns a vocabulary; the same texts give the same one. Where the texts have more different characters
        than `vocab_size` has room for, the rarest become unknown (`byte-bpe` knows every character).

        `extra` are more special pieces, after the usual four: "<mask>". `whole` strings are not cut at punctuation.
        """
        spelled = [*SPELLED, *(_spell(name) for name in extra)]
        inner = _untrained(kind, lowercase, whole)
        clean = [inner.normalizer.normalize_str(text) for text in texts]
        if not any(clean):
            raise DataError("there is no text to train a tokenizer on", got=f"{len(clean)} empty texts")
        if kind not in ("byte-bpe", *LEXICAL):
            clean = _without_rare_characters(clean, vocab_size - len(spelled) - 1)
        inner.train_from_iterator(clean, _trainer(kind, vocab_size, min_frequency, spelled))
        found = cls(_finished(inner, kind, len(spelled)))
        least, what = max(found.size, len(spelled) + 1), f"tokenizer.vocab_size is too small for {kind}"
        require(least <= vocab_size, what, got=vocab_size, wanted=f"{least} or more")
        return found

    @classmethod
    def foreign(cls, inner: tokenizers.Tokenizer, specials: Specials, size: int | None = None) -> Self:
        """A tokenizer that others trained, with what its special ids are; an id may stand for two of them.

        `size` is that of the model's vocabulary, which is often larger than the tokenizer's.
        """
        inner.no_truncation()
        inner.no_padding()
        return cls(inner, specials, size)

    @classmethod
    def of_ids(cls, size: int, specials: Specials) -> Self:
        """Where a model came without a tokenizer: a text is numbers, with spaces between them.

        >>> tokenizer = Tokenizer.of_ids(100, Specials(0, 1, 0))
        >>> tokenizer.encode_batch(["17 4 99"]), tokenizer.decode([17, 4, 1])
        ([[17, 4, 99]], '17 4')
        """
        from tokenizers import Tokenizer, models, pre_tokenizers

        inner = Tokenizer(models.WordLevel({str(i): i for i in range(size)}))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return cls.foreign(inner, specials, size)

    @property
    def reads_ids(self) -> bool:
        """Whether this is one `of_ids`."""
        return self.inner.id_to_token(0) == "0" and self.inner.id_to_token(self.size - 1) == str(self.size - 1)

    @property
    def special_ids(self) -> list[int]:
        """The ids that no text has."""
        return sorted(self._special)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; no special id is added."""
        try:
            found = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower
            if self.reads_ids:
                raise DataError(
                    "this run has no tokenizer: it reads ids",
                    got=next((text for text in texts if not self._all_known(text)), "")[:80],
                    wanted=f"numbers under {self.size} with spaces between them",
                    remedy="convert a folder with a tokenizer.json",
                ) from None
            raise DataError("the tokenizer cannot read this text", got=error) from None
        return [encoding.ids for encoding in found]

    def read_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as a model reads it: after those that the tokenizer puts before it. None for no text."""
        return [[*self.before, *ids] if ids else [] for ids in self.encode_batch(texts)]

    @property
    def before(self) -> tuple[int, ...]:
        """The special ids that come before a text: none in ours, one in BART's, BERT's and Llama's."""
        return self._around[0]

    @property
    def after(self) -> tuple[int, ...]:
        """The special ids that come after a text: none in ours, as the task adds them; the end in T5's and BERT's."""
        return self._around[1]

    @functools.cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.inner.post_processor is None:
            return (), ()
        found = self.inner.encode("a")
        pairs = list(zip(found.ids, found.special_tokens_mask, strict=True))
        first, last = (list(itertools.takewhile(lambda pair: pair[1], side)) for side in (pairs, reversed(pairs)))
        return tuple(i for i, _ in first), tuple(i for i, _ in reversed(last))

    def _all_known(self, text: str) -> bool:
        return all(self.inner.token_to_id(word) is not None for word in text.split())

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids; special ids say nothing."""
        return self.inner.decode([int(i) for i in ids if int(i) not in self._special], skip_special_tokens=False)

    def pieces(self, ids: Iterable[int], before: Sequence[int] = ()) -> Iterator[str]:
        """The text of ids that come one after the other, behind those `before`: one piece for each of them.

        A piece is "" where its last character is not whole yet; what never becomes whole comes in the end.

        >>> tokenizer = Tokenizer.train(["low"], kind="byte-bpe", vocab_size=261)
        >>> list(tokenizer.pieces(tokenizer.encode_batch(["lé"])[0]))
        ['l', '', 'é']
        """
        # only the last pieces are decoded again: what comes before a whole character changes nothing
        known, begin, end = list(before), 0, len(before)
        for i in ids:
            known.append(i)
            text = self.decode(known[begin:])
            if text.endswith("\ufffd"):
                yield ""
                continue
            yield text[len(self.decode(known[begin:end])) :]
            begin, end = end, len(known)
        if end < len(known):
            yield self.decode(known[begin:])[len(self.decode(known[begin:end])) :]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces as one can read them; a space is shown as ▁, a byte that is no whole character as <0xE4>."""
        return [self._special.get(int(i)) or self._surface(int(i)) for i in ids]

    def spelled(self) -> tuple[str, ...]:
        """How each id is spelled, as `tokens` shows it; "" for a special one, or one that no text has."""
        named = (i not in self._special and self.inner.id_to_token(i) is not None for i in range(self.size))
        return tuple(self._surface(i) if has else "" for i, has in enumerate(named))

    def extra(self, name: str) -> int:
        """The id of a special piece beside the usual ones, as "<mask>"."""
        return next(i for i, known in self._special.items() if known == name)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """From where to where in the text each piece of `encode_batch([text])[0]` reaches."""
        return self.inner.encode(text, add_special_tokens=False).offsets

    def word_starts(self, texts: Sequence[str]) -> list[list[bool]]:
        """Of each piece of `encode_batch(texts)`, whether a word begins with it, as the tokenizer cuts text into words.

        >>> tokenizer = Tokenizer.train(["low lower lowest"], kind="bpe", vocab_size=12)
        >>> tokenizer.word_starts(["low, lower"])[0].count(True)
        3
        """
        found = self.inner.encode_batch(list(texts), add_special_tokens=False)
        return [[word != before for before, word in itertools.pairwise([-1, *each.word_ids])] for each in found]

    def spans(self, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """The text of these ids, and from where to where in it each of them reaches; a special id has an empty span.

        >>> tokenizer = Tokenizer.train(["low lower"], kind="characters")
        >>> tokenizer.spans([*tokenizer.encode_batch(["low"])[0], EOS])
        ('low', [(0, 1), (1, 2), (2, 3), (3, 3)])
        """
        text = self.decode(ids)
        if self.encode_batch([text])[0] == list(ids):
            return text, self.offsets(text)
        # a model may spell a text in other pieces than the tokenizer would
        ends = [_shared(self.decode(ids[:n]), text) for n in range(len(ids) + 1)]
        return text, list(itertools.pairwise(ends))

    def to_json(self) -> str:
        """Everything that the tokenizer is; equal tokenizers give equal text."""
        return self.inner.to_str()

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer as JSON, whole or not at all."""
        path = Path(path)
        if self._foreign is not None:
            beside = {**dataclasses.asdict(self._foreign), "size": self.size}
            put_text(path.with_suffix(".specials.json"), json.dumps(beside))
        put_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what `save` wrote; it is JSON, so nothing in it can be run."""
        import tokenizers

        remedy = "copy the run again, or train it again"
        try:
            text = Path(path).read_text(encoding="utf-8")
            json.loads(text)
        except FileNotFoundError:
            raise RunError("the tokenizer is missing", got=path, remedy=remedy) from None
        except OSError as error:
            raise RunError("the tokenizer cannot be read", got=error.strerror, where=path) from None
        except ValueError as error:
            raise RunError("the tokenizer is truncated or not JSON", got=error, where=path, remedy=remedy) from None
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise RunError("the file is no tokenizer", got=error, where=path, remedy=remedy) from None
        beside = Path(path).with_suffix(".specials.json")
        if beside.exists():
            return cls.foreign(inner, *_read_specials(beside))
        found = tuple(inner.id_to_token(i) for i in range(len(SPELLED)))
        if found != SPELLED:
            wanted = "the special pieces " + ", ".join(SPELLED)
            raise RunError("the tokenizer is not one of ours", got=found, wanted=wanted, where=path)
        return cls(inner)

    def _surface(self, i: int) -> str:
        piece = self.inner.id_to_token(i)
        if piece is None:
            raise IndexError(f"id {i} of a vocabulary of {self.size}")
        if not self._is_byte_level or not all(character in _byte_of_character() for character in piece):
            return piece.replace(" ", SPACE)
        raw = bytes(_byte_of_character()[character] for character in piece)
        try:
            return raw.decode().replace(" ", SPACE)
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in raw)

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        from tokenizers import decoders

        return isinstance(self.inner.decoder, decoders.ByteLevel)


def _spell(name: str) -> str:
    return f"< {name[1:-1]} >"


def _spelled(inner: tokenizers.Tokenizer) -> Iterator[tuple[int, str]]:
    """The special pieces of a tokenizer of ours: they come first, and nothing else is spelled like them."""
    for i in itertools.count():
        piece = inner.id_to_token(i)
        if piece is None or not (piece.startswith("< ") and piece.endswith(" >")):
            return
        yield i, f"<{piece[2:-2]}>"


def _read_specials(path: Path) -> tuple[Specials, int | None]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        size = table.pop("size", None)
        return Specials(**table), size
    except (OSError, ValueError, TypeError, AttributeError) as error:
        remedy = "copy the run again, or convert it again"
        raise RunError("the tokenizer's special ids cannot be read", got=error, where=path, remedy=remedy) from None


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str], *, extra: Sequence[str] = ()) -> Tokenizer:
    """The tokenizer of a task with one text."""
    return Tokenizer.train(
        texts,
        kind=config.kind,
        vocab_size=config.vocab_size,
        lowercase=config.lowercase,
        min_frequency=config.min_frequency,
        extra=extra,
        whole=config.whole,
    )


def train_tokenizers(
    config: TokenizerConfig, examples: Iterable[Example], *, extra: Sequence[str] = ()
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target: one and the same object where the vocabulary is shared."""
    sources: list[str] = []
    targets: list[str] = []
    for example in examples:
        sources.append(example.source)
        targets.extend(example.targets)
    if config.shared:
        both = train_tokenizer(config, sources + targets, extra=extra)
        return both, both
    kind, size = config.target_kind or config.kind, config.target_vocab_size or config.vocab_size
    other = dataclasses.replace(config, kind=kind, vocab_size=size, target_kind="", target_vocab_size=0)
    return train_tokenizer(config, sources, extra=extra), train_tokenizer(other, targets)


def _untrained(kind: Kind, lowercase: bool, whole: Sequence[str] = ()) -> Any:
    """The library's tokenizer of this kind, with how it cleans, cuts and joins text, and an empty vocabulary."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    def isolate(pattern: str) -> Any:
        return pre_tokenizers.Split(Regex(pattern), "isolated")

    if kind == "unigram":
        inner = Tokenizer(models.Unigram())
    elif kind in LEXICAL:
        inner = Tokenizer(models.WordLevel(unk_token=SPELLED[UNK]))
    else:  # WordPiece takes the longest piece that fits, from pieces that are learned as BPE's are
        inner = Tokenizer(models.BPE(unk_token=SPELLED[UNK]))

    if kind == "byte-bpe":
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    elif kind == "characters":
        inner.pre_tokenizer, inner.decoder = isolate(r"[\s\S]"), decoders.Fuse()
    elif kind == "words":
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        # one unknown character makes a whole word unknown to WordPiece: Chinese, without spaces, is cut up for it
        known = [text.lower() if lowercase else text for text in whole]
        kept = "".join(rf"{SPACE}?{re.escape(text)}|" for text in known)  # before punctuation, so that none is cut
        cuts = [isolate(kept + PUNCTUATION), *([isolate(r"\p{Han}")] if kind == "wordpiece" else [])]
        inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(SPACE), *cuts])
        inner.decoder = decoders.Metaspace(SPACE)

    steps: list[Any] = [normalizers.NFC()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if kind not in LOSSLESS:
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    inner.normalizer = normalizers.Sequence(steps)
    return inner


def _trainer(kind: Kind, vocab_size: int, min_frequency: int, spelled: list[str]) -> Any:
    from tokenizers import pre_tokenizers, trainers

    common: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": spelled, "show_progress": False}
    if kind == "unigram":
        return trainers.UnigramTrainer(unk_token=SPELLED[UNK], **common)
    if kind in LEXICAL:
        return trainers.WordLevelTrainer(min_frequency=min_frequency, **common)
    if kind == "byte-bpe":
        common["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    return trainers.BpeTrainer(min_frequency=min_frequency, **common)


def _finished(inner: Any, kind: Kind, num_special: int) -> Any:
    """The trained tokenizer with plain entries for the specials, so that no text is searched for them."""
    from tokenizers import Tokenizer

    table = json.loads(inner.to_str())
    table["added_tokens"] = []
    if kind == "unigram":
        table["model"]["vocab"] = _settled(table["model"]["vocab"], num_special)
    if kind == "wordpiece":
        options = {"unk_token": SPELLED[UNK], "continuing_subword_prefix": "", "max_input_chars_per_word": 1000}
        table["model"] = {"type": "WordPiece", **options, "vocab": table["model"]["vocab"]}
    return Tokenizer.from_str(json.dumps(table))


def _settled(vocab: list[tuple[str, float]], num_special: int) -> list[tuple[str, float]]:
    """A unigram vocabulary that is the same after each training on the same text.

    The library sums in the order of a hash table: scores differ in their last digits, and characters that are in
    the vocabulary only so as to be known get the lowest score plus 0.0001 for each that came before.
    """
    pieces = vocab[num_special:]
    lowest = min((score for _, score in pieces), default=0.0)
    window = lowest + 1e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    scores = {piece: lowest if len(piece) == 1 and score <= window else score for piece, score in pieces}
    rounded = ((piece, round(score, 3)) for piece, score in scores.items())
    return [*vocab[:num_special], *sorted(rounded, key=lambda entry: (-entry[1], entry[0]))]


def _without_rare_characters(texts: list[str], room: int) -> list[str]:
    """The texts with spaces for all but the most frequent characters, if there are more than there is room for."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    if len(counts) <= room:
        return texts
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    table = dict.fromkeys(map(ord, ranked[max(room, 1) :]), " ")
    return [text.translate(table) for text in texts]


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes each byte as one visible character: itself where it is one, else from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


def _shared(a: str, b: str) -> int:
    """How many characters two texts begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
