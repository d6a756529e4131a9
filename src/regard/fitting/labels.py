"""From what texts with labels look like to the keys of a classification recipe."""

from __future__ import annotations

import math

from regard.fitting.choices import Choice, Choices, short
from regard.fitting.pairs import data_choices, kind, tokens, train_choices, vocabulary
from regard.fitting.profile import Profile

# up to so many tokens an epoch: layers, width, dropout, learning rate
SIZES = ((2e6, (2, 128, 0.3, 1e-3)), (20e6, (4, 256, 0.2, 5e-4)), (math.inf, (6, 512, 0.1, 3e-4)))
FEWEST = 50  # examples that some can be held out of


def fit_labels(train: Profile, *, held_out: bool) -> Choices:
    """The keys of a recipe for this training split; `held_out`: validation has no file, and is a part of it."""
    several = train.num_variants > 0
    pieces = kind(train.source)
    length = tokens(train.source, pieces.value)
    total = train.num_examples * (length.mean + 2)
    size, why = vocabulary(train, train.source, pieces.value, share=1.0)
    data = data_choices(train, length)
    data["too_long"] = Choice("truncate", "what a long text is about, its beginning mostly says")
    if held_out:
        data["val_share"] = Choice(
            0.1, "there is no file to validate with: a tenth of the training file is, by its texts"
        )
    lowercase = Choice(True, "case says little of most labels, and few examples are seen in each")
    return {
        "task": {"multi_label": Choice(True, f"{train.num_variants:,} texts have several labels")} if several else {},
        "data": data,
        "tokenizer": {"kind": pieces, "vocab_size": Choice(size, why), "lowercase": lowercase},
        "model": _model(train, total, data["max_length"].value),
        "train": _train(train, total, several),
        "decode": {},
    }


def _model(train: Profile, total: float, max_length: int) -> dict[str, Choice]:
    layers, width, dropout, _ = _size(total)
    return {
        "family": Choice("bert", "an encoder, which begins from scratch; finetune.base names one that was trained"),
        "preset": Choice("tiny"),
        "layers": Choice(layers, f"{train.num_examples:,} examples, about {short(total)} tokens an epoch"),
        "model_dim": Choice(width),
        "num_heads": Choice(width // 32),
        "ffn_dim": Choice(4 * width),
        "max_length": Choice(max_length + 2, "data.max_length, and what begins and ends a text"),
        "dropout": Choice(dropout, "the less data, the more dropout"),
        "masked_head": Choice(False, "nothing is hidden in this task"),
        "pooler": Choice(False),
        "next_sentence": Choice(False),
    }


def _train(train: Profile, total: float, several: bool) -> dict[str, Choice]:
    rate = Choice(_size(total)[3], "what suits this width")
    best = Choice("micro_f1" if several else "accuracy", "what is reported")
    return {**train_choices(total), "learning_rate": rate, "best": best}


def _size(total: float) -> tuple[int, int, float, float]:
    return next(size for most, size in SIZES if total <= most)
