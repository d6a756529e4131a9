"""The faithfulness card: does an explanation name the tokens that the answer rests on?

An attribution gives each source token a number. The check deletes tokens and asks the model again:

- comprehensiveness: score(all) - score(all but the top k), large where the top tokens were needed, and
- sufficiency: score(all) - score(only the top k), small where they are enough (DeYoung et al. 2020);
- deletion and insertion: the score while more and more top tokens are taken away, or put in (Petsiuk et al. 2018).

The first two are means over the top 1, 5, 10, 20 and 50 %, at least one token each. Every method stands beside two
orders that know nothing of the model: random (several seeds) and recency (the last token first). Every number and every
point of a curve is [mean, low, high]: intervals are 95 % bootstrap percentiles over texts, and over seeds for the
random order. A method that gives all tokens of a text the same number has no order, and scores there as a random one
does on average. One method beats another where their intervals lie apart, which asks for more than a test of the paired
difference would. Fewer than five texts have no such interval that could be trusted: there nobody beats anybody. On one
text a method scores better or worse; of two to four the card says that they are too few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import RegardError, require

FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
CURVE = tuple(i / 10 for i in range(11))
LEAST_TEXTS = 5  # for a verdict: the percentiles of three texts drawn anew are little more than the least and the most
REFERENCES = ("random", "recency", "gradient")  # what explanations are compared with; the verdict is about the others
CHECKS = ("comprehensiveness", "sufficiency")
ENGLISH = {"gradient": "gradient times input"}
CHINESE = {
    "relevance": "相关性",
    "rollout": "注意力展开",
    "attention": "注意力",
    "random": "随机顺序",
    "recency": "就近顺序",
    "gradient": "梯度乘输入",
    "comprehensiveness": "完备性",
    "sufficiency": "充分性",
}
Words = Mapping[str, tuple[str, str]]  # English and Chinese
MANY_TEXTS: Words = {
    "better": ("beats", "优于"),
    "equal": ("does not beat", "并不优于"),
    "worse": ("is worse than", "不如"),
}
ONE_TEXT: Words = {
    "better": ("scores better than", "得分好于"),
    "equal": ("does not score better than", "得分并不好于"),
    "worse": ("scores worse than", "得分差于"),
}

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class Case:
    """One text: what its answer scores when tokens are deleted, and what each method says of its tokens.

    `score` is given masks (any number x tokens, true = the token is kept) and gives the answer's score under each.
    """

    score: Callable[[Tensor], Tensor]
    attributions: Mapping[str, Tensor]  # by method name, one number a token


def card(cases: Sequence[Case], *, seeds: int = 5, resamples: int = 2000) -> dict[str, Any]:
    """The card of these texts, in plain values; equal inputs give equal cards.

    >>> weight = torch.tensor([0.0, 0.0, 3.0, 1.0, 0.0, 0.0])
    >>> case = Case(lambda kept: kept.float() @ weight, {"relevance": weight})
    >>> card([case])["verdict"]["en"]
    'On this one text, relevance scores better than random and recency. One text says nothing about others.'
    """
    require(seeds >= 1, "seeds is too small", got=seeds, wanted="1 or more")
    names = _method_names(cases)
    samples = [_measure(case, names, seeds, index) for index, case in enumerate(cases)]
    methods = [_summary(name, np.stack([sample[name] for sample in samples]), resamples) for name in names]
    for method in methods:
        method["beats"] = _beaten(method, methods if len(cases) >= LEAST_TEXTS else [])
    return {
        "methods": methods,
        "fractions": list(FRACTIONS),
        "curve": list(CURVE),
        "seeds": seeds,
        "examples": len(cases),
        "verdict": verdict(methods, len(cases)),
    }


def verdict(methods: Sequence[Mapping[str, Any]], examples: int) -> dict[str, str]:
    """What the numbers say of every explanation, in one plain sentence: English and Chinese."""
    by_name = {method["name"]: method for method in methods}
    words = ONE_TEXT if examples == 1 else MANY_TEXTS
    findings = [_finding(name, by_name, words) for name in by_name if name not in REFERENCES]
    if not findings:
        return {"en": "No explanation was checked.", "zh": "没有检验任何解释方法。"}
    english, chinese = ("; ".join(en for en, _ in findings), "；".join(zh for _, zh in findings))
    if examples == 1:
        return {
            "en": f"On this one text, {english}. One text says nothing about others.",
            "zh": f"在这一段文本上，{chinese}。一段文本不能说明其他文本。",
        }
    if examples < LEAST_TEXTS:
        return {
            "en": f"{examples} texts are too few to say if an explanation holds: that takes {LEAST_TEXTS} or more.",
            "zh": f"{examples} 段文本太少，不足以判断解释是否站得住：至少需要 {LEAST_TEXTS} 段。",
        }
    return {"en": f"Over {examples} texts, {english}.", "zh": f"在 {examples} 段文本上，{chinese}。"}


def beats(method: Mapping[str, Any], other: Mapping[str, Any], check: str) -> bool:
    """Whether the intervals of the two lie apart, the method's on the better side."""
    (_, low, high), (_, other_low, other_high) = method[check], other[check]
    return bool(low > other_high if check == "comprehensiveness" else high < other_low)


def _beaten(method: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    return {check: [other["name"] for other in others if beats(method, other, check)] for check in CHECKS}


def _finding(name: str, methods: Mapping[str, Mapping[str, Any]], words: Words) -> tuple[str, str]:
    """A clause on one method: whom it beats on both checks, on one of them, not at all, and who beats it."""
    method, others = methods[name], [other for other in REFERENCES if other in methods]
    won = {other: [check for check in CHECKS if beats(method, methods[other], check)] for other in others}
    full = [other for other in others if len(won[other]) == len(CHECKS)]
    worse = [other for other in others if all(beats(methods[other], method, check) for check in CHECKS)]
    equal = [other for other in others if not won[other] and other not in worse]
    clauses = [(words["better"], full, " and ", "")]
    for check in CHECKS:
        clauses.append((words["better"], [other for other in others if won[other] == [check]], " and ", check))
    clauses += [(words["equal"], equal, " or ", ""), (words["worse"], worse, " and ", "")]
    english, chinese = [], []
    for (verb, zh), named, last, check in clauses:
        if named:
            english.append(f"{verb} {_listed(named, ENGLISH, last)}" + (f" on {check} only" if check else ""))
            chinese.append((f"仅在{CHINESE[check]}上" if check else "") + f"{zh}{_listed(named, CHINESE, '、')}")
    return f"{ENGLISH.get(name, name)} {', '.join(english)}", f"{CHINESE.get(name, name)}{'，'.join(chinese)}"


def _listed(names: Sequence[str], words: Mapping[str, str], last: str) -> str:
    """Names as a sentence lists them.

    >>> _listed(["random", "recency", "gradient"], {}, " and ")
    'random, recency and gradient'
    """
    *front, end = (words.get(name, name) for name in names)
    between = ", " if last.startswith(" ") else last
    return f"{between.join(front)}{last}{end}" if front else end


def _method_names(cases: Sequence[Case]) -> list[str]:
    """The methods that every case knows, and the two orders that need no model."""
    if not cases:
        raise RegardError("a faithfulness card needs texts", got=0, wanted="1 or more")
    names = list(cases[0].attributions)
    for index, case in enumerate(cases):
        lengths = {name: len(attribution) for name, attribution in case.attributions.items()}
        if set(lengths) != set(names) or len(set(lengths.values())) != 1 or 0 in lengths.values():
            wanted = f"{', '.join(names)}, each with one number a token"
            raise RegardError("the attributions do not fit", got=lengths, wanted=wanted, where=f"text {index}")
    return [*names, *(name for name in ("random", "recency") if name not in names)]


def _measure(case: Case, names: Sequence[str], seeds: int, index: int) -> dict[str, Values]:
    """For each method: orders (seeds of the random one) x comprehensiveness, sufficiency, deletion, insertion."""
    length = len(next(iter(case.attributions.values())))
    orders = {name: _orders(case, name, length, seeds, index) for name in names}
    masks = {name: np.stack([_masks(order) for order in orders[name]]) for name in names}  # orders x masks x tokens
    scores = _ask(case, np.concatenate([masks[name].reshape(-1, length) for name in names]), index)
    ends = np.cumsum([masks[name].shape[0] * masks[name].shape[1] for name in names])[:-1]
    found = {
        name: _numbers(part.reshape(masks[name].shape[:2]))
        for name, part in zip(names, np.split(scores, ends), strict=True)
    }
    # a method that says the same of every token names none: reading order would be an answer that it did not give
    blank = [name for name, values in case.attributions.items() if length > 1 and bool((values == values[0]).all())]
    return found | {name: found["random"].mean(0, keepdims=True) for name in blank}


def _orders(case: Case, name: str, length: int, seeds: int, index: int) -> list[NDArray[np.int64]]:
    """The tokens from the most to the least important; equal numbers stay in reading order."""
    if name in case.attributions:
        values = case.attributions[name].detach().double().cpu().numpy()
        return [np.argsort(-values, kind="stable")]
    if name == "recency":
        return [np.arange(length)[::-1]]
    return [np.random.default_rng([seed, index]).permutation(length) for seed in range(seeds)]


def _masks(order: NDArray[np.int64]) -> Flags:
    """What is kept: without the top k, only the top k, then the deletion and the insertion curve."""
    length = len(order)
    rank = np.empty(length, dtype=np.int64)
    rank[order] = np.arange(length)
    top = np.array([max(1, round(fraction * length)) for fraction in FRACTIONS])[:, None]
    path = np.array([round(fraction * length) for fraction in CURVE])[:, None]
    return np.concatenate([rank >= top, rank < top, rank >= path, rank < path])


def _ask(case: Case, masks: Flags, index: int) -> Values:
    """The scores of all masks, each different one asked once."""
    different, place = np.unique(masks, axis=0, return_inverse=True)
    scores = case.score(torch.from_numpy(different)).detach().double().cpu().numpy()
    if scores.shape != (len(different),) or not np.isfinite(scores).all():
        got = f"shape {scores.shape}, {np.count_nonzero(~np.isfinite(scores))} not finite"
        wanted = f"{len(different)} finite scores, one a mask"
        raise RegardError("a case's score does not answer as it should", got=got, wanted=wanted, where=f"text {index}")
    return np.asarray(scores[place.reshape(-1)])


def _numbers(scores: Values) -> Values:
    """The scores of `_masks` as comprehensiveness, sufficiency and the two curves."""
    without, only, deletion, insertion = np.split(scores, np.cumsum([len(FRACTIONS)] * 2 + [len(CURVE)]), axis=1)
    whole = deletion[:, :1]
    drops = [(whole - part).mean(1, keepdims=True) for part in (without, only)]
    return np.concatenate([*drops, deletion, insertion], axis=1)


def _summary(name: str, samples: Values, resamples: int) -> dict[str, Any]:
    """Mean, low and high of each number, from texts x orders x numbers."""
    means, (low, high) = samples.mean((0, 1)), _interval(samples, resamples)
    numbers = np.stack([means, low, high], axis=1).tolist()
    checks = dict(zip(CHECKS, numbers, strict=False))
    deletion, insertion = numbers[len(CHECKS) :][: len(CURVE)], numbers[-len(CURVE) :]
    return {"name": name, **checks, "deletion": deletion, "insertion": insertion}


def _interval(samples: Values, resamples: int) -> tuple[Values, Values]:
    """95 % of the means of texts drawn anew and, within each, orders drawn anew."""
    texts, orders, _ = samples.shape
    rng = np.random.default_rng(0)
    means = np.empty((resamples, samples.shape[2]))
    for i in range(resamples):
        drawn = rng.integers(texts, size=(texts, 1))
        means[i] = samples[drawn, rng.integers(orders, size=(texts, orders))].mean((0, 1))
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return low, high
