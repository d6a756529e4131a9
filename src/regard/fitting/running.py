"""From what running text looks like to the keys of a recipe for a model that goes on with it."""

from __future__ import annotations

import math

from regard.fitting.choices import Choice, Choices, short
from regard.fitting.pairs import train_choices
from regard.fitting.profile import Profile

FEW = 5_000_000  # characters of a text that is better learned letter by letter
# up to so many tokens an epoch: layers, width, dropout, learning rate
SIZES = ((2e6, (4, 128, 0.1, 2e-3)), (20e6, (6, 384, 0.2, 1e-3)), (math.inf, (12, 768, 0.1, 6e-4)))


def fit_text(train: Profile) -> Choices:
    """The keys of a recipe for this text; what is not here stays at its default."""
    characters = int(train.num_examples * (train.source.characters.mean + 1))  # and the ends of lines
    if characters < FEW:
        why = f"{short(characters)} characters: too few to know words by, enough to learn to spell"
        pieces, total = {"kind": Choice("characters", why)}, float(characters)
    else:
        why = f"{short(characters)} characters; every line end, space and character is kept"
        pieces, total = {"kind": Choice("byte-bpe", why), "vocab_size": Choice(16_000)}, characters / 4
    layers, width, dropout, rate = next(size for most, size in SIZES if total <= most)
    context = 256
    data = {}
    if train.report.num_bad:
        place, reason = train.report.bad[0]
        data["on_bad_line"] = Choice("skip", f"{train.report.num_bad:,} bad lines, the first: {place}: {reason}")
    return {
        "task": {"context": Choice(context, "tokens that are read at a time")},
        "data": data,
        "tokenizer": pieces,
        "model": {
            "family": Choice("gpt", "`regard models` lists others that go on with a text: transformer_xl, recurrent"),
            "preset": Choice("nano"),
            "layers": Choice(layers, f"about {short(total)} tokens an epoch"),
            "model_dim": Choice(width),
            "num_heads": Choice(max(4, width // 64)),
            "ffn_dim": Choice(4 * width),
            "max_length": Choice(context, "task.context"),
            "dropout": Choice(dropout, "the less data, the more dropout"),
        },
        "train": {**train_choices(total), "learning_rate": Choice(rate, "what suits this width")},
        "decode": {"method": Choice("sample", "the likeliest text is a dull one"), "temperature": Choice(0.8)},
    }
