"""Task classes for composed objectives, and named objectives."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.families import Registry, contributions
from megaptm.objectives.causal import CausalLM
from megaptm.objectives.masked import MaskedLM, MaskedLMWithQuestion
from megaptm.objectives.objective import BaseObjective
from megaptm.objectives.spans import SpanCorruption
from megaptm.objectives.text_to_text import TextToText
from megaptm.objectives.translation import Translation
from megaptm.objectives.translation_lm import TranslationLM

_TASKS: dict[str, type[BaseObjective]] = {
    "causal-lm": CausalLM,
    "masked-lm": MaskedLM,
    "span-corruption": SpanCorruption,
    "text-to-text": TextToText,
    "translation": Translation,
    "translation-lm": TranslationLM,
}
_OBJECTIVES: dict[str, BaseObjective] = {
    objective.name: objective
    for objective in (
        CausalLM(),
        MaskedLM(),
        MaskedLM(hide="whole-words"),
        MaskedLMWithQuestion("next-sentence"),
        MaskedLMWithQuestion("sentence-order"),
        MaskedLMWithQuestion("next-sentence", MaskedLM(hide="whole-words")),
        MaskedLMWithQuestion("sentence-order", MaskedLM(hide="ngrams")),
        SpanCorruption(),
        TextToText(),
        SpanCorruption(hide="tokens"),
        Translation(),
        TranslationLM(),
    )
}


def _contributed_tasks() -> Iterator[tuple[str, type[BaseObjective]]]:
    for tasks in contributions("objectives", "TASKS"):
        yield from tasks.items()


def _contributed_objectives() -> Iterator[tuple[str, BaseObjective]]:
    for objectives in contributions("objectives", "OBJECTIVES"):
        yield from ((objective.name, objective) for objective in objectives)


TASKS: Registry[type[BaseObjective]] = Registry(_TASKS, _contributed_tasks)
"""Classes of the tasks that a config can combine to an objective, by name."""
OBJECTIVES: Registry[BaseObjective] = Registry(_OBJECTIVES, _contributed_objectives)
"""Objectives that a config can select by name, each a task or a named mixture."""
