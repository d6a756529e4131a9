"""Recipes: TOML -> a validated Recipe, each section read by the file that it names."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config import nearest, override, read_section, read_toml, to_table, to_toml
from regard.errors import ConfigError

if TYPE_CHECKING:  # torch takes a second to import, and `regard recipes` needs none of it
    from regard.data.config import DataConfig
    from regard.data.tokenizers import TokenizerConfig
    from regard.decode.config import DecodeConfig
    from regard.train.config import TrainConfig
    from regard.train.finetune import FinetuneConfig
    from regard.train.observe import ObserveConfig

RECIPE = "recipe.toml"  # in a run folder
MARK = "# Written by regard: every key of the recipe that this run was trained with."
SECTIONS = ("task", "data", "tokenizer", "model", "finetune", "train", "observe", "decode")


@dataclass(frozen=True)
class Recipe:
    """Everything that makes a run; `folder` is where its relative paths start.

    Where the model is to come from a base and no family is said, `family` is "" and `model` the keys that are given:
    `regard.base.settled` puts in what the base has.
    """

    run: str
    task_name: str
    task: Any  # the Config of the task's file
    data: DataConfig
    tokenizer: TokenizerConfig
    family: str
    model: Any  # the Config of the family's file
    finetune: FinetuneConfig
    train: TrainConfig
    observe: ObserveConfig
    decode: DecodeConfig
    folder: Path

    def to_toml(self) -> str:
        """The recipe with every key written out."""
        return to_toml(
            {
                "run": self.run,
                "task": {"name": self.task_name, **to_table(self.task)},
                "data": to_table(self.data),
                "tokenizer": to_table(self.tokenizer),
                "model": {"family": self.family, **to_table(self.model)} if self.family else self.model,
                "finetune": to_table(self.finetune),
                "train": to_table(self.train),
                "observe": to_table(self.observe),
                "decode": to_table(self.decode),
            }
        )


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe file, puts `section.key=value` overrides in, and validates all of it."""
    path = find(path)
    table = override(read_toml(path), overrides)
    return parse(table, where=str(path), folder=path.parent)


def parse(table: dict[str, Any], *, where: str, folder: Path, trains: bool = True) -> Recipe:
    """Validates a recipe's table; one that does not train need not say on what."""
    from regard import tasks
    from regard.data.config import DataConfig
    from regard.data.tokenizers import TokenizerConfig
    from regard.decode.config import DecodeConfig
    from regard.train.config import TrainConfig
    from regard.train.finetune import FinetuneConfig
    from regard.train.observe import ObserveConfig

    for name in table:
        if name not in (*SECTIONS, "run"):
            near = nearest(name, [*SECTIONS, "run"])
            remedy = f'did you mean "{near}"?' if near else None
            raise ConfigError(
                f'unknown key "{name}"', got=name, wanted=", ".join(["run", *SECTIONS]), where=where, remedy=remedy
            )
    sections = {name: table.get(name, {}) for name in SECTIONS}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise ConfigError(f'"{name}" must be a section', got=section, wanted=f"[{name}]", where=where)
    task_table, model_table = dict(sections["task"]), dict(sections["model"])
    task_name = _name(task_table, "name", "translation", "task", where)
    finetune = read_section(FinetuneConfig, sections["finetune"], where=where, name="finetune")
    unsettled = bool(finetune.base) and "family" not in model_table
    family = "" if unsettled else _name(model_table, "family", "transformer", "model", where)
    with said_where(where):
        task_file = tasks.task(task_name)
    model = model_table if unsettled else read_model(family, model_table, task_file.KIND, where)
    run = table.get("run", f"runs/{Path(where).stem}")
    if not isinstance(run, str) or not run:
        raise ConfigError('"run" must name a folder', got=run, wanted='for example "runs/mine"', where=where)
    data = read_section(DataConfig, sections["data"], where=where, name="data")
    with said_where(f"[data] in {where}"):
        if getattr(task_file, "OWN_FILES", False):
            data.refuse_files(task_name)
        elif trains:
            data.need_files()
        if data.train_share < 1:
            tasks.need(task_name, "train_share", "data.train_share")
    decode = read_section(DecodeConfig, sections["decode"], where=where, name="decode")
    if task_file.KIND != "encoder":
        with said_where(f"[decode] in {where}"):
            decode.need_outputs()
    tokenizer = read_section(TokenizerConfig, sections["tokenizer"], where=where, name="tokenizer")
    train = read_section(TrainConfig, sections["train"], where=where, name="train")
    if trains:
        with said_where(where):
            tasks.refuse_unused(task_name, {"data": data, "tokenizer": tokenizer, "train": train})
    return Recipe(
        run=run,
        task_name=task_name,
        task=read_section(task_file.Config, task_table, where=where, name="task"),
        data=data,
        tokenizer=tokenizer,
        family=family,
        model=model,
        finetune=finetune,
        train=train,
        observe=read_section(ObserveConfig, sections["observe"], where=where, name="observe"),
        decode=decode,
        folder=folder,
    )


def read_model(family: str, table: dict[str, Any], kind: str, where: str) -> Any:
    """The Config of a `[model]` section without its `family`, which must be of this kind."""
    from regard import models

    with said_where(where):
        config = models.family(family, kind).Config
        table = models.with_preset(family, table)
    return read_section(config, table, where=where, name="model")


def shipped() -> list[Path]:
    """The recipes that came with the package, by name."""
    here = Path(__file__).parent
    for folder in (here / "recipes", here.parents[1] / "recipes"):  # a wheel, or a checkout
        if folder.is_dir():
            return sorted(folder.glob("*.toml"))
    return []


def find(name: str | Path) -> Path:
    """A recipe by path, or by the name of a shipped one."""
    path = Path(name)
    if path.is_file():
        return path
    known = {recipe.stem: recipe for recipe in shipped()}
    if str(name) in known:
        return known[str(name)]
    near = nearest(path.stem, known)
    remedy = f'did you mean "{near}"?' if near else "`regard recipes` lists the ones that came with regard"
    raise ConfigError("no such recipe", got=str(name), wanted="a .toml file or a recipe's name", remedy=remedy)


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The keys that differ among those that a run cannot change once it began: task, data, tokenizer, model, base."""
    names = {"task.name": (old.task_name, new.task_name), "model.family": (old.family, new.family)}
    found = [name for name, (before, after) in names.items() if before != after]
    for section in ("task", "data", "tokenizer", "model", "finetune"):
        before, after = getattr(old, section), getattr(new, section)
        if type(before) is type(after):  # sections of two families have no keys to compare
            fixed = [field.name for field in dataclasses.fields(before) if not field.metadata.get("may_change")]
            found += [f"{section}.{name}" for name in fixed if getattr(before, name) != getattr(after, name)]
    return found


@contextlib.contextmanager
def said_where(where: str) -> Iterator[None]:
    """Adds the recipe to an error that does not say where it is."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            error.what, got=error.got, wanted=error.wanted, where=error.where or where, remedy=error.remedy
        ) from None


def _name(table: dict[str, Any], field: str, default: str, section: str, where: str) -> str:
    name = table.pop(field, default)
    if not isinstance(name, str):
        raise ConfigError(
            f'"{section}.{field}" must be a name', got=name, wanted=f'for example "{default}"', where=where
        )
    return name
