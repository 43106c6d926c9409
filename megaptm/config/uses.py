"""What a trained model can be asked, beside vectors: by what its heads read, and what its objective showed it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from megaptm.objectives.objective import Prompt
from megaptm.spec import ModelSpec

Use = Literal["generate", "fill", "guess"]
"""To go on after a text; to answer one, or fill its holes; to guess what is behind its masks."""


def uses(spec: ModelSpec, prompts: Collection[Prompt]) -> tuple[Use, ...]:
    """Those of a model that learned from such prompts, the usual one first; none: it gives vectors alone."""
    family, holes = spec.family, [kind for kind in prompts if kind != "text"]
    found: list[Use] = []
    if "lm" in family.heads:
        speaker = family.stacks[spec.readings("lm")[0].stack]
        if speaker.cross is not None:
            found.append("fill")
        elif speaker.causal:
            # A decoder alone that read and answered in one row (`EncoderDecoder.joined`) may have seen holes only.
            found += ["generate"] if "text" in prompts or not holes else []
            found += ["fill"] if holes else []
    if "mlm" in family.heads and {*family.prefixes.values()} == {""}:
        found.append("guess")
    return (*found,)
