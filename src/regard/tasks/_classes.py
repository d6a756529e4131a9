"""The labels of a classification, as a run keeps them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from regard.config import nearest
from regard.errors import ConfigError, DataError, RunError
from regard.files import put_text
from regard.types import Example


@dataclass(frozen=True)
class Classes:
    """The labels in their order, what was seen of them in training, and how probabilities are calibrated."""

    labels: tuple[str, ...]
    counts: tuple[int, ...]  # training examples of each
    examples: int  # of training
    temperature: float = 1.0

    @classmethod
    def of(cls, examples: Sequence[Example], others: Iterable[Example] = ()) -> Classes:
        """The labels of a training split, numbers in the order of their size; rare ones may be in others alone."""
        counts = Counter(label for example in examples for label in example.targets)
        found = {*counts, *(label for example in others for label in example.targets)}
        labels = sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
        return cls(tuple(labels), tuple(counts[label] for label in labels), len(examples))

    @classmethod
    def load(cls, path: Path) -> Classes:
        """Reads what `save` wrote."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls(tuple(found["labels"]), tuple(found["counts"]), found["examples"], float(found["temperature"]))
        except (OSError, ValueError, TypeError, KeyError) as error:
            remedy = "copy the run again, or train it again"
            raise RunError("the labels cannot be read", got=repr(error), where=path, remedy=remedy) from None

    def save(self, path: Path) -> None:
        """Writes the labels as JSON, whole or not at all."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"
        try:
            put_text(path, text)
        except OSError as error:
            raise DataError("the labels cannot be written", got=error.strerror or error, where=path) from None

    def parted(self, text: str) -> list[str]:
        """The labels of a text that has commas between them; a label may hold one itself.

        >>> Classes(("a", "US, the"), (1, 1), 2).parted("US, the, a")
        ['US, the', 'a']
        """
        pieces, found = text.split(","), list[str]()
        while pieces:
            whole = (n for n in range(len(pieces), 1, -1) if ",".join(pieces[:n]).strip() in self.labels)
            number = next(whole, 1)
            found.append(",".join(pieces[:number]).strip())
            del pieces[:number]
        return [name for name in found if name]

    def ids(self, labels: Sequence[str]) -> list[int]:
        """The place of each label."""
        for label in labels:
            if label not in self.labels:
                near, wanted = nearest(label, self.labels), ", ".join(self.labels)
                remedy = f'did you mean "{near}"?' if near else None
                raise ConfigError("no such label", got=label, wanted=wanted, remedy=remedy)
        return [self.labels.index(label) for label in labels]
