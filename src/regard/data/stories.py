"""Stories that the project makes itself, and questions about them: a set to learn to remember with.

People walk about, take things and put them down; the questions are of the kinds of the bAbI tasks (Weston et al. 2015),
with words and templates of our own. Each kind has its files, in bAbI's own format (`regard.data.babi`). What is written
follows from a seed alone. No story of one file is in another of its kind.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PEOPLE = ("Ada", "Boris", "Carla", "Deniz", "Emil")
PLACES = ("attic", "bakery", "cellar", "garden", "harbour", "library", "stable", "workshop")
THINGS = ("apple", "drum", "kite", "lamp", "rope")
WALKED = ("walked to", "hurried to", "went over to", "strolled to")
TOOK = ("picked up", "took", "collected")
LEFT = ("put down", "left behind", "let go of")
NUMBERS = ("none", "one", "two", "three")
MOST_CARRIED = 3
SIZES = {"train": 10000, "val": 1000, "test": 1000}  # questions of each kind
PER_STORY = 4  # questions
SEED = 2015


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, its answer, and the lines that it follows from."""

    question: str
    answer: str
    facts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A thing is carried from one place to another; the lines say who took it, where they were, and where they went."""

    before: str
    after: str
    facts: tuple[int, ...]


class World:
    """Who is where and holds what, and which lines said so."""

    def __init__(self, chance: random.Random, people: Sequence[str], places: Sequence[str], *, things: bool) -> None:
        self.chance, self.people, self.places, self.line = chance, people, places, 0
        self.place: dict[str, str] = {}  # of who has walked
        self.walk: dict[str, int] = {}  # the line that said so
        # what nobody holds; the story says where it was when somebody takes it
        self.lies = {thing: chance.choice(places) for thing in THINGS} if things else {}
        self.holder: dict[str, str] = {}  # of each thing that somebody holds
        self.taken: dict[str, int] = {}  # the line where a thing was last taken
        self.touched: dict[tuple[str, str], int] = {}  # of who and a thing, the last line where they take or leave it
        self.where: dict[str, tuple[int, int]] = {}  # the two lines that say where a thing is now
        self.steps: dict[str, list[Step]] = defaultdict(list)  # of a thing that was carried

    def held_by(self, who: str) -> list[str]:
        return [thing for thing in THINGS if self.holder.get(thing) == who]

    def happen(self) -> str:
        """One more line of the story."""
        self.line += 1
        who = self.chance.choice(self.people)
        near = [thing for thing in THINGS if self.lies.get(thing) == self.place.get(who, "")]
        held = self.held_by(who)
        if near and len(held) < MOST_CARRIED and self.chance.random() < 0.7:
            return self._take(who, self.chance.choice(near))
        if held and self.chance.random() < 0.4:
            return self._leave(who, self.chance.choice(held))
        return self._walk(who)

    def _walk(self, who: str) -> str:
        before = self.place.get(who, "")
        after = self.chance.choice([place for place in self.places if place != before])
        for thing in self.held_by(who):
            self.steps[thing].append(Step(before, after, (self.taken[thing], self.walk[who], self.line)))
            self.where[thing] = (self.taken[thing], self.line)
        self.place[who], self.walk[who] = after, self.line
        return f"{who} {self.chance.choice(WALKED)} the {after}."

    def _take(self, who: str, thing: str) -> str:
        del self.lies[thing]
        self.holder[thing], self.taken[thing] = who, self.line
        self._touch(who, thing)
        return f"{who} {self.chance.choice(TOOK)} the {thing}."

    def _leave(self, who: str, thing: str) -> str:
        del self.holder[thing]
        self.lies[thing] = self.place[who]
        self._touch(who, thing)
        return f"{who} {self.chance.choice(LEFT)} the {thing}."

    def _touch(self, who: str, thing: str) -> None:
        self.touched[who, thing] = self.line
        self.where[thing] = (self.line, self.walk[who])


# --- questions: each gives one that the story so far answers, or None -------------------------------------------------


def one_fact(world: World) -> Asked | None:
    """Where somebody is: the last walk says it."""
    who = world.chance.choice(sorted(world.place))
    return Asked(f"Where is {who}?", world.place[who], (world.walk[who],))


def two_facts(world: World) -> Asked | None:
    """Where a thing is: who took or left it last, and where that was or they went."""
    if not world.where:
        return None
    thing = world.chance.choice(sorted(world.where))
    where = world.place[world.holder[thing]] if thing in world.holder else world.lies[thing]
    return Asked(f"Where is the {thing}?", where, world.where[thing])


def three_facts(world: World) -> Asked | None:
    """Where a thing was before it came to a place: who took it, where that was, and the walk from there."""
    found = []
    for thing, steps in sorted(world.steps.items()):
        visits = Counter([steps[0].before, *(step.after for step in steps)])
        # of a place where it was twice, it would not be clear which time is meant
        found += [(thing, step) for step in steps if visits[step.after] == 1]
    if not found:
        return None
    thing, step = world.chance.choice(found)
    return Asked(f"Where was the {thing} before the {step.after}?", step.before, step.facts)


def counting(world: World) -> Asked | None:
    """How many things somebody carries."""
    who = _who_touched(world)
    if who is None:
        return None
    return Asked(f"How many things does {who} carry?", NUMBERS[len(world.held_by(who))], _touches(world, who))


def lists(world: World) -> Asked | None:
    """What somebody carries, in the order of the alphabet."""
    who = _who_touched(world)
    if who is None:
        return None
    return Asked(f"What does {who} carry?", ",".join(world.held_by(who)) or "nothing", _touches(world, who))


def yes_no(world: World) -> Asked | None:
    """Whether somebody is at a place; as often yes as no."""
    who = world.chance.choice(sorted(world.place))
    there, others = world.place[who], [place for place in world.places if place != world.place[who]]
    yes = world.chance.random() < 0.5
    asked = there if yes else world.chance.choice(others)
    return Asked(f"Is {who} at the {asked}?", "yes" if yes else "no", (world.walk[who],))


def _who_touched(world: World) -> str | None:
    """Somebody who has taken something; each number of things that are carried now is as likely as the others."""
    people: dict[int, list[str]] = defaultdict(list)
    for who in sorted({who for who, _ in world.touched}):
        people[len(world.held_by(who))].append(who)
    return world.chance.choice(people[world.chance.choice(sorted(people))]) if people else None


def _touches(world: World, who: str) -> tuple[int, ...]:
    """Of each thing that somebody ever took, the last line where they take or leave it."""
    return tuple(line for (own, _), line in world.touched.items() if own == who)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of question: how one is asked; how many people and places its stories have, and whether there are things
    in them; how many lines come before a question."""

    ask: Callable[[World], Asked | None]
    people: int
    places: int
    things: bool
    lines: int


KINDS = {
    "one-fact": Kind(one_fact, people=4, places=8, things=False, lines=3),
    "two-facts": Kind(two_facts, people=3, places=6, things=True, lines=4),
    "three-facts": Kind(three_facts, people=3, places=6, things=True, lines=5),
    "counting": Kind(counting, people=3, places=3, things=True, lines=4),
    "lists": Kind(lists, people=3, places=3, things=True, lines=4),
    "yes-no": Kind(yes_no, people=4, places=8, things=False, lines=3),
}


def write_stories(folder: Path, *, seed: int = SEED, sizes: Mapping[str, int] = SIZES) -> None:
    """Writes KIND_train.txt, KIND_val.txt and KIND_test.txt of each kind."""
    for name, kind in KINDS.items():
        chance, seen = random.Random(f"{seed} {name}"), set[str]()
        for split, number in sizes.items():
            stories = [new_story(kind, chance, seen) for _ in range(-(-number // PER_STORY))]
            (folder / f"{name}_{split}.txt").write_text("".join(stories), encoding="utf-8", newline="\n")


def new_story(kind: Kind, chance: random.Random, seen: set[str]) -> str:
    """A story that was not seen before, with its questions, in bAbI's format."""
    while True:
        story = _story(kind, chance)
        if story not in seen:
            seen.add(story)
            return story


def _story(kind: Kind, chance: random.Random) -> str:
    people, places = chance.sample(PEOPLE, kind.people), chance.sample(PLACES, kind.places)
    world, lines = World(chance, people, places, things=kind.things), list[str]()
    asked = since = 0
    while asked < PER_STORY:
        lines.append(f"{world.line + 1} {world.happen()}")
        since += 1
        found = kind.ask(world) if since >= kind.lines else None
        if found is not None:
            world.line += 1
            facts = " ".join(map(str, sorted(found.facts)))
            lines.append(f"{world.line} {found.question}\t{found.answer}\t{facts}")
            asked, since = asked + 1, 0
    return "".join(f"{line}\n" for line in lines)
