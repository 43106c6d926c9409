"""Difference table of gradient-disentangled embedding sharing (DeBERTa-v3, arXiv:2111.09543, section 3.3)."""

from __future__ import annotations

from megaptm.errors import UserError
from megaptm.families.deberta.spec import DifferenceInput
from megaptm.layers.split import Embedding
from megaptm.models.embed import own_token_table
from megaptm.spec import ModelSpec


def difference_table(spec: ModelSpec, record: DifferenceInput) -> Embedding:
    """Return the difference table of DeBERTa-v3's discriminator. Raise `UserError` if the family has other tables."""
    family = spec.family
    if (
        family.segments
        or any(other.reads_positions for other in family.inputs)
        or family.stacks[record.stack].position == "learned"
    ):
        raise UserError(
            f"{family.name}: inputs has DifferenceInput(), which only token tables support; remove segments and "
            "learned positions, or the input."
        )
    return own_token_table(spec, record)
