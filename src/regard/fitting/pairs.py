"""From what pairs of texts look like to the keys of a recipe that writes one from the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.fitting.choices import Choice, Choices, short
from regard.fitting.profile import SAMPLE, Profile, Side

# up to so many examples, so many pieces
VOCABULARIES = ((5_000, 2_000), (20_000, 4_000), (100_000, 10_000), (1_000_000, 16_000), (math.inf, 32_000))

LONGEST = 4096  # tokens of a text: a file without line ends is one text, which no memory holds


@dataclass(frozen=True)
class Scale:
    """What the amount of data decides."""

    preset: str
    dropout: float
    learning_rate: float
    epochs: int
    batch_tokens: int
    accumulate: int


# up to so many tokens an epoch
SCALES = (
    (2e6, Scale("tiny", 0.3, 2e-3, 60, 4096, 1)),
    (20e6, Scale("small", 0.2, 1e-3, 30, 8192, 1)),
    (math.inf, Scale("base", 0.1, 7e-4, 10, 8192, 4)),
)


def fit(train: Profile) -> Choices:
    """The keys of a recipe for this training split; what is not here stays at its default."""
    source_kind, target_kind = kind(train.source), kind(train.target)
    source_length = tokens(train.source, source_kind.value)
    target_length = tokens(train.target, target_kind.value)
    total = train.num_examples * (max(source_length.mean, target_length.mean) + 1)
    return {
        "task": _task(train, target_kind.value),
        "data": data_choices(train, source_length, target_length),
        "tokenizer": _tokenizer(train, source_kind, target_kind),
        "model": _model(train, total, literal=target_kind.value in ("words", "characters")),
        "train": train_choices(total),
        "decode": _decode(train, source_length.mean, target_length),
    }


def fit_summaries(train: Profile) -> Choices:
    """The same for documents and their summaries."""
    choices = fit(train)
    del choices["task"]  # ROUGE knows no tokenizers
    choices["task"] = {}
    choices["data"]["too_long"] = Choice("truncate", "what matters mostly stands at the beginning")
    if choices["tokenizer"]["shared"].value:
        why = "names and rare words of the document can be taken as they are"
        choices["model"]["copy"] = Choice(True, why)
    choices["decode"] = {
        "no_repeat_ngram": Choice(3, "a summary that repeats itself is none"),
        "max_length": Choice(_round_up(1.3 * tokens(train.target, "bpe").largest, 8), "as the longest summary"),
    }
    return choices


def fit_dialogue(train: Profile) -> Choices:
    """The same for conversations: the last turns, and the reply, in one language."""
    pieces = pieces_of(train.source)
    source, target = tokens(train.source, pieces), tokens(train.target, pieces)
    total = train.num_examples * (max(source.mean, target.mean) + 1)
    size, why = vocabulary(train, train.source, pieces, share=1.0)
    length = min(LONGEST, _round_up(max(32, 1.3 * source.high, 1.3 * target.high), 8))
    data = data_choices(train, source, target)
    data["max_length"] = Choice(length, f"99 % of what is read has at most about {source.high:,.0f} tokens")
    data["too_long"] = Choice("truncate", "beyond it the oldest turns are not read: a reply answers the last ones")
    longest = _round_up(max(32, 1.3 * target.high), 8)
    return {
        "task": _task(train, pieces),
        "data": data,
        "tokenizer": {
            "kind": Choice(pieces, "words stand apart" if pieces == "bpe" else "there are no spaces between words"),
            "shared": Choice(True, "turns and replies are of one kind"),
            "vocab_size": Choice(size, why),
        },
        "model": _model(train, total, literal=False),
        "train": train_choices(total),
        "decode": {
            "no_repeat_ngram": Choice(3, "a reply that repeats itself is dull"),
            "max_length": Choice(longest, f"99 % of the replies have at most about {target.high:,.0f} tokens"),
            "max_ratio": Choice(20.0, "a reply may be far longer than what it answers"),
        },
    }


def fit_part(train: Profile) -> Choices:
    """The same as the first of several tasks of one model, which share one tokenizer."""
    source, target = (tokens(side, pieces_of(side)) for side in (train.source, train.target))
    pieces = max(pieces_of(train.source), pieces_of(train.target))  # unigram where one of them needs it
    total = train.num_examples * (max(source.mean, target.mean) + 1)
    sides = [vocabulary(train, side, pieces, share=1.0) for side in (train.source, train.target)]
    return {
        "task": {},
        "part": _part(train, target.mean / source.mean),
        "data": data_choices(train, source, target),
        "tokenizer": {
            "kind": Choice(pieces, "words stand apart" if pieces == "bpe" else "there are no spaces between words"),
            "vocab_size": Choice(max(size for size, _ in sides), max(sides)[1]),
        },
        "model": _model(train, total, literal=False),
        "train": train_choices(total),
        "decode": _decode(train, source.mean, target),
    }


def pieces_of(side: Side) -> str:
    """The kind of tokenizer that cuts words of this side."""
    return "bpe" if side.is_spaced else "unigram"


def _part(train: Profile, ratio: float) -> dict[str, Choice]:
    """How one of several tasks is scored; `ratio` is how long targets are, as a part of their sources."""
    target = train.target
    if target.words.median <= 3 if target.is_spaced else target.characters.median <= 6:
        return {"metrics": Choice(["exact_match", "chrf"], "short answers: right or wrong, and how nearly")}
    if ratio < 0.5:
        return {"metrics": Choice(["rouge1", "rouge2", "rougeL"], "what is written is far shorter than what is read")}
    return {"metrics": Choice(["bleu", "chrf"], "what is written is about as long as what is read"), **_cut(target)}


def kind(side: Side) -> Choice:
    """The kind of tokenizer for one side."""
    if side.is_closed:
        times = side.vocabulary.total() / len(side.vocabulary)
        return Choice("words", f"{len(side.vocabulary):,} different words, each seen {times:,.0f} times on average")
    if side.is_single_words:
        return Choice("characters", f"most are single words, of {side.characters.median:g} characters")
    if not side.is_spaced:
        script = side.scripts[0][0].title()
        return Choice("unigram", f"{side.scripts[0][1]:.0%} of the letters are {script}, with no spaces between words")
    return Choice(
        "bpe", f"{len(side.vocabulary):,} different words: frequent ones stay whole, rare ones fall in pieces"
    )


@dataclass(frozen=True)
class Length:
    """How long texts will be in tokens, before there is a tokenizer."""

    mean: float
    high: float
    largest: float


def tokens(side: Side, tokenizer: str) -> Length:
    """An estimate: a word makes about 1.5 pieces with its punctuation, a character of Chinese about 0.8."""
    count, factor = {
        "words": (side.words, 1.0),
        "characters": (side.characters, 1.0),
        "unigram": (side.characters, 0.8),
        "bpe": (side.words, 1.5),
    }[tokenizer]
    return Length(factor * count.mean, factor * count.high, factor * count.largest)


def _task(train: Profile, target_kind: str) -> dict[str, Choice]:
    target = train.target
    if target_kind == "words":
        why = "a closed vocabulary: answers that are right, and units that are wrong"
        return {"metrics": Choice(["exact_match", "phoneme_error"], why)}
    if target_kind == "characters":
        return {"metrics": Choice(["exact_match", "chrf"], "single words: right or wrong, and how nearly")}
    return _cut(target)


def _cut(target: Side) -> dict[str, Choice]:
    """How BLEU finds words."""
    if target.is_spaced:
        return {}
    chinese = target.scripts[0][0] == "HAN" and not any(name == "HIRAGANA" for name, share in target.scripts)
    why = "BLEU needs words: " + ("sacreBLEU's cut of Chinese" if chinese else "without spaces it counts characters")
    return {"tokenize": Choice("zh" if chinese else "char", why)}


def data_choices(train: Profile, *lengths: Length) -> dict[str, Choice]:
    """Keys of [data]."""
    chosen = {}
    if train.report.num_left_out:
        place, reason = train.report.bad[0]
        why = f"{train.report.num_bad:,} bad lines, the first: {place}: {reason}"
        chosen["on_bad_line"] = Choice("skip", why)
    length = _round_up(max(32, *(min(1.3 * each.largest, 4 * each.high) for each in lengths)), 8)
    longest = max(each.largest for each in lengths)
    why = f"the longest of {train.num_examples:,} examples has about {longest:,.0f} tokens"
    if length > LONGEST:
        length, why = LONGEST, f"longer texts need more memory than there may be; {why}"
    return {
        **chosen,
        "max_length": Choice(length, why),
        "too_long": Choice("drop", "a few lines that are far longer than the rest cost memory and teach little"),
    }


def _tokenizer(train: Profile, source: Choice, target: Choice) -> dict[str, Choice]:
    same = source.value == target.value
    shared = same and (train.shares_words if source.value == "words" else train.shares_alphabet)
    if shared:
        size, why = vocabulary(train, train.source, source.value, share=1.0)
        size = max(size, vocabulary(train, train.target, source.value, share=1.0)[0])
        return {
            "kind": Choice(source.value, f"{source.why}; target: {target.why}"),
            "shared": Choice(True, f"both sides use the same {'words' if source.value == 'words' else 'characters'}"),
            "vocab_size": Choice(size, why),
        }
    size, why = vocabulary(train, train.source, source.value, share=0.6)
    target_size, target_why = vocabulary(train, train.target, target.value, share=0.6)
    reason = "the sides do not share their characters" if same else "the sides are of different kinds"
    return {
        "kind": Choice(source.value, source.why),
        "target_kind": Choice(target.value, target.why),
        "shared": Choice(False, reason),
        "vocab_size": Choice(size, why),
        "target_vocab_size": Choice(target_size, target_why),
    }


def vocabulary(train: Profile, side: Side, tokenizer: str, *, share: float) -> tuple[int, str]:
    """Room for every word or character of a closed set; otherwise as many pieces as the data can teach."""
    unseen = 1.0 if train.num_examples <= SAMPLE else 1.3  # a sample misses rare ones
    if tokenizer in ("words", "characters"):
        items = side.vocabulary if tokenizer == "words" else side.alphabet
        return _round_up(unseen * len(items) + 5, 100), f"room for all {len(items):,} {tokenizer} and more"
    size = next(size for most, size in VOCABULARIES if train.num_examples <= most)
    characters = sum(count > 1 for count in side.alphabet.values())
    pieces = max(_round_up(share * size, 500), _round_up(1.5 * characters, 500))
    return pieces, f"{train.num_examples:,} examples, {characters:,} different characters"


def _model(train: Profile, total: float, *, literal: bool) -> dict[str, Choice]:
    scale = _scale(total)
    why = f"{train.num_examples:,} examples, about {short(total)} tokens an epoch"
    dropout = min(scale.dropout, 0.1) if literal else scale.dropout
    less = "little to learn by heart" if literal else "the less data, the more dropout"
    return {"preset": Choice(scale.preset, why), "dropout": Choice(dropout, less)}


def train_choices(total: float) -> dict[str, Choice]:
    """Keys of [train], by the tokens of an epoch."""
    scale = _scale(total)
    batch = int(min(scale.batch_tokens, max(512, _round_up(total / 20, 256))))
    update = batch * scale.accumulate
    steps = int(min(100_000, max(2_000, _nice(scale.epochs * total / update))))
    every = int(max(50, _nice(steps / 20)))
    chosen = {
        "max_steps": Choice(
            steps, f"about {steps * update / total:.0f} epochs of {math.ceil(total / update):,} updates"
        ),
        "batch_tokens": Choice(batch, "at least 20 batches an epoch" if batch < scale.batch_tokens else ""),
        "learning_rate": Choice(scale.learning_rate, f"what suits preset = {scale.preset}"),
        "schedule": Choice("cosine", "ends well at a number of updates that is known"),
        "warmup_steps": Choice(min(2000, steps // 10)),
        "validate_every": Choice(every, "about 20 times"),
        "checkpoint_every": Choice(every),
    }
    if scale.accumulate > 1:
        chosen["accumulate"] = Choice(scale.accumulate, f"updates of {update:,} tokens without the memory for them")
    return chosen


def _decode(train: Profile, source_mean: float, target: Length) -> dict[str, Choice]:
    chosen = {}
    # tokens of an output for each of its source, from the ratio of characters that the data has
    density = (target.mean / train.target.characters.mean) / (source_mean / train.source.characters.mean)
    ratio = math.ceil(1.3 * density * train.ratio.high * 2) / 2
    if ratio > 2:
        chosen["max_ratio"] = Choice(ratio, f"99 % of targets are within {density * train.ratio.high:.1f} times")
    if target.largest > 200:
        chosen["max_length"] = Choice(
            _round_up(1.3 * target.largest, 8), f"the longest target has {target.largest:.0f}"
        )
    return chosen


def _scale(total: float) -> Scale:
    return next(scale for most, scale in SCALES if total <= most)


def _round_up(value: float, step: int) -> int:
    return math.ceil(value / step) * step


def _nice(value: float) -> int:
    """A number with at most two digits that are not zero.

    >>> _nice(12_345), _nice(87)
    (12000, 87)
    """
    step: int = 10 ** max(0, len(str(int(value))) - 2)
    return round(value / step) * step
