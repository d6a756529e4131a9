import functools
import random
import subprocess
import sys
import warnings

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from regard.data.schemes import is_legal, tag_names, to_spans
from regard.errors import ConfigError, DataError
from regard.tasks.metrics import (
    METRICS,
    MetricOptions,
    count_words,
    distinct,
    find_metric,
    higher_is_better,
    phoneme_error,
    rouge,
    span_scores,
    words_of,
)

ANSWERS = ["The cat sat on a mat .", "A dog runs quickly over the green field ."]
REFERENCES = [("the cat sat on the mat .",), ("a dog runs fast over the field .",)]
SECOND = ["a cat was sitting on the mat .", "the dog is running over a green field ."]
CHINESE = (["他在学校里学习汉语。"], [("他在学校学习汉语。",)])


def measure(name, *arguments):
    return METRICS[name].measure(*arguments)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("bleu", functools.partial(sacrebleu.BLEU, force=True)),
        ("chrf", sacrebleu.CHRF),
        ("ter", functools.partial(sacrebleu.TER, case_sensitive=True)),
    ],
)
def test_figures_and_signatures_are_those_of_sacrebleu(name, metric):
    oracle = metric()
    streams = [[line[0] for line in REFERENCES]]
    score = measure(name, ANSWERS, REFERENCES, MetricOptions())
    assert score.value == oracle.corpus_score(ANSWERS, streams).score
    assert score.signature == oracle.get_signature().format()
    assert f"version:{sacrebleu.__version__}" in score.signature
    two = [(*line, second) for line, second in zip(REFERENCES, SECOND, strict=True)]
    assert measure(name, ANSWERS, two, MetricOptions()).value == oracle.corpus_score(ANSWERS, [*streams, SECOND]).score


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_lines_may_differ_in_their_number_of_references(name):
    ragged = [(*REFERENCES[0], SECOND[0]), REFERENCES[1]]
    filled = [(*REFERENCES[0], SECOND[0]), REFERENCES[1] * 2]
    score = measure(name, ANSWERS, ragged, MetricOptions())
    assert score.value == measure(name, ANSWERS, filled, MetricOptions()).value
    assert "nrefs:var" in score.signature


def test_tokenised_bleu_counts_what_stands_between_spaces():
    options = MetricOptions(tokenize="none", lowercase=True)
    score = measure("bleu", ["a b-c d e f"], [("a b-c d e g",)], options)
    # precisions 4/5, 3/4, 2/3, 1/2; equal lengths
    assert score.value == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert "tok:none" in score.signature
    assert "case:lc" in score.signature


def test_tokenised_text_is_measured_without_a_warning(caplog):
    lines = ["this is tokenised text ."] * 120
    measure("bleu", lines, [(line,) for line in lines], MetricOptions(tokenize="none"))
    assert not caplog.records
    measure("bleu", lines, [(line,) for line in lines], MetricOptions())
    assert "forgot to detokenize" in caplog.text


def test_chinese_is_measured_by_character():
    oracle = sacrebleu.BLEU(tokenize="zh").corpus_score(CHINESE[0], [[CHINESE[1][0][0]]])
    assert measure("bleu", *CHINESE, MetricOptions(tokenize="zh")).value == oracle.score > 0
    assert measure("ter", *CHINESE, MetricOptions(tokenize="zh")).value == pytest.approx(100 / 9)
    assert measure("ter", *CHINESE, MetricOptions()).value == 100


@pytest.mark.parametrize("name", [name for name in METRICS if not name.startswith(("rouge", "distinct"))])
def test_lower_case_makes_case_equal(name):
    answers, references = ["THE CAT SAT ON THE MAT"], [("the cat sat on the mat",)]
    perfect = 100.0 if METRICS[name].higher_is_better else 0.0
    assert measure(name, answers, references, MetricOptions(lowercase=True)).value == pytest.approx(perfect)
    assert measure(name, answers, references, MetricOptions()).value != pytest.approx(perfect)


def test_a_tokeniser_that_is_not_installed_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(ConfigError) as error:
        measure("bleu", ANSWERS, REFERENCES, MetricOptions(tokenize="ja-mecab"))
    assert 'got:    tokenize = "ja-mecab"' in str(error.value)
    assert "sacrebleu[ja]" in str(error.value)


def distance(left, right):
    """Edit distance by its recurrence."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        last, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


words = st.lists(st.sampled_from(["AA", "B", "CH", "D"]), max_size=6)


@given(st.lists(st.tuples(words, st.lists(words.filter(bool), min_size=1, max_size=3)), min_size=1, max_size=5))
def test_phoneme_error_is_edits_to_the_nearest_variant_over_its_length(lines):
    errors = units = 0
    for answer, variants in lines:
        best = min(variants, key=lambda variant: (distance(answer, variant), -len(variant)))
        errors, units = errors + distance(answer, best), units + len(best)
    answers = [" ".join(answer) for answer, _ in lines]
    references = [tuple(" ".join(variant) for variant in variants) for _, variants in lines]
    assert measure("phoneme_error", answers, references, MetricOptions()).value == pytest.approx(100 * errors / units)
    right = sum(answer in variants for answer, variants in lines)
    assert measure("exact_match", answers, references, MetricOptions()).value == pytest.approx(100 * right / len(lines))
    assert measure("word_error", answers, references, MetricOptions()).value == pytest.approx(
        100 - 100 * right / len(lines)
    )


def test_of_equally_near_variants_the_longest_counts():
    score = phoneme_error(["A B C"], [("A B", "A B C D")])
    assert score.value == 25.0
    assert score.signature == "nrefs:2|case:mixed|units:spaces|variant:nearest"


def test_an_empty_answer_costs_the_whole_word():
    assert phoneme_error([""], [("A B",)]).value == 100.0
    assert phoneme_error(["A B C D"], [("E",)]).value == 400.0


def test_higher_is_better_for_some():
    assert [name for name, metric in METRICS.items() if metric.higher_is_better] == [
        *("bleu", "chrf", "exact_match", "rouge1", "rouge2", "rougeL", "distinct1", "distinct2")
    ]


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    ("answers", "references", "message"),
    [
        ([], [], "there is nothing to measure\n  got:    no lines"),
        (["a"], [], "answers and references differ in number\n  got:    1 answers, 0 lines of references"),
        (["a", "b"], [("a",), ()], "a line has no reference\n  wanted: at least one right answer\n  where:  line 2"),
    ],
)
def test_what_cannot_be_measured_is_an_error(name, answers, references, message):
    with pytest.raises(DataError) as error:
        measure(name, answers, references, MetricOptions())
    assert message in str(error.value)


def test_references_without_units_are_an_error():
    with pytest.raises(DataError, match="the references hold no units"):
        phoneme_error(["a"], [(" ",)])


def test_an_unknown_metric_names_the_nearest():
    with pytest.raises(ConfigError) as error:
        find_metric("blue")
    assert str(error.value) == (
        "unknown metric\n"
        "  got:    blue\n"
        "  wanted: bleu, chrf, ter, phoneme_error, word_error, exact_match, rouge1, rouge2, rougeL, "
        "distinct1, distinct2\n"
        '  try:    did you mean "bleu"?'
    )


def test_an_unknown_tokeniser_names_the_nearest():
    with pytest.raises(ConfigError) as error:
        MetricOptions(tokenize="13")
    assert "sacreBLEU has no such tokeniser\n  got:    13\n" in str(error.value)
    assert 'try:    did you mean "13a"?' in str(error.value)


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = "import sys, regard.tasks.metrics; print(sorted({'sacrebleu', 'rapidfuzz'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_rouge_is_the_mean_over_references_of_the_library():
    from rouge_score.rouge_scorer import RougeScorer

    answers = ["the cats sat on a mat", "nothing in common"]
    references = [("the cat sat on the mat", "a cat is sitting there"), ("something else",)]
    for kind in ("rouge1", "rouge2", "rougeL"):
        scorer = RougeScorer([kind], use_stemmer=True)
        by_line = [
            sum(scorer.score(right, text)[kind].fmeasure for right in rights) / len(rights)
            for text, rights in zip(answers, references, strict=True)
        ]
        score = measure(kind, answers, references)
        assert score.value == pytest.approx(100 * sum(by_line) / 2)
        assert score.signature == "nrefs:1-2|mean over references|stemmer:yes|rouge-score"


# --- spans: seqeval is the oracle


def spans_of(rows):
    return [set(to_spans(tags)) for tags in rows]


def drawn(names, seed, is_fine=lambda before, tag: True):
    """Rows of tags, each of which may follow the one before it."""
    chooser = random.Random(seed)
    rows = []
    for _ in range(30):
        tags = []
        for _ in range(chooser.randint(1, 9)):
            tags.append(chooser.choice([n for n in names if is_fine(tags[-1] if tags else "O", n)]))
        while tags and not is_fine(tags[-1], "O"):
            tags.pop()
        rows.append(tags or ["O"])
    return rows


def both(names, seed, is_fine=lambda before, tag: True):
    """What is right, and an answer of the same lengths that has some of it."""
    right, other = drawn(names, seed, is_fine), drawn(names, seed + 1000, is_fine)
    said = [a if i % 3 else (b * len(a))[: len(a)] for i, (a, b) in enumerate(zip(right, other, strict=True))]
    return right, [a if all(map(is_fine, ["O", *a], [*a, "O"])) else ["O"] * len(a) for a in said]


def agree(right, said, **words):
    from seqeval.metrics import classification_report

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = classification_report(right, said, output_dict=True, **words)
    found = span_scores(spans_of(said), spans_of(right))
    for label, (precision, recall, f1) in found.items():
        theirs = report[label or "micro avg"]
        wanted = (theirs["precision"], theirs["recall"], theirs["f1-score"])
        assert (precision / 100, recall / 100, f1 / 100) == pytest.approx(wanted), label
    assert set(found) - {""} == set(report) - {"micro avg", "macro avg", "weighted avg"}
    assert 0 < found[""][2] < 100


@pytest.mark.parametrize("names", [["O", "B-x", "I-x", "B-y", "I-y"], ["O", *tag_names(["x", "y"], "bioes")[1:]]])
@pytest.mark.parametrize("seed", range(5))
def test_spans_of_any_tags_count_as_seqeval_counts_them(names, seed):
    agree(*both(names, seed))


@pytest.mark.parametrize(("scheme", "theirs"), [("bio", "IOB2"), ("bioes", "IOBES"), ("iob1", "IOB1")])
@pytest.mark.parametrize("seed", range(5))
def test_spans_of_legal_tags_count_as_in_its_strict_mode(scheme, theirs, seed):
    import seqeval.scheme

    names = tag_names(["x", "y"], "bioes" if scheme == "bioes" else "bio")
    right, said = both(names, seed, functools.partial(is_legal, scheme))
    agree(right, said, mode="strict", scheme=getattr(seqeval.scheme, theirs))


def test_spans_by_hand():
    right = [{(0, 1, "x"), (2, 4, "y")}, {(0, 2, "x")}]
    said = [{(0, 1, "x"), (2, 4, "x")}, {(0, 2, "x"), (3, 4, "x")}]
    found = span_scores(said, right)
    assert found[""] == pytest.approx((50.0, 100 * 2 / 3, 100 * 4 / 7))
    assert found["x"] == pytest.approx((50.0, 100.0, 100 * 2 / 3))
    assert found["y"] == (0.0, 0.0, 0.0)
    assert span_scores([set()], [set()]) == {"": (0.0, 0.0, 0.0)}


def test_rouge_counts_the_characters_of_chinese_and_japanese():
    for right, said in (
        ("\u4eca\u5929\u5929\u6c14\u597d", "\u4eca\u5929\u4e0b\u96e8"),
        ("\u3042\u3044\u3046\u3048\u304a", "\u3042\u3044\u304b\u304d"),
    ):
        score = rouge("rouge1")([said], [(right,)])
        assert score.value == pytest.approx(100 * 2 * 2 / (5 + 4))
        assert score.signature == "nrefs:1|mean over references|tokens:characters|rouge-score"
        assert rouge("rouge2")([said], [(right,)]).value == pytest.approx(100 * 2 * 1 / (4 + 3))
    assert rouge("rougeL")(["GPT \u5f88\u597d\uff01"], [("gpt\u5f88\u597d",)]).value == 100
    assert words_of("caf\u00e9 d'or \u6771\u4eac3") == ["caf\u00e9", "d", "or", "\u6771", "\u4eac", "3"]
    assert count_words("It's 3 p.m. \u2014 \u6771\u4eac\u3002") == 5


def test_rouge_sees_other_alphabets_and_one_foreign_sign_changes_nothing():
    score = rouge("rouge1")(
        ["\u043a\u043e\u0442 \u0441\u043f\u0438\u0442"], [("\u043a\u043e\u0442 \u0435\u0441\u0442",)]
    )
    assert score.value == pytest.approx(50)
    assert score.signature == "nrefs:1|mean over references|tokens:words|rouge-score"
    said, right = ["the cats slept", "a dog"], [("a cat sleeps",), ("the dog \u72ac",)]
    mixed, plain = (rouge("rouge1")(said, each) for each in (right, [right[0], ("the dog",)]))
    assert mixed == plain  # stemmed, as rouge-score does
    assert plain.signature.endswith("|stemmer:yes|rouge-score")


def test_distinct_runs_of_units_over_all_answers() -> None:
    answers = ["I do not know .", "I do not .", "", "\u4f60\u4f60"]
    right = [("x",)] * 4
    # I do not know . and one character: 6 of 5 + 4 + 0 + 2
    one = distinct(1)(answers, right, MetricOptions())
    assert (one.name, one.value) == ("distinct1", 100 * 6 / 11)
    assert one.signature == "case:mixed|units:spaces|distinct:6|all:11"
    # I do, do not, not know, know ., not ., and the two characters: 6 of 4 + 3 + 0 + 1; none reaches over an end
    assert distinct(2)(answers, right, MetricOptions()).value == 100 * 6 / 8
    assert distinct(1)(["a A"], [("x",)], MetricOptions()).value == 100.0
    assert distinct(1)(["a A"], [("x",)], MetricOptions(lowercase=True)).value == 50.0
    assert distinct(2)(["a"], [("x",)], MetricOptions()).value == 0.0  # none at all
    assert find_metric("distinct2").measure(answers, right, MetricOptions()).name == "distinct2"


def test_perplexities_are_better_where_they_are_lower() -> None:
    assert not any(map(higher_is_better, ("perplexity", "unseen.perplexity", "word_perplexity")))
    assert higher_is_better("unseen.bleu")
