"""From what texts look like to the keys of a recipe whose model reads them: for labels, names, answers, facts."""

from __future__ import annotations

import math

from regard.fitting.choices import Choice, Choices, short
from regard.fitting.pairs import data_choices, kind, tokens, train_choices, vocabulary
from regard.fitting.profile import Profile

# up to so many tokens an epoch: layers, width, dropout, learning rate
SIZES = ((2e6, (2, 128, 0.3, 1e-3)), (20e6, (4, 256, 0.2, 5e-4)), (math.inf, (6, 512, 0.1, 3e-4)))
WINDOW = 384  # tokens of a question and of the part of its text that are read together


def fit_labels(train: Profile) -> Choices:
    """A label for each text, or several."""
    several = train.num_variants > 0
    choices = _reader(train, "micro_f1" if several else "accuracy")
    if several:
        choices["task"]["multi_label"] = Choice(True, f"{train.num_variants:,} texts have several labels")
    return choices


def fit_relations(train: Profile) -> Choices:
    """How two marked parts of a text relate."""
    return _reader(train, "macro_f1")


def fit_tags(train: Profile) -> Choices:
    """Spans of each text, with labels."""
    choices = _reader(train, "f1")
    pieces = choices["tokenizer"]
    if not train.source.is_spaced:
        why = "words have no spaces between them: every character has a tag"
        size, room = vocabulary(train, train.source, "characters", share=1.0)
        pieces |= {"kind": Choice("characters", why), "vocab_size": Choice(size, room)}
    else:
        choices["task"]["case"] = Choice(True, "names are often written in their own way, which lower case hides")
    layers, width, dropout, _ = _size(_total(train))
    choices["model"] = {
        "family": Choice("bert", "an encoder, which begins from scratch; finetune.base names one that was trained"),
        "preset": Choice("tener", "an attention that knows how far and to which side, made for names"),
        "layers": Choice(layers, f"{train.num_examples:,} texts"),
        "model_dim": Choice(width),
        "num_heads": Choice(width // 32),
        "ffn_dim": Choice(2 * width),
        "dropout": Choice(dropout, "the less data, the more dropout"),
    }
    del choices["data"]["too_long"]
    return choices


def fit_answers(train: Profile) -> Choices:
    """Where a text answers a question: long texts are read in windows."""
    choices = _reader(train, "f1", longest=WINDOW)
    spaced = train.source.is_spaced
    if not spaced:
        size, why = vocabulary(train, train.source, "characters", share=1.0)
        reason = "answers end between any two characters"
        choices["tokenizer"] |= {"kind": Choice("characters", reason), "vocab_size": Choice(size, why)}
    choices["data"] |= {
        "max_length": Choice(WINDOW, "what is read at a time; a longer text is read in windows that overlap"),
        "too_long": Choice("truncate", "of a question that is longer than task.question_length"),
    }
    choices["model"]["max_length"] = Choice(WINDOW + 3, "data.max_length, and what stands around both texts")
    return choices


def fit_sentences(train: Profile) -> Choices:
    """Which sentences of a document matter."""
    return _reader(train, "rougeL", beyond=512)


def fit_facts(train: Profile) -> Choices:
    """Facts of a head, a relation and a tail, every name of which is one token."""
    total = 2 * 3 * train.num_examples  # both ways
    choices = _reader(train, "mrr")
    width = next(width for most, width in ((5_000, 64), (50_000, 128), (math.inf, 256)) if train.num_examples <= most)
    choices["task"]["dropout"] = Choice(0.3, "of the names' vectors, most of which are seen in a few facts alone")
    choices["model"] |= {
        "layers": Choice(2, "a row is three tokens; what there is to know is in the names' vectors"),
        "model_dim": Choice(width, f"{train.num_examples:,} facts, asked both ways"),
        "num_heads": Choice(width // 32),
        "ffn_dim": Choice(2 * width),
        "max_length": Choice(3, "a name, a relation, and what stands for the name that is asked for"),
        "dropout": Choice(0.1),
        "masked_head": Choice(False, "the names' own vectors say which is asked for"),
    }
    choices["train"] |= train_choices(total) | {"learning_rate": Choice(1e-3, "what suits this width")}
    on_bad_line = {name: choice for name, choice in choices["data"].items() if name == "on_bad_line"}
    return {**choices, "data": on_bad_line, "tokenizer": {}}


def fit_stories(train: Profile) -> Choices:
    """What answers a question about a story: a memory network, of which no more is asked than a label."""
    choices = _reader(train, "accuracy")
    if choices["tokenizer"]["kind"].value != "unigram":
        size, why = vocabulary(train, train.source, "bpe", share=1.0)
        reason = "words, without the full stop that stands at them"
        choices["tokenizer"] |= {"kind": Choice("bpe", reason), "vocab_size": Choice(size, why)}
    choices["data"]["too_long"] = Choice("truncate", "the oldest sentences are left out")
    choices["model"] = {
        "family": Choice("memory", "reads sentence by sentence, in hops that can be looked at"),
        "preset": Choice("base"),
        "hops": Choice(6, "how often the question reads the story: at least as often as facts have to be joined"),
        "model_dim": Choice(48 if train.num_examples > 5_000 else 32, f"{train.num_examples:,} questions"),
    }
    choices["train"] |= {
        "bucket": Choice(16, "few shapes of batches: stories have many lengths"),
        "learning_rate": Choice(7e-3, "what suits a model of this kind"),
        "weight_decay": Choice(0.0),
        "clip": Choice(5.0),
    }
    return choices


def _reader(train: Profile, best: str, *, longest: int = 0, beyond: int = 0) -> Choices:
    """What all have in common; texts are read in windows of `longest` tokens, or cut at `beyond`."""
    pieces, total = kind(train.source), _total(train)
    length = tokens(train.source, pieces.value)
    size, why = vocabulary(train, train.source, pieces.value, share=1.0)
    data = data_choices(train, length)
    data["too_long"] = Choice("truncate", "what a long text is about, its beginning mostly says")
    if beyond and data["max_length"].value > beyond:
        data["max_length"] = Choice(beyond, f"longer texts are cut; {data['max_length'].why}")
    lowercase = Choice(True, "case says little here, and few examples are seen of each word")
    return {
        "task": {},
        "data": data,
        "tokenizer": {"kind": pieces, "vocab_size": Choice(size, why), "lowercase": lowercase},
        "model": _model(train, total, longest or data["max_length"].value),
        "train": {
            **train_choices(total),
            "learning_rate": Choice(_size(total)[3], "what suits this width"),
            "best": Choice(best, "what is reported"),
        },
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


def _total(train: Profile) -> float:
    """About how many tokens an epoch has."""
    return train.num_examples * (tokens(train.source, kind(train.source).value).mean + 2)


def _size(total: float) -> tuple[int, int, float, float]:
    return next(size for most, size in SIZES if total <= most)
