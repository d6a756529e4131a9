"""The one door to a run: train a recipe, or load what was trained and ask it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import base as bases
from regard import models, tasks
from regard.config import read_section, read_toml, to_table
from regard.data.cache import cache_folder
from regard.data.config import DataConfig, resolve
from regard.data.noise import Noise
from regard.data.parts import NoisyData
from regard.data.readers import OnBadLine, ReadReport, read_examples
from regard.data.rows import framed
from regard.data.unread import policy_of
from regard.decode.config import DecodeConfig
from regard.decode.speculative import Draft
from regard.errors import ConfigError, DataError, RunError, require
from regard.folder import alone_in, keep_trained, make_folder, open_folder
from regard.layers.classifier import Pooling
from regard.looking.lookable import Lookable
from regard.recipe import RECIPE, Recipe, parse
from regard.tasks import vectors
from regard.tasks.metrics import Evaluation, Score
from regard.train import checkpoint
from regard.train.device import pick_device
from regard.train.finetune import body_of, prepare
from regard.train.loop import Trainer
from regard.train.progress import say
from regard.types import Batch, Prediction, Sequences

TEXTS = "a run of language modelling, translation, text to text, summaries or dialogues"
SIDES = ("tokenizer", "source", "target")  # what tasks call their tokenizers


class Run(Lookable):
    """A trained model with its task: `predict`, `evaluate`, `logits`, and all of `Lookable`."""

    def __init__(self, folder: Path, recipe: Recipe, task: Any, model: nn.Module, device: torch.device) -> None:
        self.folder, self.recipe, self.task, self.device = folder, recipe, task, device
        self.model = model.to(device).eval()

    def predict(
        self,
        sources: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        on_batch: Callable[[int, int], None] | None = None,
        first_index: int = 0,
        draft: Draft | None = None,
        on_bad_line: OnBadLine = "error",
        **decode: Any,
    ) -> list[Prediction]:
        """The answers, in the order of the sources; decode keys (beam=1, n_best=3 ...) replace the recipe's.

        `prefixes` are the texts that the answers must begin with. `first_index` is the place of the first source
        where a long input comes in parts. A `draft` (see `draft`) makes greedy search and sampling faster. With
        `on_bad_line = "skip"` a source that cannot be read has an empty answer, whose `wrong` says why.
        """
        _need_texts("sources", sources)
        if prefixes is not None:
            _need_texts("prefixes", prefixes)
        fits = on_bad_line in get_args(OnBadLine)
        require(fits, "on_bad_line is unknown", got=on_bad_line, wanted=" or ".join(get_args(OnBadLine)))
        wrong = self._unreadable(sources, first_index) if on_bad_line == "skip" else {}
        answers: list[Prediction] = self.task.predict(
            self.model,
            ["" if i in wrong else source for i, source in enumerate(sources)],
            self._decode_config(decode, drafted=draft is not None),
            device=self.device,
            on_batch=on_batch,
            first_index=first_index,
            **self._taken(prefixes=prefixes, draft=draft),
        )
        cut = sum(answer.cut > 0 for answer in answers)
        if cut:
            limit = f"{self.recipe.data.max_length} tokens (data.max_length)"
            say(f"{cut:,} of {len(answers):,} sources were cut to {limit}")
        return [Prediction.none(wrong[i]) if i in wrong else each for i, each in enumerate(answers)]

    def _unreadable(self, sources: Sequence[str], first_index: int) -> dict[int, str]:
        """What is wrong with each source that the task cannot read, by its place."""
        need, found = getattr(self.task, "need", None), {}
        if need is None:  # a task that reads whatever is text
            return {}
        for i, source in enumerate(sources):
            try:
                need(source, first_index + i + 1)
            except DataError as error:
                found[i] = str(error)
        return found

    def _taken(self, **given: Any) -> dict[str, Any]:
        """What was given of these arguments, each of which the task must have a use for."""
        known = inspect.signature(self.task.predict).parameters
        given = {name: value for name, value in given.items() if value is not None}
        for name in given:
            if name not in known:
                task, wanted = self.recipe.task_name, "a task that writes a text"
                wanted += " in answer to another, as translation" if name == "prefixes" else ""
                raise ConfigError(f"{name} has no use here", got=f"{name} for {task}", wanted=wanted)
        return given

    def generate(self, source: str, *, index: int = 0, draft: Draft | None = None, **decode: Any) -> Iterator[str]:
        """The answer to one source piece by piece, as it is made: a piece a token, "" where no character is whole yet.

        A text that goes on comes without its beginning. What beam search says cannot be known before its end: where
        the recipe has that, this is greedy search. `index` is the place of the source in a longer input.
        """
        if not isinstance(source, str):
            raise ConfigError("generate answers one text", got=repr(source)[:80], wanted='"a text"')
        if not hasattr(self.task, "generate"):
            raise RunError("this run writes no text", got=self.recipe.task_name, wanted=TEXTS, remedy="regard predict")
        usual: dict[str, Any] = {"n_best": 1} | ({"method": "greedy"} if self.recipe.decode.method == "beam" else {})
        config = self._decode_config(decode, usual, drafted=draft is not None)
        config.need_streams()
        pieces: Iterator[str] = self.task.generate(
            self.model, source, config, device=self.device, index=index, draft=draft
        )
        return pieces

    def draft(self, other: Run) -> Draft:
        """A smaller run to guess for this one, as `draft=` of `predict` and `generate`; it counts what was taken.

        The outputs are those of this run alone, or as likely where they are drawn, and come sooner.
        """
        self.need_same_tokens(other, "a draft speaks the tokens of the run that it guesses for")
        if not hasattr(other.model, "step"):
            got, wanted = other.recipe.family, "a model that writes token by token"
            raise RunError("a draft writes as the run that it guesses for", got=got, wanted=wanted, where=other.folder)
        return Draft(other.model)  # type: ignore[arg-type]

    def need_same_tokens(self, other: Run, why: str) -> None:
        if self._vocabulary() != other._vocabulary():
            raise RunError(
                why,
                got=f"other tokenizers in {other.folder} than in {self.folder}",
                wanted="the same files: " + ", ".join(self._tokenizers()),
                remedy="train it on the same data, with the same [tokenizer]",
            )

    def _vocabulary(self) -> list[object]:
        special = [getattr(self.task, name).specials for name in SIDES if hasattr(self.task, name)]
        return [*((self.folder / name).read_bytes() for name in self._tokenizers()), *special]

    def _tokenizers(self) -> list[str]:
        return [name for name in tasks.task(self.recipe.task_name).FILES if name.startswith("tokenizer")]

    def evaluate(
        self,
        split: str = "test",
        *,
        noise: float = 0.0,
        noise_seed: int = 1,
        on_batch: Callable[[int, int], None] | None = None,
        **decode: Any,
    ) -> list[Score]:
        """The task's metrics on a split, also written to report.json with all that they depend on.

        With `noise`, this share of the words is read with mistakes (`regard.data.noise`): what the report says of that
        stands beside what it says of the clean split.
        """
        config, wrong = self._decode_config(decode), Noise(noise, noise_seed)
        task, way = (self._noisy_task(wrong), f"|{wrong}") if noise else (self.task, "")
        name = self._reported(split, wrong if noise else None)
        found: Evaluation = task.evaluate(self.model, split, config, device=self.device, on_batch=on_batch)
        scores = [dataclasses.replace(score, signature=score.signature + way) for score in found.scores]
        if found.cut:
            limit = f"{self.recipe.data.max_length} tokens (data.max_length)"
            say(f"{found.cut:,} of {found.examples:,} sources were cut to {limit}")
        path = self.folder / "report.json"
        report = _read_report(path)
        report[name] = {
            "examples": found.examples,
            "cut_sources": found.cut,
            "metrics": {score.name: score.value for score in scores},
            "signatures": {score.name: score.signature for score in scores},
            "decode": to_table(config),
        }
        try:
            checkpoint.write_text(path, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        except RunError as error:  # of a run that others share, say: the figures are there all the same
            say(f"these figures are in no report: {error}")
        return scores

    def clean_scores(self, split: str, noise: float, noise_seed: int = 1) -> dict[str, float]:
        """What report.json says of the clean split, of the metrics that were computed as those with this noise."""
        report, wrong = _read_report(self.folder / "report.json"), Noise(noise, noise_seed)
        clean, noisy = report.get(self._reported(split), {}), report.get(self._reported(split, wrong), {})
        if not clean or not noisy or clean["decode"] != noisy["decode"]:
            return {}
        # mistakes change how many tokens a running text has
        ways, others = (
            {name: re.sub(r"\|tokens:\d+", "", way) for name, way in each["signatures"].items()}
            for each in (clean, noisy)
        )
        same = [name for name, way in ways.items() if others.get(name) == f"{way}|{wrong}"]
        return {name: clean["metrics"][name] for name in same}

    def _reported(self, split: str, noise: Noise | None = None) -> str:
        """What report.json calls the figures of a split."""
        return split if noise is None else f"{split}, {noise}"

    def _noisy_task(self, noise: Noise) -> Any:
        """The task, reading its splits with mistakes."""
        tasks.need(self.recipe.task_name, "noise", "evaluate --noise")
        task = copy.copy(self.task)
        task.data = NoisyData.of(task.data, noise)
        return task

    @torch.inference_mode()
    def logits(self, ids: Tensor, target_ids: Tensor | None = None, *, lengths: Tensor | None = None) -> Tensor:
        """What the model thinks at each place of rows of ids: batch x length x vocabulary.

        Where it reads one text, `ids` is that; where it writes another, `target_ids` is that, and each row of it begins
        with the start token. `lengths` (batch) says how many of the `ids` of each row are real; what pads them stands
        at the right. A model that continues a text says what comes next.
        """
        return self.model.head(self.hidden(ids, target_ids, lengths=lengths))  # type: ignore[operator, no-any-return]

    @torch.inference_mode()
    def hidden(self, ids: Tensor, target_ids: Tensor | None = None, *, lengths: Tensor | None = None) -> Tensor:
        """The states that `logits` are made of, by the same arguments: batch x length x model width."""
        writes = tasks.task(self.recipe.task_name).KIND == "seq2seq"
        if writes != (target_ids is not None):
            two, one = "logits(ids, target_ids)", "logits(ids)"
            got, wanted = (one, two) if writes else (two, one)
            raise ConfigError(f"this model reads {'two texts' if writes else 'one text'}", got=got, wanted=wanted)
        source = Sequences(ids, torch.full((len(ids),), ids.shape[1]) if lengths is None else lengths)
        target = None
        if target_ids is not None:  # the states are those before the last token, which is not read
            target = Sequences(F.pad(target_ids, (0, 1)), torch.full((len(ids),), target_ids.shape[1]))
        return self.model.hidden(Batch(source, target).to(self.device))  # type: ignore[operator, no-any-return]

    def sources(self, path: Path, report: ReadReport | None = None) -> Iterator[str]:
        """The texts of a file that is to be answered, one after the other.

        With a `report`, lines that cannot be read are left out and named there; otherwise the first is an error.
        """
        if hasattr(self.task, "read"):
            return (example.source for example in self.task.read(path, report))
        found = read_examples([path], need_targets=False, on_bad_line=policy_of(report), report=report)
        return (example.source for example in found)

    def vectors(self, texts: Sequence[str], *, pooling: Pooling | None = None, normalize: bool | None = None) -> Tensor:
        """One vector of each text, by a model that reads texts: texts x width; normalised, products are cosines.

        What is not said is as in the recipe of a run for vectors, and else the mean, normalised.
        """
        _need_texts("texts", texts)
        if tasks.task(self.recipe.task_name).KIND != "encoder" or hasattr(self.task, "graph"):
            got = f"{self.recipe.family} for {self.recipe.task_name}"
            raise ConfigError("this model has no vectors of texts", got=got, wanted="a run of an encoder")
        if pooling not in (None, *get_args(Pooling)):
            raise ConfigError("there is no such pooling", got=pooling, wanted=", ".join(get_args(Pooling)))
        tokenizer, usual, codes = self.task.tokenizer, vectors.Config(), None
        if isinstance(self.task, vectors.Task):
            rows, usual = self.task.rows(texts), self.task.config
        elif hasattr(self.task, "reading"):
            rows, codes = self.task.reading(texts, tokenizer.encode_batch(list(texts)))
        else:
            most = self.recipe.data.max_length
            rows = [framed(ids[:most], tokenizer) for ids in tokenizer.encode_batch(list(texts))]
        return vectors.vectors_of(
            body_of(self.model)[0],
            rows,
            tokenizer.specials.pad,
            codes=codes,
            pooling=pooling or usual.pooling,
            normalize=usual.normalize if normalize is None else normalize,
            device=self.device,
        )

    def _decode_config(
        self, changes: dict[str, Any], usual: dict[str, Any] | None = None, *, drafted: bool = False
    ) -> DecodeConfig:
        """The recipe's keys, what is usual here, and what was asked for, none of which may be without a use."""
        table = {**to_table(self.recipe.decode), **(usual or {}), **changes}
        config = read_section(DecodeConfig, table, where="the arguments", name="decode")
        name = self.recipe.task_name
        used = getattr(tasks.task(name), "DECODE", None)  # by a task that searches nothing
        if used is None:
            controlled = getattr(self.recipe.task, "length_control", False)
            sourced = tasks.task(name).KIND == "seq2seq"
            config.refuse_unused(changes, drafted=drafted, controlled=controlled, sourced=sourced)
            return config
        for key in changes:
            if key not in used:
                raise ConfigError(
                    f"{key} has no use here", got=f"{key} for {name}", wanted=f"of [decode]: {', '.join(used)}"
                )
        return config


def train(recipe: Recipe) -> Run:
    """Trains a recipe in its run folder, or goes on where that stands, and loads the result."""
    folder = Path(recipe.run)
    device = pick_device(recipe.train.device)
    recipe = _settle(bases.settled(recipe))
    make_folder(folder)
    with alone_in(folder):
        before = open_folder(folder, recipe)
        if not _fit(recipe, folder, device) and before is not None:
            keep_trained(folder, before, recipe)
        run = load(folder, device=recipe.train.device)
        finish = getattr(run.task, "finish", None)  # what a task learns of its trained model
        if finish is not None:
            told = finish(run.model, run.device)
            if told:
                say(told)
    return run


def _fit(recipe: Recipe, folder: Path, device: torch.device) -> bool:
    """Trains what is left to train; whether there was anything."""
    task_file = tasks.task(recipe.task_name)
    say(f"run:   {folder}")
    begun = bool(checkpoint.checkpoints(folder / checkpoint.FOLDER))
    base = bases.read_base(Path(recipe.finetune.base)) if recipe.finetune.base and not begun else None
    if base is not None and not (folder / task_file.FILES[0]).exists():
        bases.copy_tokenizer(base, folder, task_file.FILES)
    task = task_file.Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=_paths(recipe), folder=folder)
    torch.manual_seed(recipe.train.seed)
    model = task.dress(models.build(recipe.family, recipe.model, task.sizes, task_file.KIND))
    if base is not None and recipe.finetune.weights:
        bases.take_weights(model, base)
    rates = prepare(model, recipe.finetune, embedding_rate=recipe.train.embedding_rate)
    configs = recipe.train, recipe.decode, recipe.observe
    trainer = Trainer(task, model, *configs, folder=folder, cache=cache_folder(), device=device, rates=rates)
    return trainer.fit()


def load(folder: str | Path, device: str = "auto") -> Run:
    """Opens a trained run. Nothing in it can execute code: it is TOML, JSON and safetensors.

    >>> load("no/such/run")
    Traceback (most recent call last):
    regard.errors.RunError: no such run
      got:    no/such/run
      wanted: a folder with recipe.toml and model.safetensors
      try:    `regard train RECIPE run=DIR` makes one
    """
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        raise RunError(
            "no such run",
            got=folder,
            wanted=f"a folder with {RECIPE} and {checkpoint.MODEL}",
            remedy="`regard train RECIPE run=DIR` makes one",
        )
    recipe = parse(read_toml(folder / RECIPE), where=str(folder / RECIPE), folder=folder, trains=False)
    where = pick_device(device)
    task_file = tasks.task(recipe.task_name)
    if not (folder / task_file.FILES[0]).is_file():
        remedy = "train the recipe in another run=DIR"
        raise RunError("the run has no tokenizer", got=folder, wanted=task_file.FILES[0], remedy=remedy)
    task = task_file.Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=_paths(recipe), folder=folder)
    model = task.dress(models.build(recipe.family, recipe.model, task.sizes, task_file.KIND))
    path = folder / checkpoint.MODEL
    checkpoint.put_weights(model, checkpoint.load_weights(path), where=path)
    return Run(folder, recipe, task, model, where)


def _read_report(path: Path) -> dict[str, Any]:
    """The report so far; a damaged one is set aside."""
    if not path.exists():
        return {}
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(report, dict):
            return report
    except (OSError, ValueError):
        pass
    aside = path.with_suffix(".damaged.json")
    say(f"{path} cannot be read; it is now {aside.name}")
    path.replace(aside)
    return {}


def _paths(recipe: Recipe) -> Callable[..., Sequence[Path]]:
    """Where each split's files are; only asked when a split is needed, so that a run answers without its data."""

    def paths(split: str, data: DataConfig | None = None) -> Sequence[Path]:
        return resolve(data or recipe.data, recipe.folder, [split]).get(split, ())

    return paths


def _settle(recipe: Recipe) -> Recipe:
    """The recipe as the run folder keeps it: a user's own files by their whole path."""
    if hasattr(recipe.task, "settled"):  # a task that names files itself
        recipe = dataclasses.replace(recipe, task=recipe.task.settled(lambda data: resolve(data, recipe.folder)))
    if recipe.data.set:
        return recipe
    found = resolve(recipe.data, recipe.folder)
    whole: dict[str, Any] = {name: tuple(str(path.resolve()) for path in paths) for name, paths in found.items()}
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **whole))


def _need_texts(name: str, texts: object) -> None:
    """Refuses one string (its letters would be taken for texts) and whatever is not text."""
    listed = isinstance(texts, Sequence) and not isinstance(texts, (str, bytes))
    wrong = [text for text in texts if not isinstance(text, str)] if listed else [texts]  # type: ignore[attr-defined]
    if wrong:
        remedy = f"predict([{texts!r}])" if isinstance(texts, str) and name == "sources" else None
        got = repr(wrong[0])[:80]
        raise ConfigError(f"{name} must be a list of texts", got=got, wanted='["one", "two"]', remedy=remedy)
