"""From what running text looks like to the keys of a recipe that hides a part of it."""

from __future__ import annotations

import dataclasses
import math

from regard.fitting.choices import Choice, Choices, short
from regard.fitting.pairs import pieces_of, tokens, train_choices, vocabulary
from regard.fitting.profile import Profile

# up to so many tokens an epoch: layers, width, learning rate
SIZES = ((5e5, (2, 128, 1e-3)), (20e6, (4, 256, 1e-3)), (math.inf, (8, 512, 5e-4)))
LINE = 25  # tokens of a usual line, by which the size of a vocabulary is known from an amount of text
CONTEXT, SPAN_CONTEXT = 128, 256


def fit_masked(train: Profile) -> Choices:
    """Hidden words; and next sentences, where lines are sentences and empty lines part documents."""
    choices, total = _common(train), _total(train)
    layers, width, _ = _size(total)
    choices["task"] = {"context": Choice(CONTEXT, "tokens of a row")}
    if train.source.is_spaced:
        choices["task"]["whole_word"] = Choice(True, "a piece of a word is easily guessed from its other pieces")
    if train.follows:
        why = "a line is a sentence and empty lines part documents: the model also learns which text follows which"
        choices["task"]["next_sentence"] = Choice(True, why)
    choices["model"] = {
        "family": Choice("bert", "reads both sides of each gap; `regard models` lists others"),
        "preset": Choice("tiny"),
        "layers": Choice(layers, f"about {short(total)} tokens an epoch"),
        **_widths(width),
        "max_length": Choice(CONTEXT, "task.context"),
    }
    if not train.follows:
        choices["model"]["next_sentence"] = Choice(False, "as task.next_sentence, which wants a sentence a line")
    return choices


def fit_permutation(train: Profile) -> Choices:
    """The last tokens of an order that is drawn."""
    choices, total = _common(train), _total(train)
    layers, width, _ = _size(total)
    choices["task"] = {
        "context": Choice(CONTEXT, "tokens of a row"),
        "carry": Choice(True, "a row goes on where the same row of the batch before ended, and remembers it"),
    }
    choices["model"] = {
        "family": Choice("xlnet", "the only one that reads in any order"),
        "preset": Choice("tiny"),
        "layers": Choice(layers, f"about {short(total)} tokens an epoch"),
        **_widths(width),
        "memory": Choice(CONTEXT, "the row before, whole"),
    }
    return choices


def fit_spans(train: Profile) -> Choices:
    """Spans that were taken out."""
    choices, total = _common(train), _total(train)
    layers, width, _ = _size(total)
    choices["task"] = {"context": Choice(SPAN_CONTEXT, "tokens of text that spans are taken out of")}
    choices["model"] = {
        "family": Choice("t5", "made for spans; any family that reads one text and writes another will do"),
        "preset": Choice("v1.1-small"),
        "encoder_layers": Choice(layers, f"about {short(total)} tokens an epoch"),
        "decoder_layers": Choice(layers),
        **_widths(width),
        "head_dim": Choice(32),
    }
    return choices


def _common(train: Profile) -> Choices:
    total, data = _total(train), {}
    if train.report.num_bad:
        place, reason = train.report.bad[0]
        data["on_bad_line"] = Choice("skip", f"{train.report.num_bad:,} bad lines, the first: {place}: {reason}")
    lines = dataclasses.replace(train, num_examples=math.ceil(total / LINE))
    pieces = pieces_of(train.source)
    size, _ = vocabulary(lines, train.source, pieces, share=1.0)
    kinds = {"bpe": "frequent words stay whole, rare ones fall in pieces", "unigram": "no spaces between words"}
    return {
        "task": {},
        "data": data,
        "tokenizer": {
            "kind": Choice(pieces, kinds[pieces]),
            "vocab_size": Choice(size, f"about {short(total)} tokens"),
        },
        "model": {},
        "train": {**train_choices(total), "learning_rate": Choice(_size(total)[2], "what suits this width")},
        "decode": {},
    }


def _widths(width: int) -> dict[str, Choice]:
    return {"model_dim": Choice(width), "num_heads": Choice(width // 32), "ffn_dim": Choice(4 * width)}


def _total(train: Profile) -> float:
    """About how many tokens an epoch has."""
    return max(1.0, train.num_examples * tokens(train.source, pieces_of(train.source)).mean)


def _size(total: float) -> tuple[int, int, float]:
    return next(size for most, size in SIZES if total <= most)
