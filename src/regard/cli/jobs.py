"""The jobs: train a recipe, evaluate a run, predict with it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import typer

from regard.cli.output import fail, one_line, say
from regard.cli.words import is_override, section
from regard.errors import ConfigError, DataError
from regard.files import discard

if TYPE_CHECKING:
    from regard.decode.speculative import Draft
    from regard.run import Run
    from regard.types import Prediction, Span

Item = TypeVar("Item")
CHUNK = 4096  # lines that are decoded together: enough to batch by length, few enough to hold
DEVICE = typer.Option("auto", help="auto (a GPU when there is one), cpu, cuda or cuda:1.")
DRAFT = typer.Option(
    None, metavar="RUN", help="A smaller run that guesses ahead: the same answers, sooner. For greedy and sample."
)
TOGETHER = typer.Option(
    [],
    "--with",
    metavar="RUN",
    help="A run that answers with it (an ensemble: the mean of their probabilities); repeatable.",
)
OVERRIDES = typer.Argument(None, metavar="KEY=VALUE", help="Keys of [decode], as in beam=1.")


class Format(StrEnum):
    """What `predict` writes."""

    text = "text"
    tsv = "tsv"
    jsonl = "jsonl"


def train(
    recipe: str = typer.Argument(metavar="RECIPE", help="A .toml file, or a name out of `regard recipes`."),
    overrides: list[str] = typer.Argument(
        None, metavar="KEY=VALUE", help="Keys of the recipe, as in run=runs/a train.max_steps=500."
    ),
) -> None:
    """Train a recipe; the same command again goes on.

    The run folder gets the best weights, the tokenizers, metrics.jsonl, checkpoints and the recipe with every key.
    """
    from regard.recipe import read_recipe
    from regard.run import train as train_run

    run = train_run(read_recipe(recipe, overrides or []))
    split = "" if run.recipe.data.test else " --split val"
    folder = shlex.quote(str(run.folder))
    say(f"next:  regard evaluate {folder}{split}; regard predict {folder} FILE", stderr=True)


def evaluate(
    run: Path = typer.Argument(metavar="RUN", help="The folder of a trained run."),
    overrides: list[str] = OVERRIDES,
    split: str = typer.Option("test", help="The split to score: test, val or train."),
    noise: float = typer.Option(
        0.0,
        min=0.0,
        max=1.0,
        metavar="SHARE",
        help="Mistakes in this share of the words: typos, words dropped, swapped.",
    ),
    noise_seed: int = typer.Option(1, "--noise-seed", metavar="N", help="Other mistakes for another number."),
    together: list[Path] = TOGETHER,
    device: str = DEVICE,
) -> None:
    """Score a run on its test split, or another.

    Prints one `name: value` line a metric, and below it the signature; report.json in the run folder has all of it.
    With --noise, the clean figure stands beside it, if it was computed before.
    """
    changes, loaded = section("decode", overrides or []), opened(run, together, device)
    with progress(f"{split}:") as on_batch:
        scores = loaded.evaluate(split, noise=noise, noise_seed=noise_seed, on_batch=on_batch, **changes)
    clean = loaded.clean_scores(split, noise, noise_seed) if noise else {}
    for score in scores:
        beside = f" (clean {clean[score.name]:.2f})" if score.name in clean else ""
        say(f"{score.name}: {score.value:.2f}{beside}")
        if score.signature:
            say(f"  {score.signature}")


def predict(
    run: Path = typer.Argument(metavar="RUN", help="The folder of a trained run."),
    words: list[str] = typer.Argument(
        None, metavar="FILE|KEY=VALUE", help="What to read (stdin without it), and keys of [decode]."
    ),
    out: Path | None = typer.Option(None, metavar="FILE", help="Where to write; stdout without it."),
    format: Format = typer.Option(
        Format.text, help="text: an output a line; tsv: source, output; jsonl: source and target(s)."
    ),
    n_best: int | None = typer.Option(None, "--n-best", min=1, metavar="N", help="Outputs a source, the best first."),
    scores: bool = typer.Option(False, "--scores", help="Also write the score: mean log-probability a token."),
    prefix: str | None = typer.Option(None, metavar="TEXT", help="What every output must begin with."),
    draft: Path | None = DRAFT,
    together: list[Path] = TOGETHER,
    device: str = DEVICE,
) -> None:
    """Answer each line of a file or of stdin, in its order.

    FILE may be text, .tsv, .jsonl, and .gz or .xz of these; it is read in parts, so it may be of any size. An empty
    line has an empty answer. So has one that cannot be read, as bytes that are no UTF-8, or that the task cannot read,
    as a text without a gap to fill in: what is wrong with it is said, and the exit status is 2. With --n-best, text and
    tsv have N lines a source: where fewer were found, empty ones follow, with the score -inf; jsonl has lists of those
    that were found. The score of a line that cannot be read is -inf too, in jsonl null.
    """
    from regard.data.readers import MAX_NAMED
    from regard.run import load
    from regard.types import Prediction

    file, changes = _file_and_keys(words or [])
    if n_best is not None:
        changes["n_best"] = n_best
    if out is not None and file is not None and out.exists() and file.exists() and out.samefile(file):
        raise ConfigError("the output would replace the input", got=out, wanted="another --out")
    loaded = opened(run, together, device)
    guessing = None if draft is None else loaded.draft(load(draft, device))
    # a person who types wants each answer at once
    size = CHUNK if file or not sys.stdin.isatty() else 1
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    wrong = 0
    with Output(out) as output:
        for first, chunk in chunks(read_sources(loaded, file), size):
            with progress(f"lines from {first + 1:,}") if watched else contextlib.nullcontext() as on_batch:
                found = loaded.predict(
                    [source for source, _ in chunk],
                    prefixes=None if prefix is None else [prefix] * len(chunk),
                    first_index=first,
                    on_batch=on_batch,
                    draft=guessing,
                    on_bad_line="skip",
                    **changes,
                )
            found = [Prediction.none(why) if why else answer for (_, why), answer in zip(chunk, found, strict=True)]
            for answer in found:
                wrong += bool(answer.wrong)
                if answer.wrong and wrong <= MAX_NAMED:
                    fail(DataError(answer.wrong))
            number = changes.get("n_best", loaded.recipe.decode.n_best)
            answers = zip(chunk, found, strict=True)
            output.write("".join(FORMATS[format](source, answer, scores, number) for (source, _), answer in answers))
    if guessing is not None:
        say(taken(guessing), stderr=True)
    if wrong:
        say(f"{wrong:,} line{'s' * (wrong != 1)} could not be read: the answer is empty there", stderr=True)
        raise typer.Exit(2)


def opened(run: Path, others: Sequence[Path], device: str) -> Run:
    """A run, together with others where there are any."""
    from regard.ensemble import together
    from regard.run import load

    return together(run, *others, device=device) if others else load(run, device)


def taken(draft: Draft) -> str:
    """What became of a draft's guesses."""
    return f"draft: {draft.share:.0%} of {draft.proposed:,} guesses were taken"


def read_sources(run: Run, path: Path | None) -> Iterator[tuple[str, str]]:
    """The sources in a file (text, .tsv, .jsonl, also .gz and .xz) or on stdin, one after the other.

    Of a line that cannot be read the source is empty, and what is wrong with it stands beside it.
    """
    from regard.data.readers import ReadReport, read_text
    from regard.data.unread import in_place

    report = ReadReport(most=sys.maxsize)
    found = read_text(sys.stdin.buffer, "stdin", report) if path is None else run.sources(path, report)
    return in_place(found, report)


def typed() -> Iterator[str]:
    """The lines of stdin."""
    from regard.data.readers import read_text

    return read_text(sys.stdin.buffer, "stdin")


def chunks(sources: Iterable[Item], size: int) -> Iterator[tuple[int, list[Item]]]:
    """Lists of at most `size` sources, each with the place of its first.

    >>> list(chunks("abc", 2))
    [(0, ['a', 'b']), (2, ['c'])]
    """
    rest = iter(sources)
    for first in itertools.count(0, size):
        chunk = list(itertools.islice(rest, size))
        if not chunk:
            return
        yield first, chunk


def padded(prediction: Prediction, number: int) -> Prediction:
    """The answer with `number` outputs: who reads line by line can count on that many a source."""
    missing = number - len(prediction.texts)
    texts, scores = prediction.texts + ("",) * missing, prediction.scores + (-math.inf,) * missing
    return dataclasses.replace(prediction, texts=texts, scores=scores)


def as_text(source: str, prediction: Prediction, scores: bool, number: int) -> str:
    """One line an output, `number` of them; with scores, the score and a tab before it."""
    found = padded(prediction, number)
    rows = zip(found.scores, found.texts, strict=True)
    return _lines([f"{score:.4f}", text] if scores else [text] for score, text in rows)


def as_tsv(source: str, prediction: Prediction, scores: bool, number: int) -> str:
    """One line an output, `number` of them: source, output and, where wanted, the score."""
    found = padded(prediction, number)
    rows = zip(found.texts, found.scores, strict=True)
    return _lines([source, text, f"{score:.4f}"] if scores else [source, text] for text, score in rows)


def as_jsonl(source: str, prediction: Prediction, scores: bool, number: int) -> str:
    """One object a source, as the readers take it: a target, or where more are asked for, a list of those found.

    The score of a source that cannot be read is null: JSON has no infinity.
    """
    one = number == len(prediction.texts) == 1
    record: dict[str, Any] = {"source": source, "target": prediction.text if one else list(prediction.texts)}
    if scores:
        known = [round(score, 6) if math.isfinite(score) else None for score in prediction.scores]
        record["score"] = known[0] if one else known
    if prediction.spans:
        record["spans"] = [_span(span, source) for span in prediction.spans]
    return json.dumps(record, ensure_ascii=False) + "\n"


def _span(span: Span, source: str) -> dict[str, Any]:
    return {**dataclasses.asdict(span), "score": round(span.score, 6), "text": source[span.start : span.end]}


FORMATS: dict[Format, Callable[[str, Prediction, bool, int], str]] = {
    Format.text: as_text,
    Format.tsv: as_tsv,
    Format.jsonl: as_jsonl,
}


class Output:
    """UTF-8, whatever the locale, to a file or to stdout. Not opened before there is something to write.

    What is written goes to a hidden file beside, which takes the name at the end: a failure leaves the old file alone.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.draft: Path | None = None
        self.file: BinaryIO | None = sys.stdout.buffer if path is None else None

    def write(self, text: str) -> None:
        """Writes at once, so that who reads from a pipe need not wait for the end."""
        with self._named_errors():
            self.file = self.file or self._open(cast(Path, self.path))
            self.file.write(text.encode())
            self.file.flush()

    def _open(self, path: Path) -> BinaryIO:
        if path.exists() and not path.is_file():  # a pipe or a device is written as it is
            return path.open("wb")
        place = path.resolve()  # a link stays one
        self.draft = place.with_name(f".{place.name}.{os.getpid()}")
        file = self.draft.open("wb")
        if place.exists():
            shutil.copymode(place, self.draft)
        return file

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise  # the reader has seen enough, which is no error: the command ends quietly
        except OSError as error:
            raise DataError("the output cannot be written", got=error.strerror, where=self.path or "stdout") from None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.write("")  # of an empty input there is an empty output
                if self.path is not None and self.draft is not None:
                    with self._named_errors():
                        cast(BinaryIO, self.file).close()
                        os.replace(self.draft, self.path.resolve())
        finally:
            if self.path is not None and self.file is not None:
                with contextlib.suppress(OSError):  # all was written, or what the disk did not take is said already
                    self.file.close()
            if self.draft is not None:
                discard(self.draft)


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows on stderr how far a decoding is; what it gives is called with how many are done, of how many."""
    from regard.train.progress import Progress

    shown: list[Progress] = []

    def on_batch(done: int, total: int) -> None:
        shown[:] = shown or [Progress(title, total)]
        shown[0].update(done)

    try:
        yield on_batch
    finally:
        for each in shown:
            each.__exit__(None, None, None)


def _file_and_keys(words: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    files = [word for word in words if not is_override(word)]
    if len(files) > 1:
        raise ConfigError("predict reads one file", got=", ".join(files), wanted="one file, or none for stdin")
    keys = section("decode", [word for word in words if is_override(word)])
    return Path(files[0]) if files else None, keys


def _lines(rows: Iterable[Sequence[str]]) -> str:
    return "".join("\t".join(map(one_line, row)) + "\n" for row in rows)
