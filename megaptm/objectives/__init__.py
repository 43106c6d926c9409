"""Pre-training tasks by name: what is hidden, what is shown, what is asked. numpy only."""

from megaptm.objectives.causal import CausalLM
from megaptm.objectives.masked import MaskedLM, MaskedLMNextSentence
from megaptm.objectives.objective import Objective
from megaptm.objectives.spans import SpanCorruption
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.objectives.whole_words import MaskedLMWholeWord

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (CausalLM(), MaskedLM(), MaskedLMWholeWord(), MaskedLMNextSentence(), SpanCorruption())
}

__all__ = ["OBJECTIVES", "Objective", "SpecialTokens"]
