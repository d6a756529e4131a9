"""Question answering: a question and a text in, the stretch of the text that answers it out, or that none does.

A row is `<s> question </s> text </s>`; a long text is read in overlapping windows. The model scores each place of the
text as the first and as the last of the answer, and <s> as "no answer here" (Devlin et al. 2019). Windows are put
together by their odds against <s>: if each judges for itself, the answer is in a window with the probability that it
finds it there and the others find nothing, which is the product of all "nothing here", the same for every span, times
the odds exp(start + end - start of <s> - end of <s>) of the span.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from regard.config import key
from regard.data.batching import NONE
from regard.data.cache import cache_folder
from regard.data.config import DataConfig
from regard.data.marked import Units, units_of
from regard.data.noise import Noise
from regard.data.parts import noise_of, part_of
from regard.data.passages import BEGINS, BOTH, ENDS, Reader, Window
from regard.data.readers import ReadReport
from regard.data.rows import Row, Rows, is_held_out, keep_rows
from regard.data.squad import TAB, Question, read_questions
from regard.data.store import Column, Counts
from regard.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from regard.data.unread import policy_of
from regard.decode.config import DecodeConfig
from regard.decode.search import pad_rows
from regard.errors import ConfigError, DataError, RunError, require, require_positive, require_share
from regard.files import put_text
from regard.layers.reader import NEVER, SpanReader
from regard.models import Sizes
from regard.tasks._answers import answer_scores, best_overlap
from regard.tasks._spans import Answers, Found, best_spans, fit_threshold, merged
from regard.tasks.metrics import Evaluation, Score
from regard.tasks.texts import OnBatch, Paths, Stateless, listed, save_tokenizer, split_paths, with_unknown
from regard.types import Axis, Batch, Example, Prediction, Span

SUMMARY = "a question and a text in, the words of the text that answer it out"
KIND = "encoder"
FILES = ("tokenizer.json", "answers.json")
DECODE = ("n_best", "batch_tokens")
TAKES = ("train_share", "noise")
CANDIDATES = 20  # spans of a window that are looked at


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a question answering recipe."""

    stride: int = key(128, "a text that is too long for one row is read in windows that begin so many tokens apart")
    question_length: int = key(64, "tokens that a question may have; data.max_length counts it and its window together")
    max_answer: int = key(30, "tokens that an answer may have", may_change=True)
    dropout: float = key(0.1, "dropout of the states that are scored", may_change=True)
    word_dropout: float = key(
        0.0, "share of the tokens that are unknown to the model in training, others each time", may_change=True
    )
    units: Literal["auto", "words", "characters"] = key(
        "auto", "what F1 compares: words, or characters; auto: as most of the training texts are written"
    )
    folds: int = key(
        0, "deal the articles of data.train into so many parts: one is the test, the next validation; 0: data's files"
    )
    fold: int = key(0, "which of these parts is the test, from 0")

    def __post_init__(self) -> None:
        require_positive(self, "stride", "question_length", "max_answer")
        require_share(self, "dropout", "word_dropout")
        require(self.folds == 0 or self.folds > 2, "folds are too few", got=self.folds, wanted="0 (none), 3 or more")
        inside = 0 <= self.fold < max(1, self.folds)
        require(inside, "there is no such fold", got=self.fold, wanted=f"0 to {max(0, self.folds - 1)}")


@dataclass(frozen=True)
class Known:
    """What was seen of the training questions, and what was learned of when to say nothing."""

    units: Units
    unanswerable: int  # training questions whose text has no answer
    threshold: float = 0.0  # log-odds under which no answer is given, where there were any
    empty: float = 0.0  # share of the training rows whose window had no answer: whether "none here" was learned

    @classmethod
    def load(cls, path: Path) -> Known:
        """Reads what `save` wrote."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            counts = int(found["unanswerable"]), float(found["threshold"]), float(found["empty"])
            return cls(found["units"], *counts)
        except (OSError, ValueError, TypeError, KeyError) as error:
            remedy = "copy the run again, or train it again"
            raise RunError(
                "what is known of answers cannot be read", got=repr(error), where=path, remedy=remedy
            ) from None

    def save(self, path: Path) -> None:
        """Writes it as JSON, whole or not at all."""
        try:
            put_text(path, json.dumps(asdict(self), indent=1) + "\n")
        except OSError as error:
            raise DataError("the file cannot be written", got=error.strerror or error, where=path) from None


class Task(Stateless):
    """Question answering with its tokenizer: what the loop trains on, and what a run answers with."""

    metrics = ("exact_match", "f1")

    def __init__(
        self, config: Config, data: DataConfig, *, paths: Paths, tokenizer: Tokenizer, known: Known, folder: Path
    ) -> None:
        self.config, self.data, self.paths, self.tokenizer, self.folder = config, data, paths, tokenizer, folder
        self.known = known
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True, pieces=tokenizer.spelled())

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: its tokenizer is loaded, or trained on the training split and saved there."""
        tokenizer_file, known_file = (folder / name for name in FILES)
        if data.max_length - config.question_length < 8:
            got = f"data.max_length = {data.max_length}, task.question_length = {config.question_length}"
            raise ConfigError("there is no room for the text beside its question", got=got, wanted="8 tokens or more")
        if not (tokenizer_file.exists() and known_file.exists()):
            questions = list(read_split(config, data, paths, "train", ReadReport()))
            texts = dict.fromkeys(question.context for question in questions)
            units = units_of(texts) if config.units == "auto" else config.units
            Known(units, sum(not question.answers for question in questions)).save(known_file)
            if not tokenizer_file.exists():
                asked = (question.question for question in questions)
                save_tokenizer(train_tokenizer(tokenizer, [*texts, *asked]), tokenizer_file)
        found, known = Tokenizer.load(tokenizer_file), Known.load(known_file)
        return cls(config, data, paths=paths, tokenizer=found, known=known, folder=folder)

    def dress(self, model: Any) -> SpanReader:
        """The encoder with a layer that scores where an answer begins and ends."""
        return SpanReader(model, end=self.tokenizer.specials.end, dropout=self.config.dropout)

    # --- data ---------------------------------------------------------------------------------------------------------

    @cached_property
    def reader(self) -> Reader:
        """Makes rows of questions and texts."""
        return Reader(
            self.tokenizer,
            max_length=self.data.max_length,
            stride=self.config.stride,
            question_length=self.config.question_length,
            too_long=self.data.too_long,
        )

    def read(self, path: Path, report: ReadReport | None = None) -> Iterator[Example]:
        """The questions of a file that is to be answered or looked at, with the answers that it has."""
        questions = read_questions([path], need_answers=False, on_bad_line=policy_of(report), report=report)
        return map(as_example, questions)

    def examples(self, name: str) -> list[Example]:
        """The split as `question<TAB>text`, each with its right answers, "" where there is none."""
        return [as_example(question) for question in self._questions(name)]

    def _questions(self, name: str, report: ReadReport | None = None) -> Iterator[Question]:
        return read_split(self.config, self.data, self.paths, name, report or ReadReport())

    def split(self, name: str, cache: Path) -> Rows:
        """The encoded split; the encoding is kept in the cache folder."""
        config, data = self.config, self.data

        def encode(report: ReadReport, counts: Counts) -> Iterator[Row]:
            for question in self._questions(name, report):
                yield from self.reader.rows(question)

        shape = [data.max_length, config.stride, config.question_length, data.too_long]
        part = {**part_of(data, name), "folds": [name, config.folds, config.fold]}
        return keep_rows(
            _paths(config, data, self.paths, name),
            self.tokenizer,
            encode,
            split=name,
            policy={"questions": 1, "shape": shape, "bad": data.on_bad_line, **part},
            cache_dir=cache,
        )

    # --- training -----------------------------------------------------------------------------------------------------

    def loss(self, model: SpanReader, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum over rows of the mean cross-entropy of where the answer begins and ends, and how many rows there are."""
        assert batch.target is not None
        training = model.training and smoothing is None
        read = with_unknown(batch, self.config.word_dropout, self.tokenizer) if training else batch
        found = self.log_probs(model, read)
        return -found.sum() / 2, begins(batch.target.ids).sum()

    def log_probs(self, model: SpanReader, batch: Batch) -> Tensor:
        """The log-probability of the place where the answer begins, and of that where it ends, 0 elsewhere: B x N."""
        assert batch.target is not None
        first, last = model.scores(batch).log_softmax(-1).unbind(1)
        return first * begins(batch.target.ids) + last * ends(batch.target.ids)

    def finish(self, model: SpanReader, device: torch.device) -> str:
        """Fits to validation from which odds on an answer is given, where some questions have none; says so."""
        labels = self.split("train", cache_folder()).labels
        self.known = replace(self.known, empty=float((labels.ids[labels.starts[:-1]] == BOTH).mean()))
        self.known.save(self.folder / FILES[1])
        questions = list(self._questions("val")) if self.known.unanswerable else []
        if all(question.answers for question in questions):
            return ""
        found = self.answers(model, [(q.question, q.context) for q in questions], DecodeConfig(), device=device)
        odds, worth = [], []
        for question, answers in zip(questions, found, strict=True):
            best = answers.found[0] if answers.found else Found(0, 0, -math.inf)
            odds.append(best.odds)
            text = question.context[best.start : best.end]
            worth.append(best_overlap(text, question.texts, self.known.units) - (not question.answers))
        self.known = replace(self.known, threshold=fit_threshold(odds, worth))
        self.known.save(self.folder / FILES[1])
        return f"an answer is given where its log-odds are {self.known.threshold:.3g} or more, by validation"

    # --- answers ------------------------------------------------------------------------------------------------------

    def answers(
        self,
        model: SpanReader,
        pairs: Sequence[tuple[str, str]],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
        places: Sequence[str] = (),
    ) -> list[Answers]:
        """What each text answers to its question: places in the text and odds, over all windows."""
        named = places or [f"question {number:,}" for number in range(1, len(pairs) + 1)]
        windows = [self.reader.windows(*pair, place) for pair, place in zip(pairs, named, strict=True)]
        spans = iter(self._spans(model, [w for each in windows for w in each], config, device, on_batch))
        most = max(1, config.n_best)
        found = []
        for (question, text), each in zip(pairs, windows, strict=True):
            cut = max(0, len(self.reader.question(question)) - self.config.question_length)
            found.append(merged([next(spans) for _ in each], text, most, cut))
        return found

    @torch.inference_mode()
    def _spans(
        self,
        model: SpanReader,
        windows: Sequence[Window],
        config: DecodeConfig,
        device: torch.device,
        on_batch: OnBatch | None,
    ) -> list[tuple[list[Found], float]]:
        """Of each window its best spans, and the logarithm of the odds of all."""
        rows = Rows(
            Column.of([window.ids for window in windows], "int64"),
            Column.of([[]] * len(windows), "int64"),
            Counts(),
            self.tokenizer.specials.pad,
            label_width=1,
        )
        found: dict[int, tuple[list[Found], float]] = {}
        plan = rows.plan(batch_tokens=config.batch_tokens, multiple=8, seed=0, epoch=0, shuffle=False)
        for done, planned in enumerate(plan, 1):
            batch = rows.collate(planned)
            scores = model.scores(batch.to(device))[: len(batch.rows)]
            parts = best_spans(scores, self.config.max_answer, max(CANDIDATES, 4 * config.n_best))
            lists = [part.tolist() for part in parts]
            for row, *best, total in zip(batch.rows, *lists, strict=True):
                real = (
                    (windows[row].span(*places), odds) for *places, odds in zip(*best, strict=True) if odds > NEVER / 2
                )
                found[row] = [Found(start, end, odds) for (start, end), odds in real], total
            if on_batch is not None:
                on_batch(done, len(plan))
        return [found[row] for row in range(len(windows))]

    def predict(
        self,
        model: SpanReader,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """The answer to each `question<TAB>text`, as it stands in the text, with its probability; "" for none."""
        asked = [i for i, source in enumerate(sources) if source.strip()]
        places = [f"source {first_index + i + 1:,}" for i in asked]
        pairs = [parted(sources[i], place) for i, place in zip(asked, places, strict=True)]
        found = self.answers(model, pairs, config, device=device, on_batch=on_batch, places=places)
        predictions = [EMPTY] * len(sources)
        for i, (question, text), answers in zip(asked, pairs, found, strict=True):
            predictions[i] = self.prediction(question, text, answers, config.n_best)
        return predictions

    def need(self, source: str, number: int) -> None:
        """Raises where a source that is not empty is no question with its text."""
        if source.strip():
            parted(source, f"source {number:,}")

    def prediction(self, question: str, text: str, answers: Answers, number: int) -> Prediction:
        """The best answers as texts, places in `question<TAB>text`, and probabilities."""
        may_be_none, before = self.known.unanswerable > 0, len(question) + 1
        total = torch.tensor([answers.total, 0.0 if may_be_none else -math.inf]).logsumexp(0).item()
        found = [(text[f.start : f.end], (f.start + before, f.end + before), f.odds) for f in answers.found]
        best = found[0][2] if found else -math.inf
        if may_be_none or not found:
            place = 0 if best < self.known.threshold else max(1, sum(odds >= 0 for *_, odds in found))
            found.insert(place, ("", (0, 0), 0.0 if may_be_none else -math.inf))
        texts, spans, odds = zip(*found[:number], strict=True)
        scores, (start, end) = tuple(math.exp(min(0.0, each - total)) for each in odds), spans[0]
        marked = (Span(start, end, "answer", scores[0]),) if texts[0] else ()
        return Prediction(tuple(texts), scores, cut=answers.cut, ids=tuple(spans), spans=marked)

    def evaluate(
        self,
        model: SpanReader,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
    ) -> Evaluation:
        """Exact match and F1 of the answers, each against the nearest right one."""
        examples = listed(self.examples(split), split, _paths(self.config, self.data, self.paths, split))
        sources = [example.source for example in examples]
        found = self.predict(model, sources, config, device=device, on_batch=on_batch)
        return Evaluation(self.score(found, examples), len(examples), sum(answer.cut > 0 for answer in found))

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Score]:
        """The task's metrics of these answers."""
        answers, right = [each.text for each in predictions], [each.targets for each in examples]
        return answer_scores(answers, right, self.known.units)

    # --- looking ------------------------------------------------------------------------------------------------------

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A question with the window that holds an answer (as text, or its place in the source) as one row.

        The label of a place says that the answer begins or ends there; <s> has both where there is none.
        """
        question, text = parted(source, "the text")
        before = len(question) + 1
        start, end = _find(text, target) if isinstance(target, str) else (target[0] - before, target[1] - before)
        windows = self.reader.windows(question, text)
        fitting = [(w, w.places(start, end)) for w in windows if end > start]
        # of those that hold the answer, the one with the most text on both sides of it
        held = [(w, p) for w, p in fitting if p is not None]
        window, places = max(held, key=lambda pair: _room(*pair), default=(windows[0], None))
        answer = text[start:end] if places else ""
        asked = self.tokenizer.offsets(question)[: window.first - 2]
        read = window.offsets[window.begin : window.begin + window.number]
        here, there = (len(question), len(question)), (len(source), len(source))
        spans = [(0, 0), *asked, here, *((a + before, b + before) for a, b in read), there]
        axes = (
            Axis("source", tuple(self.tokenizer.tokens(window.ids)), tuple(spans), source),
            Axis("target", (answer,), ((0, len(answer)),), answer),
        )
        labels = pad_rows([window.labels(places)], NONE)
        return Batch(pad_rows([window.ids], self.tokenizer.specials.pad), labels), {axis.name: axis for axis in axes}


EMPTY = Prediction(("",), (0.0,), ids=((0, 0),))


def read_split(config: Config, data: DataConfig, paths: Paths, name: str, report: ReadReport) -> Iterator[Question]:
    """The questions of a split. Where it shares a file with others, whole articles are in the one or the other."""
    files = _paths(config, data, paths, name)
    questions = read_questions(files, on_bad_line=data.on_bad_line, report=report)
    if config.folds:
        listed = list(questions)
        part = fold_of([question.article for question in listed], config.folds)
        splits = {config.fold: "test", (config.fold + 1) % config.folds: "val"}
        questions = (q for q in listed if splits.get(part[q.article], "train") == name)
    elif data.val_share and name != "test":
        questions = (q for q in questions if is_held_out(q.article, data.val_share) == (name == "val"))
    if name == "train":
        questions = (q for q in questions if is_held_out(f"train {q.source}", data.train_share))
    noise = noise_of(data)
    return (with_noise(q, noise) for q in questions) if noise.share else questions


def with_noise(question: Question, noise: Noise) -> Question:
    """The question with mistakes in it and in what of its text is no answer, so that the right ones stay right."""
    text, parts = question.context, list[str]()
    spans = sorted((start, start + len(words)) for words, start in question.answers)
    done = length = 0  # of the text, and of what became of it
    moved = dict[int, int]()
    for start, end in [*spans, (len(text), len(text))]:
        if start >= done:  # what lies inside of another answer is there already
            parts.append(noise.text(text[done:start]))
            length += len(parts[-1])
        kept = text[max(start, done) : end]
        moved |= {place: length + place - max(start, done) for place in range(max(start, done), end)}
        parts.append(kept)
        done, length = max(done, end), length + len(kept)
    answers = [(words, moved[start]) for words, start in question.answers]
    return replace(question, question=noise.text(question.question), context="".join(parts), answers=tuple(answers))


def fold_of(articles: Sequence[str], folds: int) -> dict[str, int]:
    """Which of so many equal parts each article is in, by its name alone and not by where it stands.

    >>> sorted(fold_of(["a", "b", "c", "a"], 3).values())
    [0, 1, 2]
    """
    order = sorted(set(articles), key=lambda name: hashlib.sha256(name.encode()).digest())
    return {name: i % folds for i, name in enumerate(order)}


def _paths(config: Config, data: DataConfig, paths: Paths, name: str) -> Sequence[Path]:
    return split_paths(paths, data, "train" if config.folds else name)


def as_example(question: Question) -> Example:
    """Question and text as one source, its answers as targets."""
    there = question.question or question.context  # an empty line has an empty answer
    return Example(question.source if there else "", question.texts or ("",), question.place)


def parted(source: str, place: str) -> tuple[str, str]:
    """The question and the text of a source.

    >>> parted("Who?\\tAda did.", "source 1")
    ('Who?', 'Ada did.')
    """
    question, tab, text = source.partition(TAB)
    if not tab or not question.strip() or not text.strip():
        raise DataError(
            "a question and a text are wanted, with a tab between",
            got=source[:80],
            wanted="question<TAB>text",
            where=place,
            remedy="a .jsonl with question and context may hold line ends in its texts",
        )
    return question, text


def begins(labels: Tensor) -> Tensor:
    """1 where an answer begins, by the labels of places."""
    return ((labels == BEGINS) | (labels == BOTH)).float()


def ends(labels: Tensor) -> Tensor:
    """1 where an answer ends, by the labels of places."""
    return ((labels == ENDS) | (labels == BOTH)).float()


def _find(text: str, answer: str) -> tuple[int, int]:
    start = text.find(answer)
    if start < 0:
        wanted = "words that stand in the text, as they stand there"
        raise ConfigError("the answer does not stand in the text", got=answer[:80], wanted=wanted)
    return start, start + len(answer)


def _room(window: Window, places: tuple[int, int] | None) -> int:
    assert places is not None
    return min(places[0] - window.first, window.first + window.number - 1 - places[1])
