"""From a user's files to a recipe that is fitted to them: what is in them, what follows, and the recipe's text."""

from __future__ import annotations

from collections.abc import Callable

from regard.errors import ConfigError
from regard.fitting.choices import Choices
from regard.fitting.encoders import (
    fit_answers,
    fit_facts,
    fit_labels,
    fit_relations,
    fit_sentences,
    fit_stories,
    fit_tags,
)
from regard.fitting.objectives import fit_masked, fit_permutation, fit_spans
from regard.fitting.pairs import fit, fit_dialogue, fit_part, fit_summaries
from regard.fitting.profile import Profile
from regard.fitting.running import fit_text
from regard.tasks import task as find_task

FITTED: dict[str, Callable[[Profile], Choices]] = {
    "classification": fit_labels,
    "dialogue": fit_dialogue,
    "extractive-summarization": fit_sentences,
    "language-modeling": fit_text,
    "link-prediction": fit_facts,
    "masked-language-modeling": fit_masked,
    "permutation-language-modeling": fit_permutation,
    "question-answering": fit_answers,
    "relation": fit_relations,
    "span-corruption": fit_spans,
    "story-question-answering": fit_stories,
    "summarization": fit_summaries,
    "tagging": fit_tags,
    "text-to-text": fit_part,
    "translation": fit,
}


def fitter(task: str) -> Callable[[Profile], Choices]:
    """What chooses the keys of a recipe for this task; an unknown name gives the nearest known one."""
    find_task(task)
    if task not in FITTED:  # vectors, of which nothing is trained
        remedy = "regard convert FOLDER RUN takes an encoder that was trained elsewhere; then regard predict RUN FILE"
        raise ConfigError("nothing is trained in this task", got=task, wanted=", ".join(FITTED), remedy=remedy)
    return FITTED[task]
