"""Pre-training tasks by name, or composed: what is hidden, what is shown, what is asked. numpy only."""

from collections.abc import Mapping
from typing import Any

from megaptm.errors import UserError, nearest
from megaptm.objectives.compose import compose
from megaptm.objectives.composed import Composed, Task
from megaptm.objectives.objective import Objective, weights_at
from megaptm.objectives.registry import OBJECTIVES
from megaptm.objectives.text_questions import QUESTIONS
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import in_words, is_plugin, load_plugin
from megaptm.suggest import suggest

__all__ = ["OBJECTIVES", "Composed", "Objective", "SpecialTokens", "Task", "objective_of", "weights_at"]


def objective_of(said: str | Mapping[str, Any]) -> Objective:
    """An objective by its name, or the user's own, `package.module:NAME`; or composed, as `compose` says."""
    if isinstance(said, Mapping):
        return compose(said)
    if not isinstance(said, str):
        raise UserError(f"objective must be a name, or a mapping of tasks to their options, not {said!r}.")
    if not is_plugin(said):
        if said not in OBJECTIVES:
            about = f"masked-lm-{suggest(said, QUESTIONS)}"  # a question alone is none
            raise UserError(
                f"objective ({said}) is not known; {nearest(about if about in OBJECTIVES else said, OBJECTIVES)}"
            )
        return OBJECTIVES[said]
    found = load_plugin(said, "objective", "objective")
    if isinstance(found, type) and issubclass(found, Objective):
        try:
            return found()
        except UserError as error:
            raise UserError(f"objective: `{said}`: {error}") from None
        except Exception as error:  # abstract, of options that have no default, or with a bug
            raise UserError(f"objective: `{said}` cannot be made ({in_words(error)}): mend it.") from None
    if not isinstance(found, Objective):
        raise UserError(f"objective: `{said}` is not a `megaptm.objectives.Objective`: correct the name.")
    return found
