"""Pre-training tasks by name: what is hidden, what is shown, what is asked. numpy only."""

from megaptm.errors import UserError
from megaptm.objectives.causal import CausalLM
from megaptm.objectives.masked import MaskedLM, MaskedLMNextSentence
from megaptm.objectives.objective import Objective
from megaptm.objectives.spans import SpanCorruption
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.objectives.whole_words import MaskedLMWholeWord
from megaptm.plugins import is_plugin, load_plugin

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (CausalLM(), MaskedLM(), MaskedLMWholeWord(), MaskedLMNextSentence(), SpanCorruption())
}

__all__ = ["OBJECTIVES", "Objective", "SpecialTokens", "objective_of"]


def objective_of(name: str) -> Objective:
    """An objective by its name, or the user's own, `package.module:NAME`."""
    if not is_plugin(name):
        return OBJECTIVES[name]
    found = load_plugin(name, "objective", "objective")
    if not isinstance(found, Objective):
        raise UserError(f"objective: `{name}` is not a `megaptm.objectives.Objective`: correct the name.")
    return found
