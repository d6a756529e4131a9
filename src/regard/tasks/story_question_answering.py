"""Questions about stories: sentences and a question in, one answer out; the files are those of the bAbI tasks.

Only answers are learned from. Which sentences an answer follows from is known of most files, and asked when a model
that reads sentence by sentence is judged: whether its hops read them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import key
from regard.data.babi import (
    StoryQuestion,
    StoryTokenizer,
    has_numbers,
    newest,
    read_stories,
    sentences_of,
    train_on_stories,
)
from regard.data.cache import cache_folder
from regard.data.config import DataConfig
from regard.data.parts import noise_of
from regard.data.readers import ReadReport
from regard.data.rows import Rows, is_held_out
from regard.data.unread import policy_of
from regard.decode.config import DecodeConfig
from regard.errors import DataError, require
from regard.layers.classifier import Classifier, Pooling
from regard.layers.story import StoryReader, has_hops
from regard.ops.attention import observing
from regard.ops.call import Call, Scattered
from regard.tasks import classification
from regard.tasks.metrics import Evaluation, Score
from regard.tasks.texts import OnBatch, Paths, split_paths
from regard.types import Axis, Batch, Example, Prediction

SUMMARY = "stories and questions in, an answer out, and which sentences each hop read for it"
KIND, FILES, TAKES = classification.KIND, classification.FILES, classification.TAKES
DECODE = classification.DECODE


@dataclass(frozen=True, kw_only=True)
class Config(classification.Config):
    """The `[task]` section of a recipe for questions about stories: classification's keys; an answer is one label."""

    pooling: Pooling = key(
        "pooled",
        "what answers: the family's own state of a row (pooled), the mean, the largest, both, the first, the last",
    )
    dropout: float = key(0.0, "dropout of that state", may_change=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = "false: a list is one answer, as in the bAbI tasks"
        require(not self.multi_label, "a question has one answer", got="multi_label = true", wanted=wanted)


def read_questions(
    data: DataConfig, paths: Paths, name: str, report: ReadReport, known: Sequence[str] = ()
) -> Iterator[StoryQuestion]:
    """The questions of a split. Where validation is a share of the training files, whole stories are in it or not."""
    files = split_paths(paths, data, name)
    for question in read_stories(files, on_bad_line=data.on_bad_line, report=report, known=known):
        if name != "test" and data.val_share and is_held_out(question.story, data.val_share) != (name == "val"):
            continue
        if name == "train" and not is_held_out(f"train {question.story}", data.train_share):
            continue
        noise = noise_of(data)
        yield replace(question, question=noise.text(question.question)) if noise.share else question


def read_split(
    config: classification.Config,
    data: DataConfig,
    paths: Paths,
    name: str,
    report: ReadReport,
    known: Sequence[str] = (),
) -> Iterator[Example]:
    """The same as examples: `sentence<TAB>sentence<TAB>question`, and the answer."""
    return (question.example for question in read_questions(data, paths, name, report, known))


class Task(classification.Task):
    """A classification of questions by their answers, given a story."""

    config: Config
    units_axis = "sentences"  # of a model that reads these
    read_split = staticmethod(read_split)
    train_tokenizer = staticmethod(train_on_stories)
    load_tokenizer = staticmethod(StoryTokenizer.load)

    def __init__(self, config: Config, data: DataConfig, **words: Any) -> None:
        super().__init__(config, data, **words)
        self.metrics = ("accuracy", "mean_accuracy")

    def dress(self, model: Any) -> StoryReader:
        """The encoder with a layer that says the answer."""
        self._need_branches(model)
        return StoryReader(
            model,
            end=self.tokenizer.specials.end,
            num_classes=len(self.classes.labels),
            pooling=self.config.pooling,
            dropout=self.config.dropout,
            weights=self._weights(),
            ngrams=self._ngrams(),
        )

    def read(self, path: Path, report: ReadReport | None = None) -> Iterator[Example]:
        """The questions of a file that is to be answered or looked at, with the answers that it has."""
        # where a story has many lines, the questions after a bad one need it
        policy = "error" if has_numbers(path) else policy_of(report)
        questions = read_stories([path], need_answers=False, on_bad_line=policy, report=report)
        return (question.example for question in questions)

    def kept(self, ids: Sequence[int]) -> list[int]:
        """Which places of a story are read where it is longer than `data.max_length`: the newest sentences."""
        return newest(ids, self.tokenizer.specials.end, self.data.max_length)

    # --- answers ------------------------------------------------------------------------------------------------------

    def predict(
        self,
        model: Classifier,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """The answer to each `sentence<TAB>sentence<TAB>question` with its probability; an empty line has none."""
        for number, source in enumerate(sources, first_index + 1):
            need_story(source, f"source {number:,}")
        return super().predict(model, sources, config, device=device, on_batch=on_batch, first_index=first_index)

    def need(self, source: str, number: int) -> None:
        """Raises where a source that is not empty is no story with a question, or is longer than is read."""
        need_story(source, f"source {number:,}")
        super().need(source, number)

    def evaluate(
        self,
        model: Classifier,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
    ) -> Evaluation:
        """Accuracy of all questions, of each kind and as the mean of the kinds; with hops, what they read."""
        rows = self.split(split, cache_folder())
        questions = list(read_questions(self.data, self.paths, split, ReadReport(), self.classes.labels))
        if len(questions) != len(rows):
            got, wanted = f"{len(rows):,} of {len(questions):,}", 'all, with data.too_long = "truncate"'
            raise DataError("too long stories were left out of the split", got=got, wanted=wanted, where=split)
        answers, read = self._answers(model, rows, config, device, on_batch)
        right = [self.classes.labels[i] == q.answer for i, q in zip(answers, questions, strict=True)]
        scores = [*accuracies(right, [question.kind for question in questions]), *facts_read(read, questions)]
        return Evaluation(scores, len(rows), rows.counts.truncated)

    @torch.inference_mode()
    def _answers(
        self, model: Classifier, rows: Rows, config: DecodeConfig, device: torch.device, on_batch: OnBatch | None
    ) -> tuple[list[int], list[list[int]]]:
        """The answer to each row, and which sentence each hop reads most, counted from the last one (-1)."""
        answers, read = [0] * len(rows), [list[int]()] * len(rows)
        plan = rows.plan(batch_tokens=config.batch_tokens, multiple=8, seed=0, epoch=0, shuffle=False)
        for done, planned in enumerate(plan, 1):
            batch, hops = rows.collate(planned), Hops()
            with observing(hops):
                said = model.logits(batch.to(device)).argmax(-1).tolist()
            places = hops.most_read(self._num_sentences(batch)) if has_hops(model) else [[]] * len(said)
            for row, answer, own in zip(batch.rows, said, places, strict=False):
                answers[row], read[row] = answer, own
            if on_batch is not None:
                on_batch(done, len(plan))
        return answers, read

    def _num_sentences(self, batch: Batch) -> Tensor:
        """How many sentences each row has beside its question: B."""
        ids, lengths = batch.source.ids, batch.source.lengths
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        return ((ids == self.tokenizer.specials.end) & real).sum(1) - 1

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Score]:
        """The accuracy of these answers."""
        right = [answer.text in example.targets for answer, example in zip(predictions, examples, strict=True)]
        return accuracies(right, [""] * len(right))

    # --- looking ------------------------------------------------------------------------------------------------------

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A story and an answer as one row; what stands along it, also as `sentences` and `question`."""
        need_story(source, "the text")
        batch, axes = super().pair(source, target)
        *story, asked = [(text, start, start + len(text)) for text, start in sentences_of(source)]
        story = story[len(story) - int(self._num_sentences(batch)) :]
        for name, parts in (("sentences", story), ("question", [asked])):
            spans = tuple((start, end) for _, start, end in parts)
            axes[name] = Axis(name, tuple(text.strip() for text, *_ in parts), spans, source)
        return batch, axes

    def units(self, batch: Batch) -> list[list[int]]:
        """The places of each sentence of the first row, its </s> among them."""
        ids, end = batch.source.ids[0].tolist(), self.tokenizer.specials.end
        ends = [place for place, i in enumerate(ids) if i == end][:-1]  # the last is that of the question
        return [list(range(first + 1, last + 1)) for first, last in zip([0, *ends], ends, strict=False)]

    def places(self, model: Classifier, batch: Batch) -> Tensor:
        """From which places' states the answer is read, B x N; in hops the question alone stands there, B x 1."""
        return torch.ones(len(batch.source.ids), 1) if has_hops(model) else super().places(model, batch)


def need_story(source: str, place: str) -> None:
    """Raises where a source that is not empty is no story with a question."""
    if source.strip() and len(sentences_of(source)) < 2:
        raise DataError(
            "a story and a question are wanted, with a tab between each sentence",
            got=source[:80],
            wanted="sentence<TAB>sentence<TAB>question",
            where=place,
            remedy="a file with numbered lines, as those of the bAbI tasks, is read as well",
        )


class Hops:
    """Keeps what each hop weighs: one observer of a batch."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []  # of each hop: B x sentences

    def saw(self, call: Call, projection: Tensor | None, out: Tensor) -> None:
        """Other attentions are not asked."""

    def saw_weights(self, weights: Tensor | Scattered, values: Tensor, projection: Tensor | None, out: Tensor) -> None:
        assert isinstance(weights, Tensor)
        self.weights.append(weights[:, 0, 0])

    def most_read(self, numbers: Tensor) -> list[list[int]]:
        """Of each row and hop the sentence that has the largest weight, counted from the row's last one (-1)."""
        best = torch.stack([weights.argmax(-1) for weights in self.weights], dim=1).cpu()  # B x hops
        return (best - numbers[:, None]).tolist()


def accuracies(right: Sequence[bool], kinds: Sequence[str]) -> list[Score]:
    """The share of right answers in percent; where there are several kinds, also their mean and that of each."""
    found: dict[str, list[bool]] = defaultdict(list)
    for kind, each in zip(kinds, right, strict=True):
        found[kind].append(each)
    shares = {kind: 100 * sum(each) / len(each) for kind, each in found.items()}
    mean, total = sum(shares.values()) / max(1, len(shares)), 100 * sum(right) / max(1, len(right))
    scores = [Score("accuracy", total, f"questions:{len(right)}"), Score("mean_accuracy", mean, f"kinds:{len(shares)}")]
    if len(shares) > 1:
        scores += [Score(f"accuracy_{kind}", shares[kind], f"questions:{len(found[kind])}") for kind in sorted(shares)]
    return scores


def facts_read(read: Sequence[Sequence[int]], questions: Sequence[StoryQuestion]) -> list[Score]:
    """How often hops read what the answer follows from, by how many sentences that are; none where there are no hops.

    `any_fact_N`: of the questions with N facts, those where some hop reads one of them most. `facts_N`: of all those
    facts, which share some hop reads most.
    """
    found: dict[int, list[float]] = defaultdict(list)
    for places, question in zip(read, questions, strict=True):
        if places and question.facts:
            own = {fact - len(question.sentences) for fact in question.facts}
            found[len(own)].append(len(own.intersection(places)) / len(own))
    scores = []
    for number, shares in sorted(found.items()):
        signature = f"questions:{len(shares)}|hops:{max(map(len, read))}"
        some = 100 * sum(share > 0 for share in shares) / len(shares)
        scores += [
            Score(f"any_fact_{number}", some, signature),
            Score(f"facts_{number}", 100 * sum(shares) / len(shares), signature),
        ]
    return scores
