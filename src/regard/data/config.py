"""The `[data]` section of a recipe, and the files that it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.config import key
from regard.data import catalogue
from regard.data.readers import OnBadLine, data_suffix, require_file
from regard.data.store import TooLong
from regard.errors import DataError, require

SPLITS = ("train", "val", "test")
FILE_KEYS = ("set", "train", "val", "val_share", "test")


@dataclass(frozen=True)
class DataConfig:
    """Which files are read, and what is done with lines that are bad or too long."""

    set: str = key("", 'a set of the catalogue, in whose folder the files lie; "" = files of your own')
    train: tuple[str, ...] = key((), "one .tsv or .jsonl, or two parallel text files; of stories a .txt for each kind")
    val: tuple[str, ...] = key((), "the same for validation")
    val_share: float = key(0.0, "share of the training files that is held out for validation, where val names none")
    train_share: float = key(1.0, "share of the training examples that is used, by their texts: 0.1 is a part of 0.2")
    test: tuple[str, ...] = key((), "the same for the test; may be left out", may_change=True)
    on_bad_line: OnBadLine = key("error", "error, or skip: leave bad lines out, count and name them")
    max_length: int = key(256, "tokens a side may have")
    too_long: TooLong = key("error", "what is done with longer ones: error, truncate or drop")

    def __post_init__(self) -> None:
        for split in SPLITS if self.train else ():
            files = self.files(split)
            most = len(files) if all(data_suffix(Path(name)) == ".txt" for name in files) else 2
            fewest = 0 if split == "test" or (split == "val" and self.val_share) else 1
            require(
                fewest <= len(files) <= most and all(files),
                f"data.{split} does not name its files",
                got=list(files),
                wanted="one .tsv or .jsonl file, or two parallel text files; of stories any number of .txt"
                + ("; of running or labelled text also data.val_share" if split == "val" else ""),
            )
        held_out = f"data.val_share ({self.val_share}) is not a share that can be held out"
        require(0 <= self.val_share < 1, held_out, got=self.val_share, wanted="0 <= x < 1")
        used = f"data.train_share ({self.train_share}) is not a share that can be learned from"
        require(0 < self.train_share <= 1, used, got=self.train_share, wanted="0 < x <= 1")
        both = bool(self.val and self.val_share)
        require(not both, "validation has files and a share of the training files", got="both", wanted="one of them")
        require(self.max_length > 0, "data.max_length must be positive", got=self.max_length, wanted="1 or more")

    def need_files(self) -> None:
        """Raises where nothing is named to train on."""
        wanted = "one .tsv or .jsonl file, or two parallel text files"
        require(bool(self.train), "data.train does not name its files", got=[], wanted=wanted)

    def refuse_files(self, task: str) -> None:
        """Raises where something is named that a task does not read, as its parts name their own files."""
        named = [name for name in FILE_KEYS if getattr(self, name)]
        remedy = f"move {', '.join(named)} into [[task.parts]]"
        require(not named, f"the parts of {task} name the files", got=named, wanted="none in [data]", remedy=remedy)

    def files(self, split: str) -> tuple[str, ...]:
        """The names that the recipe gives for a split."""
        return {"train": self.train, "val": self.val, "test": self.test}[split]


def resolve(config: DataConfig, base: Path, splits: Sequence[str] = SPLITS) -> dict[str, tuple[Path, ...]]:
    """The files of the splits that have any: in the set's folder; or beside the recipe (`base`), or else right here."""
    folders = [catalogue.get(config.set)] if config.set else [base, Path.cwd()]
    return {
        split: tuple(_find(name, folders, f"data.{split}") for name in config.files(split))
        for split in splits
        if config.files(split)
    }


def _find(name: str, folders: list[Path], where: str) -> Path:
    path = Path(name).expanduser()
    places = list(dict.fromkeys(folder / path for folder in folders))  # an absolute path stays what it is
    for place in places:
        if place.is_file():
            return place
    try:
        require_file(places[0])
    except DataError as error:
        others = [str(place) for place in places[1:]]
        wanted = error.wanted or (f"the file there, or {' or '.join(others)}" if others else None)
        raise DataError(error.what, got=error.got, wanted=wanted, where=where, remedy=error.remedy) from None
    return places[0]
