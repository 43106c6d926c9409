"""Pre-training objectives by name, or composed of tasks. numpy only."""

from collections.abc import Mapping
from typing import Any

from megaptm.errors import UserError, nearest
from megaptm.objectives.compose import compose
from megaptm.objectives.composed import Composed, Task
from megaptm.objectives.objective import BaseObjective, Objective, SampleObjective, weights_at
from megaptm.objectives.registry import OBJECTIVES, TASKS
from megaptm.objectives.text_questions import QUESTIONS
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import describe_error, is_plugin, load_plugin
from megaptm.suggest import suggest

__all__ = [
    "OBJECTIVES",
    "BaseObjective",
    "Composed",
    "Objective",
    "SampleObjective",
    "SpecialTokens",
    "Task",
    "objective_of",
    "weights_at",
]


def objective_of(said: str | Mapping[str, Any]) -> BaseObjective:
    """Return an objective by name, a custom one (`package.module:NAME`), or a composed one (see `compose`)."""
    if isinstance(said, Mapping):
        return compose(said)
    if not isinstance(said, str):
        raise UserError(f"objective must be a name, or a mapping of tasks to their options, not {said!r}.")
    if not is_plugin(said):
        if said not in OBJECTIVES:
            raise UserError(f"objective ({said}) {_remedy(said)}")
        return OBJECTIVES[said]
    found = load_plugin(said, "objective", "objective")
    if isinstance(found, type) and issubclass(found, BaseObjective):
        try:
            return found()
        except UserError as error:
            raise UserError(f"objective: `{said}`: {error}") from None
        except Exception as error:  # abstract class, options without default, or a bug
            raise UserError(f"objective: `{said}` cannot be made ({describe_error(error)}): fix it.") from None
    if not isinstance(found, BaseObjective):
        raise UserError(f"objective: `{said}` is not a `megaptm.objectives.Objective`: correct the name.")
    return found


def _remedy(said: str) -> str:
    """Explain a name that is no objective, for instance the name of a task or question."""
    if said in TASKS:
        return f"is a task, and no objective by its name alone: write {{{said}: {{}}}}."
    about = f"masked-lm-{suggest(said, QUESTIONS)}"
    if about in OBJECTIVES:
        return f"is not known; did you mean {about}?"
    if said in QUESTIONS:
        return (
            f"is a question, and no objective by its name alone: ask it of what is hidden, {{masked-lm: {{}}, {said}: "
            f"{{}}}}, or of whole texts, {{texts: {{task: {said}}}}}."
        )
    known = f"there are {', '.join(OBJECTIVES)}."
    return f"is not known; {nearest(said, [*OBJECTIVES, *TASKS, *QUESTIONS], known)}"
