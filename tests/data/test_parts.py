"""Which examples a split has: shares by the text, nested, and read with mistakes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regard.data.config import DataConfig
from regard.data.noise import Noise
from regard.data.parts import NoisyData, in_split, noise_of, part_of
from regard.errors import ConfigError
from regard.types import Example

ALL = [Example(f"this is the text number {i}", ("x",), f"a:{i}") for i in range(400)]


def texts(name: str, **keys: float) -> list[str]:
    return [example.source for example in in_split(ALL, DataConfig(**keys), name)]  # type: ignore[arg-type]


def test_shares_are_nested_and_follow_from_the_texts() -> None:
    before: set[str] = set()
    for share in (0.1, 0.2, 0.5, 1.0):
        found = set(texts("train", train_share=share, val_share=0.1))
        assert before <= found
        assert found == set(texts("train", train_share=share)) - set(texts("val", val_share=0.1))
        assert 0.7 * share < len(found) / 360 < 1.4 * share
        before = found
    assert texts("train") == [example.source for example in ALL]


def test_a_share_of_training_leaves_the_other_splits_alone() -> None:
    assert texts("val", train_share=0.1, val_share=0.1) == texts("val", val_share=0.1)
    assert texts("test", train_share=0.1, val_share=0.1) == [example.source for example in ALL]


def test_mistakes_come_after_the_choice() -> None:
    clean = DataConfig(val_share=0.2)
    noisy = NoisyData.of(clean, Noise(0.5))
    assert (noise_of(clean), noise_of(noisy)) == (Noise(), Noise(0.5))
    for name in ("train", "val", "test"):
        pairs = list(zip(in_split(ALL, clean, name), in_split(ALL, noisy, name), strict=True))
        assert [a.place for a, _ in pairs] == [b.place for _, b in pairs]
        assert all(b.source == Noise(0.5).text(a.source) and a.targets == b.targets for a, b in pairs)
    own = in_split(ALL[:1], noisy, "test", lambda noise, example: replace(example, source=str(noise)))
    assert [example.source for example in own] == ["noise 0.5"]


def test_every_choice_has_its_own_cache() -> None:
    plain = DataConfig()
    some = [plain, DataConfig(train_share=0.5), DataConfig(val_share=0.1), NoisyData.of(plain, Noise(0.1))]
    some += [NoisyData.of(plain, Noise(0.1, seed=2)), DataConfig(val_share=0.1, train_share=0.5)]
    assert len({str(part_of(data, "train")) for data in some}) == len(some)
    # files that are read whole are the same, whatever split they are
    assert part_of(plain, "train") == part_of(plain, "val") == part_of(DataConfig(train_share=0.5), "test")


@pytest.mark.parametrize("share", [0.0, -1.0, 1.1])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(ConfigError, match=r"data.train_share \(.*\) is not a share that can be learned from"):
        DataConfig(train_share=share)
