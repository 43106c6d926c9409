"""Uses of a trained model besides vectors, by the inputs of its heads and the prompts of its objective."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from megaptm.objectives.objective import Prompt
from megaptm.spec import ModelSpec

Use = Literal["generate", "fill", "guess"]
"""Use of a trained model: continue a text; answer a text or fill its gaps; predict masked tokens."""


def list_uses(spec: ModelSpec, prompts: Collection[Prompt]) -> tuple[Use, ...]:
    """Return the uses of a model trained with such prompts, the usual use first. A model without any use only computes
    vectors."""
    family, holes = spec.family, [kind for kind in prompts if kind != "text"]
    result: list[Use] = []
    if "lm" in family.heads:
        decoder = family.stacks[spec.head_inputs("lm")[0].stack]
        if decoder.cross is not None:
            result.append("fill")
        elif decoder.causal:
            # A decoder-only model trained on joined sequences (`EncoderDecoder.joined`) may know gaps only.
            result += ["generate"] if "text" in prompts or not holes else []
            result += ["fill"] if holes else []
    if "mlm" in family.heads and {*family.prefixes.values()} == {""}:
        result.append("guess")
    return (*result,)
