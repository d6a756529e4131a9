"""From a user's files to a recipe that is fitted to them: what is in them, what follows, and the recipe's text."""

from __future__ import annotations

from collections.abc import Callable

from regard.errors import ConfigError
from regard.fitting.choices import Choices
from regard.fitting.encoders import fit_answers, fit_facts, fit_labels, fit_relations, fit_sentences, fit_tags
from regard.fitting.pairs import fit, fit_dialogue, fit_summaries
from regard.fitting.profile import Profile
from regard.fitting.running import fit_text
from regard.tasks import task as find_task

FITTED: dict[str, Callable[[Profile], Choices]] = {
    "classification": fit_labels,
    "dialogue": fit_dialogue,
    "extractive-summarization": fit_sentences,
    "language-modeling": fit_text,
    "link-prediction": fit_facts,
    "question-answering": fit_answers,
    "relation": fit_relations,
    "summarization": fit_summaries,
    "tagging": fit_tags,
    "translation": fit,
}


def fitter(task: str) -> Callable[[Profile], Choices]:
    """What chooses the keys of a recipe for this task; an unknown name gives the nearest known one."""
    find_task(task)
    if task not in FITTED:
        remedy = "begin with one that came with regard (`regard recipes`); docs/recipes.md explains every key"
        raise ConfigError("no recipe is fitted for this task", got=task, wanted=", ".join(FITTED), remedy=remedy)
    return FITTED[task]
