"""Stories: every answer is what a second reading of the lines gives; nothing is told by the question alone."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from regard.data import stories
from regard.data.babi import StoryQuestion, read_stories
from regard.data.catalogue import get

SIZES = {"train": 400, "val": 40, "test": 80}
PLACE = re.compile(r"(\w+) (?:walked to|hurried to|went over to|strolled to) the (\w+)\.")
TAKE = re.compile(r"(\w+) (?:picked up|took|collected) the (\w+)\.")
LEAVE = re.compile(r"(\w+) (?:put down|left behind|let go of) the (\w+)\.")
NUMBERS = {"none": 0, "one": 1, "two": 2, "three": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stories")
    stories.write_stories(place, sizes=SIZES)
    return place


def questions(folder: Path, kind: str, split: str = "train") -> list[StoryQuestion]:
    return list(read_stories([folder / f"{kind}_{split}.txt"]))


class Read(NamedTuple):
    """What a reader of a story knows after its last sentence, written down anew for each question."""

    at: dict[str, str]
    holds: dict[str, set[str]]
    lies: dict[str, str]
    trail: dict[str, list[str]]


def understand(sentences: tuple[str, ...]) -> Read:
    at: dict[str, str] = {}
    holds: dict[str, set[str]] = defaultdict(set)
    lies: dict[str, str] = {}
    trail: dict[str, list[str]] = defaultdict(list)
    for sentence in sentences:
        if found := PLACE.fullmatch(sentence):
            at[found[1]] = found[2]
            for thing in holds[found[1]]:
                trail[thing].append(found[2])
        elif found := TAKE.fullmatch(sentence):
            who, thing = found.groups()
            assert all(thing not in held for held in holds.values()), "taken from somebody's hands"
            assert lies.pop(thing, at[who]) == at[who], "taken from far away"
            holds[who].add(thing)
            trail[thing] = trail[thing] or [at[who]]
        else:
            who, thing = LEAVE.fullmatch(sentence).groups()  # type: ignore[union-attr]
            holds[who].remove(thing)
            lies[thing] = at[who]
    return Read(at, holds, lies, trail)


def answer(asked: StoryQuestion) -> str:
    known, words = understand(asked.sentences), re.findall(r"\w+", asked.question)
    if words[0] == "Is":
        return "yes" if known.at[words[1]] == words[-1] else "no"
    if words[0] == "How":
        number = len(known.holds[words[4]])
        return next(word for word, value in NUMBERS.items() if value == number)
    if words[0] == "What":
        return ",".join(sorted(known.holds[words[2]])) or "nothing"
    if words[1] == "was":
        trail = known.trail[words[3]]
        (visit,) = (i for i, place in enumerate(trail) if place == words[-1])
        return trail[visit - 1]
    if words[2] == "the":
        holder = next((who for who, things in known.holds.items() if words[3] in things), None)
        return known.lies[words[3]] if holder is None else known.at[holder]
    return known.at[words[2]]


@pytest.mark.parametrize("kind", stories.KINDS)
def test_every_answer_is_what_the_story_says(folder: Path, kind: str) -> None:
    found = questions(folder, kind)
    assert len(found) == SIZES["train"]
    assert [each.answer for each in found] == [answer(each) for each in found]


@pytest.mark.parametrize("kind", ["one-fact", "two-facts", "three-facts", "counting", "lists"])
def test_the_facts_alone_give_the_same_answer(folder: Path, kind: str) -> None:
    """What is named as facts is enough: where people stand and things lie is not asked twice."""
    number = {"one-fact": 1, "two-facts": 2, "three-facts": 3}.get(kind)
    for asked in questions(folder, kind):
        facts = [asked.sentences[i] for i in asked.facts]
        assert number is None or len(set(facts)) == number or len(asked.facts) == number
        if number is not None:
            assert any(asked.answer in fact for fact in facts)
        else:
            who = re.findall(r"[A-Z]\w+", asked.question)[-1]
            assert all(fact.startswith(who) for fact in facts)
            held = sorted(found[2] for fact in facts if (found := TAKE.fullmatch(fact)))
            assert asked.answer == (",".join(held) or "nothing" if kind == "lists" else stories.NUMBERS[len(held)])


@pytest.mark.parametrize("kind", stories.KINDS)
def test_no_story_is_in_two_splits(folder: Path, kind: str) -> None:
    whole = {}
    for split in SIZES:
        text = (folder / f"{kind}_{split}.txt").read_text()
        whole[split] = re.split(r"^(?=1 )", text, flags=re.MULTILINE)[1:]
    assert {split: len(each) for split, each in whole.items()} == {"train": 100, "val": 10, "test": 20}
    everything = [story for each in whole.values() for story in each]
    assert len(set(everything)) == len(everything)


def test_a_story_that_was_seen_is_not_told_again() -> None:
    seen: set[str] = set()
    kind = stories.KINDS["one-fact"]
    first, second = (stories.new_story(kind, random.Random(1), seen) for _ in range(2))
    assert first != second
    assert seen == {first, second}


@pytest.mark.parametrize(("kind", "most"), [("one-fact", 25), ("two-facts", 30), ("three-facts", 30), ("yes-no", 60)])
def test_a_question_does_not_tell_its_answer(folder: Path, kind: str, most: float) -> None:
    """The answer that is the most frequent one of the same question in training is rarely right."""
    usual: dict[str, Counter[str]] = defaultdict(Counter)
    for each in questions(folder, kind):
        usual[each.question][each.answer] += 1
    test = questions(folder, kind, "test")
    right = sum(usual[each.question].most_common(1)[0][0] == each.answer for each in test if usual[each.question])
    assert 100 * right / len(test) < most


def test_numbers_and_lists_are_of_every_size(folder: Path) -> None:
    counts = Counter(each.answer for each in questions(folder, "counting"))
    assert set(counts) == set(NUMBERS)
    assert max(counts.values()) < 0.6 * SIZES["train"]
    sizes = Counter(0 if a == "nothing" else a.count(",") + 1 for a in (e.answer for e in questions(folder, "lists")))
    assert set(sizes) == {0, 1, 2, 3}


def test_the_seed_decides_everything(folder: Path, tmp_path: Path) -> None:
    for name, seed in (("same", stories.SEED), ("other", 7)):
        (tmp_path / name).mkdir()
        stories.write_stories(tmp_path / name, seed=seed, sizes=SIZES)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 18
    assert [(folder / name).read_bytes() == (tmp_path / "same" / name).read_bytes() for name in names] == [True] * 18
    assert [(folder / name).read_bytes() == (tmp_path / "other" / name).read_bytes() for name in names] == [False] * 18


def test_the_catalogue_makes_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"train": 8, "val": 4, "test": 4}
    monkeypatch.setattr(stories, "SIZES", small)
    monkeypatch.setattr(stories.write_stories, "__kwdefaults__", {"seed": stories.SEED, "sizes": small})
    place = get("stories", folder=tmp_path)
    assert place == tmp_path / "stories"
    assert len(questions(place, "lists", "train")) == 8
