"""Tagging: texts with marked spans in (names of people, places, ..), a model that finds them in other texts.

A text is cut into words or characters, and each of these into pieces; its tag stands at the first. A span's score is
the probability that just this span, with this label, is there, over all taggings of the text.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.config import key
from regard.data.batching import NONE
from regard.data.config import DataConfig
from regard.data.conll import TaggedText, format_of, labels_in, read_tagged, read_to_tag, tagged, with_words
from regard.data.marked import Units, mark, marked_places, shape_of, spans_of, unmark, words_of
from regard.data.noise import Noise
from regard.data.parts import in_split, part_of
from regard.data.readers import ReadReport
from regard.data.rows import Rows, build_rows, framed
from regard.data.schemes import Scheme, is_legal, parts_of, tag_names, to_spans, to_tags
from regard.data.store import Column, Counts
from regard.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from regard.decode.config import DecodeConfig
from regard.decode.search import pad_rows
from regard.errors import DataError, RunError, require_share
from regard.files import put_text
from regard.layers.tagger import Tagger
from regard.models import Sizes
from regard.ops import crf
from regard.tasks.metrics import Evaluation, Score, span_scores
from regard.tasks.texts import OnBatch, Paths, Stateless, by_length, listed, save_tokenizer, split_paths, with_unknown
from regard.types import Axis, Batch, Example, Prediction, Span

SUMMARY = "texts with marked spans in (names of people, places, ..), a model that finds them in other texts"
KIND = "encoder"
FILES = ("tokenizer.json", "tags.json")
DECODE = ("batch_tokens",)
TAKES = ("train_share", "noise")
NOT_ASKED = -1  # the label of a word whose tag is not asked for
COMMON, MOST_SHAPES = 5, 200  # how often a shape of words must be seen to be told apart, and how many are


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a tagging recipe."""

    scheme: Literal["auto", "io", "bio", "bioes", "bmes"] = key(
        "auto", "how spans become tags: io, bio, bioes or bmes; auto: as in the training file; files may have any"
    )
    units: Literal["auto", "words", "characters"] = key(
        "auto", "what has a tag: words, or characters as in Chinese; auto: as in the training file"
    )
    head: Literal["linear", "crf"] = key(
        "crf", "linear: each tag by itself; crf: all together, and none that may not follow the one before it"
    )
    case: bool = key(
        False, "show the head how each word is written (Xxx, XX, dd ..), which a tokenizer in lower case does not see"
    )
    dropout: float = key(0.1, "dropout of the states that tags are read from", may_change=True)
    word_dropout: float = key(
        0.0, "share of a text's tokens that are unknown to the model in training, others each time", may_change=True
    )

    def __post_init__(self) -> None:
        require_share(self, "dropout", "word_dropout")


@dataclass(frozen=True)
class Tags:
    """What the training split settled: labels, how spans become tags, what has one, and how words are written."""

    labels: tuple[str, ...]
    scheme: Scheme
    units: Units
    shapes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The tags in the order of their numbers."""
        return tag_names(self.labels, self.scheme)

    @classmethod
    def load(cls, path: Path) -> Tags:
        """Reads what `save` wrote."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            tags = cls(tuple(found["labels"]), found["scheme"], found["units"], tuple(found["shapes"]))
            assert tags.names
            return tags
        except (OSError, ValueError, TypeError, KeyError) as error:
            remedy = "copy the run again, or train it again"
            raise RunError("the tags cannot be read", got=repr(error), where=path, remedy=remedy) from None

    def save(self, path: Path) -> None:
        """Writes the tags as JSON, whole or not at all."""
        try:
            put_text(path, json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n")
        except OSError as error:
            raise DataError("the tags cannot be written", got=error.strerror or error, where=path) from None


class Task(Stateless):
    """A tagging with its tokenizer and tags: what the loop trains on, and what a run answers with."""

    def __init__(self, config: Config, data: DataConfig, *, paths: Paths, tokenizer: Tokenizer, tags: Tags) -> None:
        self.config, self.data, self.paths, self.tokenizer, self.tags = config, data, paths, tokenizer, tags
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True, pieces=tokenizer.spelled())
        self.metrics = ("f1", "precision", "recall", *(f"f1_{label}" for label in tags.labels))
        self.names = tags.names
        self.number = {name: i for i, name in enumerate(self.names)}
        self.goes_on = torch.tensor([[_goes_on(before, name) for name in self.names] for before in self.names])
        self.shapes = {shape: i for i, shape in enumerate(tags.shapes, 2)}  # 1: another one, 0: no word
        # a byte-level tokenizer of others knows words with the space before them
        apart = tokenizer.encode_batch(["a", " a"])
        self.before = " " if len(apart[1]) == 1 and apart[0] != apart[1] else ""
        self.known: dict[str, list[int]] = {}  # the ids of each word that was seen

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: tokenizer and tags are loaded, or made from the training split and saved."""
        tokenizer_file, tags_file = (folder / name for name in FILES)
        if not (tokenizer_file.exists() and tags_file.exists()):
            form = format_of(split_paths(paths, data, "train")[0])
            units = form.units if config.units == "auto" else config.units
            scheme = ("bio" if form.scheme == "iob1" else form.scheme) if config.scheme == "auto" else config.scheme
            texts = [tagged(each, units) for each in read_split(config, data, paths, "train", ReadReport(), units)]
            labels = labels_in(texts)
            if not labels:
                got = f"{len(texts):,} texts without a span"
                raise DataError("there is nothing to find", got=got, wanted="spans", where=paths("train")[0])
            words = [[text.source[start:end] for start, end in text.units] for text in texts]
            shapes = Counter(shape_of(word) for row in words for word in row) if config.case else Counter()
            common = [shape for shape, count in shapes.most_common(MOST_SHAPES) if count >= COMMON]
            Tags(tuple(labels), scheme, units, tuple(common)).save(tags_file)
            if not tokenizer_file.exists():
                between = " " if units == "words" else ""
                save_tokenizer(train_tokenizer(tokenizer, map(between.join, words)), tokenizer_file)
        found = Tokenizer.load(tokenizer_file), Tags.load(tags_file)
        return cls(config, data, paths=paths, tokenizer=found[0], tags=found[1])

    def dress(self, model: Any) -> Tagger:
        """The encoder with a layer that says the tags."""
        legal = torch.tensor([[is_legal(self.tags.scheme, a, b) for b in self.names] for a in self.names])
        return Tagger(
            model,
            vocabulary=self.tokenizer.size,
            legal=legal,
            legal_start=legal[0],  # as after O
            legal_end=legal[:, 0],
            has_crf=self.config.head == "crf",
            num_shapes=len(self.shapes) + 2 if self.config.case else 0,
            dropout=self.config.dropout,
        )

    # --- data ---------------------------------------------------------------------------------------------------------

    def read(self, path: Path, report: ReadReport | None = None) -> Iterator[Example]:
        """The texts of a file that is to be answered or looked at, with the spans that it has."""
        return read_to_tag(path, units=self.tags.units, report=report)

    def examples(self, name: str) -> list[Example]:
        """The split as texts, each with its spans."""
        return list(read_split(self.config, self.data, self.paths, name, ReadReport(), self.tags.units))

    def split(self, name: str, cache: Path) -> Rows:
        """The encoded split; the encoding is kept in the cache folder."""
        data, tags = self.data, self.tags
        return build_rows(
            split_paths(self.paths, data, name),
            self.tokenizer,
            lambda report: read_split(self.config, data, self.paths, name, report, tags.units),
            self._labels,
            split=name,
            policy={"tags": asdict(tags), "before": self.before, "bad": data.on_bad_line, **part_of(data, name)},
            cache_dir=cache,
            max_length=data.max_length,
            # to leave out what is judged by would flatter
            too_long="truncate" if name != "train" and data.too_long == "drop" else data.too_long,
            encode=lambda examples: [list(itertools.chain(*self._pieces(self._text(each)))) for each in examples],
            num_ids=self.tokenizer.size * (len(self.shapes) + 2),
        )

    def _text(self, example: Example) -> TaggedText:
        return tagged(example, self.tags.units)

    def _pieces(self, text: TaggedText) -> list[list[int]]:
        """The ids of each word, with the number of its shape (see `Tagger`)."""
        words = [text.source[start:end] for start, end in text.units]
        new = [word for word in dict.fromkeys(words) if word not in self.known]
        special, size = self.tokenizer.specials, self.tokenizer.size
        nothing = [special.start if special.unk is None else special.unk]  # of a word that the tokenizer leaves out
        for word, ids in zip(new, self.tokenizer.encode_batch([self.before + word for word in new]), strict=True):
            shape = self.shapes.get(shape_of(word), 1) if self.shapes else 0
            self.known[word] = [i + shape * size for i in ids or nothing]
        return [self.known[word] for word in words]

    def _tags(self, text: TaggedText) -> list[int]:
        """The tag of each word; a label that training did not have leaves no trace."""
        known = [span for span in text.spans if span.label in self.tags.labels]
        tags = to_tags(words_of(known, text.units), len(text.units), self.tags.scheme)
        return [self.number[tag] for tag in tags]

    def _labels(self, example: Example) -> list[int]:
        """The label of each piece: the tag of a word at its first."""
        text = self._text(example)
        return _at_first(self._tags(text), self._pieces(text))

    # --- training -----------------------------------------------------------------------------------------------------

    def loss(self, model: Tagger, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum of -log p of the rows' tags, and how many there are; where the smoothing is given, as in validation,
        no word is hidden."""
        if smoothing is not None or not self.config.word_dropout:
            return model.loss(batch)
        ids, size = batch.source.ids, self.tokenizer.size
        hidden = with_unknown(batch, self.config.word_dropout, self.tokenizer).source.ids
        seen = torch.where(hidden == ids, ids, hidden + ids - ids % size)  # how a word is written stays
        return model.loss(replace(batch, source=replace(batch.source, ids=seen)))

    # --- answers ------------------------------------------------------------------------------------------------------

    def predict(
        self,
        model: Tagger,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """Each text with its spans marked, and the mean log-probability of its tags; a text of any length is read."""
        texts = [self._text(Example(source)) for source in sources]
        return self._answers(model, texts, config, device, on_batch)

    def evaluate(
        self,
        model: Tagger,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
    ) -> Evaluation:
        """Precision, recall and F1 of spans, over all of them and by label; the words are those of the file."""
        examples = listed(self.examples(split), split, split_paths(self.paths, self.data, split))
        answers = self._answers(model, [self._text(each) for each in examples], config, device, on_batch)
        return Evaluation(self.score(answers, examples), len(examples))

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Score]:
        """The metrics of these answers."""
        right = [self._text(example).spans for example in examples]
        rows = ([prediction.spans for prediction in predictions], right)
        said, gold = ([{(s.start, s.end, s.label) for s in spans} for spans in each] for each in rows)
        found = span_scores(said, gold)
        precision, recall, f1 = found[""]
        values = {"f1": f1, "precision": precision, "recall": recall}
        values |= {f"f1_{label}": found.get(label, (0.0,))[-1] for label in self.tags.labels}
        signature = f"texts:{len(gold)}|spans:{sum(map(len, gold))}|exact|scheme:{self.tags.scheme}"
        return [Score(name, value, signature) for name, value in values.items()]

    @torch.inference_mode()
    def _answers(
        self,
        model: Tagger,
        texts: Sequence[TaggedText],
        config: DecodeConfig,
        device: torch.device,
        on_batch: OnBatch | None,
    ) -> list[Prediction]:
        answers = [EMPTY] * len(texts)
        asked = [i for i, text in enumerate(texts) if text.units]
        emissions = self._emissions(model, [texts[i] for i in asked], config, device, on_batch)
        chain = crf.Chain(*(part.cpu() for part in model.chain()))
        for group in by_length([range(len(each)) for each in emissions], config.batch_tokens):
            lengths = torch.tensor([len(emissions[i]) for i in group])
            padded = pad_sequence([emissions[i] for i in group], batch_first=True)
            tags = crf.viterbi(padded, chain, lengths)
            alphas, betas = crf.forward(padded, chain), crf.backward(padded, chain, lengths)
            worth = crf.path_scores(padded, tags, chain, lengths) - crf.log_partition(alphas, chain, lengths)
            for row, i in enumerate(group):
                number = len(emissions[i])
                sums = crf.Sums(emissions[i], alphas[row, :number], betas[row, :number], chain)
                score = float(worth[row]) / number
                answers[asked[i]] = self._prediction(texts[asked[i]], tags[row, :number].tolist(), score, sums)
        return answers

    def _prediction(self, text: TaggedText, tags: list[int], score: float, sums: crf.Sums) -> Prediction:
        names = [self.names[i] for i in tags]
        spans: list[Span] = []
        for begin, stop, label in to_spans(names):
            own = tags[begin:stop]
            before, after = ~self.goes_on[:, own[0]], ~self.goes_on[own[-1]]
            sure = crf.stretch_log_prob(sums, begin, own, before=before, after=after).exp().clamp(max=1)
            (span,) = spans_of([(begin, stop, label)], text.units)
            spans.append(replace(span, score=float(sure)))
        marked = mark(text.source, spans)
        return Prediction((marked,), (score,), tokens=(tuple(names),), ids=(tuple(tags),), spans=tuple(spans))

    def _emissions(
        self,
        model: Tagger,
        texts: Sequence[TaggedText],
        config: DecodeConfig,
        device: torch.device,
        on_batch: OnBatch | None,
    ) -> list[Tensor]:
        """How well each tag fits each word of each text; what is too long is read in windows that overlap."""
        pieces, most = [self._pieces(text) for text in texts], self.data.max_length
        windows = [(i, each) for i, own in enumerate(pieces) for each in windows_of([len(p) for p in own], most)]
        ids = [list(itertools.chain(*pieces[i][window.first : window.stop]))[:most] for i, window in windows]
        column = Column.of([framed(row, self.tokenizer) for row in ids], "int64")
        rows = Rows(column, Column.of([[]] * len(ids), "int64"), Counts(), self.tokenizer.specials.pad, label_width=1)
        found = [torch.zeros(len(own), len(self.names)) for own in pieces]
        plan = rows.plan(batch_tokens=config.batch_tokens, multiple=8, seed=0, epoch=0, shuffle=False)
        for done, planned in enumerate(plan, 1):
            batch = rows.collate(planned)
            said = model.emissions(batch.to(device)).cpu()
            for row, values in zip(batch.rows, said, strict=False):
                i, window = windows[row]
                lengths = [len(piece) for piece in pieces[i][window.first : window.stop]]
                places = torch.tensor([1, *itertools.accumulate(lengths, initial=1)][1:-1])
                kept = slice(window.keep - window.first, window.keep_stop - window.first)
                found[i][window.keep : window.keep_stop] = values[places[kept]]
            if on_batch is not None:
                on_batch(done, len(plan))
        return found

    # --- looking ------------------------------------------------------------------------------------------------------

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A text and its tags (the text with marks, or the number of each word's tag), and what stands along it.

        Asked for are the tags of the words in spans, or of all words where there are none.
        """
        text = self._text(Example(source))
        if isinstance(target, str):
            plain, spans = unmark(target)
            if plain != source:
                raise DataError("the answer is not the text with marks", got=plain[:80], wanted=source[:80])
            target = self._tags(replace(text, spans=spans))
        names = [self.names[i] for i in target]
        spans = spans_of(to_spans(names), text.units)
        pieces = self._pieces(text)
        (window, *_) = windows_of([len(piece) for piece in pieces], self.data.max_length)
        pieces = [piece[: self.data.max_length] for piece in pieces[: window.stop]]
        asked = [i if not spans or name != "O" else NOT_ASKED for i, name in zip(target, names, strict=True)]
        labels = [NONE, *_at_first(asked, pieces), NONE]
        row = framed(list(itertools.chain(*pieces)), self.tokenizer)
        offsets = [(0, 0), *self._offsets(text, pieces), (len(source), len(source))]
        marked, moved = mark(source, spans), marked_places(source, spans)
        said = ["", *_at_first(names, pieces, ""), ""]
        axes = (
            Axis("source", tuple(self.tokenizer.tokens(i % self.tokenizer.size for i in row)), tuple(offsets), source),
            Axis("target", tuple(said), tuple((moved[start], moved[end]) for start, end in offsets), marked),
        )
        batch = Batch(pad_rows([row], self.tokenizer.specials.pad), pad_rows([labels], NONE))
        return batch, {axis.name: axis for axis in axes}

    def _offsets(self, text: TaggedText, pieces: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        """Where in the text each piece stands."""
        for (start, end), own in zip(text.units, pieces, strict=False):
            lead = start - len(self.before)
            found = self.tokenizer.offsets(self.before + text.source[start:end])[: len(own)] or [(0, end - lead)]
            yield from ((max(start, lead + a), max(start, lead + b)) for a, b in found)

    def log_probs(self, model: Tagger, batch: Batch) -> Tensor:
        """The log-probability of each tag that is asked for, over all taggings of the text, 0 elsewhere: B x N."""
        assert batch.target is not None
        labels = batch.target.ids
        found: Tensor = model.log_marginals(batch).gather(-1, labels.clamp(min=0)[:, :, None])[:, :, 0]
        return found * (labels >= 0)


EMPTY = Prediction(("",), (0.0,), ((),), ids=((),))


def read_split(
    config: Config, data: DataConfig, paths: Paths, name: str, report: ReadReport, units: Units | None = None
) -> Iterator[Example]:
    """The texts of a split with their spans."""
    files = split_paths(paths, data, name)
    if units is None:
        units = format_of(files[0]).units if config.units == "auto" else config.units
    return in_split(
        read_tagged(files, units=units, on_bad_line=data.on_bad_line, report=report), data, name, _with_noise
    )


def _with_noise(noise: Noise, example: Example) -> Example:
    """Typos alone: every word keeps its tag."""
    assert isinstance(example, TaggedText)
    return with_words(example, noise.words([example.source[start:end] for start, end in example.units]))


@dataclass(frozen=True)
class Window:
    """Words that are read together, first to stop, and those of them whose tags are taken from here."""

    first: int
    stop: int
    keep: int
    keep_stop: int


def windows_of(lengths: Sequence[int], most: int) -> list[Window]:
    """Windows of at most `most` pieces over words of these lengths; each but the first reads half of the last again.

    >>> windows_of([1, 1, 1, 1, 1, 1], 4)
    [Window(first=0, stop=4, keep=0, keep_stop=3), Window(first=2, stop=6, keep=3, keep_stop=6)]
    """
    edges: list[tuple[int, int]] = []
    first = 0
    while not edges or edges[-1][1] < len(lengths):
        stop = _reach(lengths, first, most)
        edges.append((first, stop))
        first = stop - _reach(lengths[first + 1 : stop][::-1], 0, most // 2, least=0)
    middles = [(after[0] + before[1]) // 2 for before, after in itertools.pairwise(edges)]
    kept = itertools.pairwise([0, *middles, len(lengths)])
    return [Window(*edge, *keep) for edge, keep in zip(edges, kept, strict=True)]


def _reach(lengths: Sequence[int], first: int, room: int, least: int = 1) -> int:
    """The word after the last that fits, when they are read from `first` on; at least so many are."""
    ends = itertools.accumulate(lengths[first:])
    return min(len(lengths), first + max(least, sum(1 for _ in itertools.takewhile(lambda end: end <= room, ends))))


def _goes_on(before: str, tag: str) -> bool:
    """Whether a tag goes on with the span of the one before it."""
    (last, own), (letter, label) = parts_of(before), parts_of(tag)
    return last in ("B", "I") and letter in ("I", "E") and own == label


def _at_first(values: Sequence[Any], pieces: Sequence[Sequence[int]], none: Any = NONE) -> list[Any]:
    """The value of each word at its first piece, `none` at its others."""
    return [value if i == 0 else none for value, own in zip(values, pieces, strict=False) for i in range(len(own))]
