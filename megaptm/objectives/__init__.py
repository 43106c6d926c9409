"""Pre-training tasks by name, or composed: what is hidden, what is shown, what is asked. numpy only."""

from collections.abc import Mapping
from typing import Any

from megaptm.errors import UserError, nearest
from megaptm.objectives.causal import CausalLM
from megaptm.objectives.compose import Composed, Task, compose
from megaptm.objectives.denoising import Denoising
from megaptm.objectives.masked import MaskedLM, MaskedLMOnPairs
from megaptm.objectives.mixtures import ERNIE_2, UNILM
from megaptm.objectives.objective import Objective, weights_at
from megaptm.objectives.replaced import ReplacedTokens
from megaptm.objectives.restored import Deshuffling, DroppedTokens, MaskedText, PrefixLM
from megaptm.objectives.span_boundary import SpanBoundary
from megaptm.objectives.spans import SpanCorruption
from megaptm.objectives.text_to_text import TextToText
from megaptm.objectives.translation import Translation
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import in_words, is_plugin, load_plugin

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        CausalLM(),
        MaskedLM(),
        MaskedLM(hide="whole-words"),
        MaskedLMOnPairs("next-sentence"),
        MaskedLMOnPairs("sentence-order"),
        MaskedLMOnPairs("next-sentence", MaskedLM(hide="whole-words")),
        MaskedLMOnPairs("sentence-order", MaskedLM(hide="ngrams")),
        MaskedLMOnPairs("sentence-order", MaskedLM(hide="ngrams", lengths=(0.4, 0.3, 0.2, 0.1), show="similar-words")),
        MaskedLMOnPairs("next-sentence", MaskedLM(hide="independent", units="tokens")),
        SpanBoundary(),
        SpanCorruption(),
        TextToText(),
        SpanCorruption(hide="tokens"),
        PrefixLM(),
        MaskedText(),
        MaskedText(mask=1.0, random=0.0),
        MaskedText(mask=0.8, random=0.1, ask="hidden"),
        MaskedText(rate=0.5, mask=0.8, random=0.1, hide="span", ask="hidden"),
        Deshuffling(),
        DroppedTokens(),
        Denoising(),
        Denoising(hide="whole-words", mean=3.5, random=0.1),
        ReplacedTokens(),
        Translation(),
        UNILM,
        ERNIE_2,
    )
}
"""Those with a name of their own."""

__all__ = ["OBJECTIVES", "Composed", "Objective", "SpecialTokens", "Task", "objective_of", "weights_at"]


def objective_of(said: str | Mapping[str, Any]) -> Objective:
    """An objective by its name, or the user's own, `package.module:NAME`; or composed, as `compose` says."""
    if isinstance(said, Mapping):
        return compose(said)
    if not isinstance(said, str):
        raise UserError(f"objective must be a name, or a mapping of tasks to their options, not {said!r}.")
    if not is_plugin(said):
        if said not in OBJECTIVES:
            raise UserError(f"objective ({said}) is not known; {nearest(said, OBJECTIVES)}")
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
