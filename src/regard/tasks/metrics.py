"""How good texts are, in percent: BLEU, chrF, TER by sacreBLEU; ROUGE; phoneme and word error; exact match; distinct-n.

Every metric takes one text and all right answers (variants) a line. Heavy imports are made where they are used.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.config import nearest
from regard.data.noise import IDEOGRAPH
from regard.errors import ConfigError, DataError, require

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric


@dataclass(frozen=True, slots=True)
class Score:
    """What a metric found, and the signature that says how: figures compare only under the same one."""

    name: str
    value: float  # in percent, unless the name says another thing
    signature: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a model came to on a split."""

    scores: list[Score]
    examples: int
    cut: int = 0  # sources that were longer than the model reads


# sacreBLEU's own that need no download.
TOKENIZERS = ("13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab")


@dataclass(frozen=True, slots=True)
class MetricOptions:
    """How texts are compared; `tokenize` is for BLEU: "none" for text that is tokenised already, "zh" for Chinese."""

    tokenize: str = "13a"
    lowercase: bool = False

    def __post_init__(self) -> None:
        near = nearest(self.tokenize, TOKENIZERS)
        require(
            self.tokenize in TOKENIZERS,
            "sacreBLEU has no such tokeniser",
            got=self.tokenize,
            wanted=", ".join(TOKENIZERS),
            remedy=f'did you mean "{near}"?' if near else None,
        )


Mark = tuple[int, int, str]  # a span of a text: where it begins and ends, its label
Texts = Sequence[str]
Variants = Sequence[tuple[str, ...]]  # the right answers of each line
DEFAULT = MetricOptions()


def bleu(hypotheses: Texts, references: Variants, options: MetricOptions = DEFAULT) -> Score:
    """Corpus BLEU by sacreBLEU.

    >>> round(bleu(["the cat sat on the mat ."], [("the cat sat on the mat .",)], MetricOptions("none")).value, 2)
    100.0
    """
    from sacrebleu.metrics.bleu import BLEU

    _check(hypotheses, references)
    try:
        # `force` silences a warning about text that looks tokenised: with "none" it is meant to be.
        metric = BLEU(lowercase=options.lowercase, tokenize=options.tokenize, force=options.tokenize == "none")
    except (ImportError, RuntimeError) as error:
        got = f'tokenize = "{options.tokenize}"'
        raise ConfigError("this tokeniser of sacreBLEU needs more packages", got=got, remedy=str(error)) from None
    return _sacre("bleu", metric, hypotheses, references)


def chrf(hypotheses: Texts, references: Variants, options: MetricOptions = DEFAULT) -> Score:
    """Character n-gram F-score (chrF2) by sacreBLEU."""
    from sacrebleu.metrics.chrf import CHRF

    _check(hypotheses, references)
    return _sacre("chrf", CHRF(lowercase=options.lowercase), hypotheses, references)


def ter(hypotheses: Texts, references: Variants, options: MetricOptions = DEFAULT) -> Score:
    """Translation edit rate by sacreBLEU; Chinese, Japanese and Korean characters count as words."""
    from sacrebleu.metrics.ter import TER

    _check(hypotheses, references)
    by_character = options.tokenize in ("zh", "char", "ja-mecab", "ko-mecab")
    metric = TER(case_sensitive=not options.lowercase, normalized=by_character, asian_support=by_character)
    return _sacre("ter", metric, hypotheses, references)


def phoneme_error(hypotheses: Texts, references: Variants, options: MetricOptions = DEFAULT) -> Score:
    """Edits to the nearest variant over its length, summed over all lines; units stand between spaces.

    Of variants that are equally near, the longest counts.

    >>> phoneme_error(["K AE T", "D"], [("K AE T", "K AA T"), ("D UW",)]).value
    20.0
    """
    from rapidfuzz.distance import Levenshtein

    num_errors = num_units = 0
    for answer, variants in _units(hypotheses, references, options):
        errors, length = min((Levenshtein.distance(answer, variant), -len(variant)) for variant in variants)
        num_errors, num_units = num_errors + errors, num_units - length
    if num_units == 0:
        raise DataError("the references hold no units", got="empty lines only", wanted="units between spaces")
    return Score("phoneme_error", 100 * num_errors / num_units, _signature("nearest", references, options))


def word_error(hypotheses: Texts, references: Variants, options: MetricOptions = DEFAULT) -> Score:
    """The share of lines whose answer equals no variant; how much space stands between units does not matter.

    >>> word_error(["K AE T", "D AO"], [("K AE T", "K AA T"), ("D AO G",)]).value
    50.0
    """
    wrong = sum(answer not in variants for answer, variants in _units(hypotheses, references, options))
    return Score("word_error", 100 * wrong / len(hypotheses), _signature("any", references, options))


def exact_match(hypotheses: Texts, references: Variants, options: MetricOptions = DEFAULT) -> Score:
    """The share of lines whose answer equals a variant."""
    score = word_error(hypotheses, references, options)
    return Score("exact_match", 100 - score.value, score.signature)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric and its direction."""

    measure: Callable[[Texts, Variants, MetricOptions], Score]
    higher_is_better: bool


# Chinese and Japanese characters are words; rouge-score itself reads a to z and 0 to 9 alone.
WORD = re.compile(rf"{IDEOGRAPH}|(?:(?!{IDEOGRAPH})\w)+")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; of Chinese and Japanese each character.

    >>> words_of("He said: \u4f60\u597d!")
    ['he', 'said', '\u4f60', '\u597d']
    """
    return WORD.findall(text.lower())


def count_words(text: str) -> int:
    """How many words a text has: what stands between spaces, and of Chinese and Japanese each character.

    >>> count_words("He can't, he said."), count_words("\u4f60\u597d!")
    (4, 2)
    """
    return sum(any(letter.isalnum() for letter in unit) for unit in units_of(text))


def units_of(text: str) -> list[str]:
    """What stands between spaces, and of Chinese and Japanese each character.

    >>> units_of("Fine , thanks \u4f60\u597d")
    ['Fine', ',', 'thanks', '\u4f60', '\u597d']
    """
    return re.sub(IDEOGRAPH, r" \g<0> ", text).split()


class _Words:
    """How ROUGE reads texts: as rouge-score does, and where it would see nothing of them by `words_of`.

    A text is asked for once by each ROUGE and reference; to stem its words is what takes the time.
    """

    def __init__(self, unseen: bool) -> None:
        from rouge_score.tokenizers import DefaultTokenizer  # type: ignore[import-untyped]

        self.tokenize = functools.cache(words_of if unseen else DefaultTokenizer(use_stemmer=True).tokenize)


def rouge(kind: str) -> Callable[[Texts, Variants, MetricOptions], Score]:
    """ROUGE's F-measure by rouge-score, with stemming: the mean over a line's references, then over lines.

    rouge-score reads a to z and 0 to 9 alone. Where it sees nothing of most words of the references (Russian, Arabic),
    these are compared as they are; of Chinese and Japanese each character is a word.
    """

    def measure(hypotheses: Texts, references: Variants, options: MetricOptions = DEFAULT) -> Score:
        try:
            from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]
        except ImportError:
            remedy = 'pip install rouge-score, or pip install "regard[all]"'
            raise ConfigError("ROUGE needs a package that is not here", got="no rouge-score", remedy=remedy) from None
        _check(hypotheses, references)
        words = [word for variants in references for text in variants for word in words_of(text)]
        unseen = sum(not re.search("[a-z0-9]", word) for word in words) > len(words) / 2
        scorer = RougeScorer([kind], tokenizer=_Words(unseen))
        lines = zip(hypotheses, references, strict=True)
        means = [fmean(scorer.score(right, text)[kind].fmeasure for right in variants) for text, variants in lines]
        counts = sorted({len(variants) for variants in references})
        by_character = unseen and any(re.fullmatch(IDEOGRAPH, word) for word in words)
        read = "tokens:characters" if by_character else "tokens:words" if unseen else "stemmer:yes"
        signature = f"nrefs:{'-'.join(map(str, counts))}|mean over references|{read}|rouge-score"
        return Score(kind, 100 * fmean(means), signature)

    return measure


def distinct(size: int) -> Callable[[Texts, Variants, MetricOptions], Score]:
    """Distinct-n (Li et al. 2016): how many different runs of `size` units all answers have, of all runs in them.

    The more of them there are, the fewer are new: compare outputs of the same number and about the same length.
    """

    def measure(hypotheses: Texts, references: Variants, options: MetricOptions = DEFAULT) -> Score:
        _check(hypotheses, references)
        texts = [units_of(text.lower() if options.lowercase else text) for text in hypotheses]
        found = Counter(run for units in texts for run in zip(*(units[i:] for i in range(size)), strict=False))
        case = "lc" if options.lowercase else "mixed"
        signature = f"case:{case}|units:spaces|distinct:{len(found)}|all:{found.total()}"
        return Score(f"distinct{size}", 100 * len(found) / max(1, found.total()), signature)

    return measure


METRICS = {
    "bleu": Metric(bleu, higher_is_better=True),
    "chrf": Metric(chrf, higher_is_better=True),
    "ter": Metric(ter, higher_is_better=False),
    "phoneme_error": Metric(phoneme_error, higher_is_better=False),
    "word_error": Metric(word_error, higher_is_better=False),
    "exact_match": Metric(exact_match, higher_is_better=True),
    "rouge1": Metric(rouge("rouge1"), higher_is_better=True),
    "rouge2": Metric(rouge("rouge2"), higher_is_better=True),
    "rougeL": Metric(rouge("rougeL"), higher_is_better=True),
    "distinct1": Metric(distinct(1), higher_is_better=True),
    "distinct2": Metric(distinct(2), higher_is_better=True),
}


# What tasks measure beside these; of everything else more is better.
LOWER_IS_BETTER = {"loss", "perplexity", "word_perplexity", "ece"}


def higher_is_better(name: str) -> bool:
    """The direction of a metric of any task.

    >>> higher_is_better("accuracy"), higher_is_better("ter")
    (True, False)
    """
    name = name.rpartition(".")[2]  # a part's: german.bleu
    return METRICS[name].higher_is_better if name in METRICS else name not in LOWER_IS_BETTER


def f1_scores(said: Tensor, right: Tensor) -> tuple[float, float]:
    """Micro and macro F1 in percent, of N x C decisions; a class that is neither said nor right does not count.

    >>> import torch
    >>> f1_scores(torch.tensor([[1, 0], [1, 0]]), torch.tensor([[1, 0], [0, 1]]))  # F1 of the classes: 2/3 and 0
    (50.0, 33.333333333333336)
    """
    said, right = said.bool(), right.bool()
    hits, number = (said & right).sum(0).double(), said.sum(0).double() + right.sum(0).double()
    micro = 200 * hits.sum() / number.sum().clamp(min=1)
    return float(micro), float((200 * hits[number > 0] / number[number > 0]).mean()) if number.any() else 0.0


def filtered_ranks(scores: Tensor, right: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The rank of each row's right answer by N x C scores, from 1 on; among equals it is the mean of their ranks.

    `rows` and `columns` are the places of all answers that are known to be right: none but the row's own counts.

    >>> ranks = filtered_ranks(torch.tensor([[3.0, 2.0, 1.0, 1.0]]), torch.tensor([2]), *torch.tensor([[0, 0], [0, 2]]))
    >>> ranks.tolist()  # the first is right too; then comes the second, and the third is as good as the last
    [2.5]
    """
    own = scores.gather(1, right[:, None])
    above, equal = scores > own, scores == own
    for counted in (above, equal):
        counted[rows, columns] = False
    equal.scatter_(1, right[:, None], False)  # also where it is not among the known
    return 1 + above.sum(1).double() + equal.sum(1).double() / 2


def rank_scores(ranks: Tensor) -> dict[str, float]:
    """The mean reciprocal rank and the share of ranks up to 1, 3 and 10, all in percent.

    >>> rank_scores(torch.tensor([1.0, 2.0]))
    {'mrr': 75.0, 'hits1': 50.0, 'hits3': 100.0, 'hits10': 100.0}
    """
    hits = {f"hits{n}": 100 * float((ranks <= n).double().mean()) for n in (1, 3, 10)}
    return {"mrr": 100 * float((1 / ranks.double()).mean()), **hits}


def span_scores(
    said: Sequence[Collection[Mark]], right: Sequence[Collection[Mark]]
) -> dict[str, tuple[float, float, float]]:
    """Precision, recall and F1 in percent of the spans of some texts, "" for all of them and by label.

    A span is right where one of the same text begins and ends with it and has its label. What there is none of is 0.

    >>> span_scores([{(0, 1, "x"), (2, 3, "x")}], [{(0, 1, "x")}])
    {'': (50.0, 100.0, 66.66666666666667), 'x': (50.0, 100.0, 66.66666666666667)}
    """
    answers, gold = ({(i, *span) for i, spans in enumerate(rows) for span in spans} for rows in (said, right))
    found = {}
    for label in ["", *sorted({span[-1] for span in answers | gold})]:
        ours, theirs = ({span for span in spans if not label or span[-1] == label} for spans in (answers, gold))
        precision, recall = (100 * len(ours & theirs) / max(1, number) for number in (len(ours), len(theirs)))
        found[label] = precision, recall, 200 * len(ours & theirs) / max(1, len(ours) + len(theirs))
    return found


def calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """The expected calibration error in percent: how far confidence and accuracy lie apart, over bins of confidence.

    >>> import torch
    >>> round(calibration_error(torch.tensor([0.9, 0.9, 0.6]), torch.tensor([True, False, True])), 2)  # (0.8 + 0.4) / 3
    40.0
    """
    place = (confidence.double() * bins).long().clamp(max=bins - 1)
    apart = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, confidence.double() - right.double())
    return 100 * float(apart.abs().sum()) / len(confidence)


def find_metric(name: str) -> Metric:
    """The metric of this name, or of a part's: "german.bleu". Where it is not known, the nearest one is named."""
    name = name.rpartition(".")[2]
    if name not in METRICS:
        near = nearest(name, METRICS)
        remedy = f'did you mean "{near}"?' if near else None
        raise ConfigError("unknown metric", got=name, wanted=", ".join(METRICS), remedy=remedy)
    return METRICS[name]


def _sacre(name: str, metric: SacreMetric, hypotheses: Texts, references: Variants) -> Score:
    # sacreBLEU wants one stream a reference, None where a line has fewer.
    most = max(len(variants) for variants in references)
    streams = [[variants[i] if i < len(variants) else None for variants in references] for i in range(most)]
    value = metric.corpus_score(hypotheses, streams).score  # type: ignore[arg-type]
    return Score(name, float(value), metric.get_signature().format())


def _units(hypotheses: Texts, references: Variants, options: MetricOptions) -> list[tuple[list[str], list[list[str]]]]:
    _check(hypotheses, references)

    def split(text: str) -> list[str]:
        return (text.lower() if options.lowercase else text).split()

    pairs = zip(hypotheses, references, strict=True)
    return [(split(answer), [split(variant) for variant in variants]) for answer, variants in pairs]


def _signature(variants: str, references: Variants, options: MetricOptions) -> str:
    counts = {len(line) for line in references}
    number = counts.pop() if len(counts) == 1 else "var"
    return f"nrefs:{number}|case:{'lc' if options.lowercase else 'mixed'}|units:spaces|variant:{variants}"


def _check(hypotheses: Texts, references: Variants) -> None:
    if not hypotheses:
        raise DataError("there is nothing to measure", got="no lines", wanted="one answer a line")
    if len(hypotheses) != len(references):
        got = f"{len(hypotheses)} answers, {len(references)} lines of references"
        raise DataError("answers and references differ in number", got=got, wanted="as many of each")
    for number, variants in enumerate(references, start=1):
        if not variants:
            raise DataError("a line has no reference", wanted="at least one right answer", where=f"line {number}")
