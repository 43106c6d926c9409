"""Families whose attention has another direction than published: a decoder as an encoder, and back."""

from __future__ import annotations

from megaptm.spec.block import SCORE_BIASES
from megaptm.spec.family import Family, change

HEADS = {True: "lm", False: "mlm"}
"""Whether a stack is causal -> its head, which predicts the next token or masked tokens."""
OBJECTIVES = {"lm": "causal-lm", "mlm": "masked-lm"}
"""Head -> its objective."""


def can_change_direction(family: Family) -> bool:
    """Whether the attention of a family can have the other direction: it has one stack, attends to one side or both,
    and predicts tokens."""
    [block, *further] = family.stacks.values()
    return (
        not further
        and block.layer is None
        and not block.ordered
        and block.position not in SCORE_BIASES
        and HEADS[block.causal] in family.heads
    )


def with_direction(family: Family, *, causal: bool) -> Family:
    """Return the family with attention to one side or both, and the head that fits. The head keeps its layers."""
    [(stack, block)] = family.stacks.items()
    if block.causal is causal:
        return family
    head = HEADS[causal]
    return change(
        family,
        stacks={stack: change(block, visibility="causal" if causal else "full")},
        heads=(head,),
        objectives=(OBJECTIVES[head],),
    )
