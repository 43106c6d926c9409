"""Pre-training objectives by name, or composed of tasks. numpy only."""

from collections.abc import Mapping
from typing import Any

from megaptm.errors import UserError, nearest_name_advice
from megaptm.objectives.compose import compose_objective
from megaptm.objectives.composed import Composed, Task
from megaptm.objectives.objective import BaseObjective, Objective, SampleObjective, loss_weights_at
from megaptm.objectives.registry import OBJECTIVES, TASKS
from megaptm.objectives.text_questions import QUESTIONS
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import describe_error, is_plugin, load_plugin
from megaptm.suggest import suggest_name

__all__ = [
    "OBJECTIVES",
    "BaseObjective",
    "Composed",
    "Objective",
    "SampleObjective",
    "SpecialTokens",
    "Task",
    "build_objective",
    "loss_weights_at",
]


def build_objective(spec: str | Mapping[str, Any]) -> BaseObjective:
    """Build a pre-training objective by name, a custom one (`package.module:NAME`), or a composed one (see
    `compose_objective`)."""
    if isinstance(spec, Mapping):
        return compose_objective(spec)
    if not isinstance(spec, str):
        raise UserError(f"objective must be a name, or a mapping of tasks to their options, not {spec!r}.")
    if not is_plugin(spec):
        if spec not in OBJECTIVES:
            raise UserError(f"objective ({spec}) {_explain_name(spec)}")
        return OBJECTIVES[spec]
    plugin = load_plugin(spec, "objective", "objective")
    if isinstance(plugin, type) and issubclass(plugin, BaseObjective):
        try:
            return plugin()
        except UserError as error:
            raise UserError(f"objective: `{spec}`: {error}") from None
        except Exception as error:  # abstract class, options without default, or a bug
            raise UserError(f"objective: `{spec}` cannot be created ({describe_error(error)}): fix it.") from None
    if not isinstance(plugin, BaseObjective):
        raise UserError(f"objective: `{spec}` is not a `megaptm.objectives.Objective`: correct the name.")
    return plugin


def _explain_name(name: str) -> str:
    """Explain a name in a config that is no objective, for instance the name of a task or question."""
    if name in TASKS:
        return f"is the name of a task: write {{{name}: {{}}}}."
    with_question = f"masked-lm-{suggest_name(name, QUESTIONS)}"
    if with_question in OBJECTIVES:
        return f"is unknown; did you mean {with_question}?"
    if name in QUESTIONS:
        return (
            f"is the name of a question: combine it with masked tokens, {{masked-lm: {{}}, {name}: {{}}}}, or use it "
            f"alone, {{texts: {{task: {name}}}}}."
        )
    known = f"there are {', '.join(OBJECTIVES)}."
    return f"is unknown; {nearest_name_advice(name, [*OBJECTIVES, *TASKS, *QUESTIONS], known)}"
