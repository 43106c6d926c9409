"""Costs of the heads of ELMo."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.errors import UserError
from megaptm.layers.costs import LinearShape
from megaptm.losses.token_costs import LossBytes
from megaptm.models.head_costs import HeadCosts
from megaptm.spec import ModelSpec


class BidirectionalHeadCosts(HeadCosts):
    """Costs of ELMo's bidirectional language model head (arXiv:1802.05365, 3.1). It predicts the next token in each
    direction from a stack of its own, with a shared table and bias. Papers do not count its parameters."""

    name = "bidirectional-lm"
    module = "megaptm.families.elmo.head_modules:BidirectionalHead"
    next_token = True
    samples_negatives = True

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        if len(self.head_inputs) != 2 or spec.family.output.tied:
            raise UserError(
                f"{spec.name}: the {self.name} head reads two stacks, by a table of its own: give it two in `reads`, "
                "and output.tied=False."
            )

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {}

    @property
    def rows(self) -> int:
        return self.spec.size.table_width + 1

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Return the projections of ELMo's head on the vocabulary in both directions; on sampled tokens if the family
        has `negatives`."""
        words = self.spec.family.loss.negatives or self.spec.vocabulary
        return [(self.spec.size.table_width, words)] * 2

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, logit_bytes: int | None) -> LossBytes:
        """Return the bytes of the loss of ELMo's head. With sampled tokens: logits, two float32 copies of them, and
        vectors of labels and samples."""
        if not (num_negatives := self.spec.family.loss.negatives):
            return super().loss_bytes(2 * positions, element, tensor=tensor, logit_bytes=logit_bytes)
        width = self.spec.size.table_width
        return LossBytes(
            2 * positions * (num_negatives * (element + 8) + 3 * width * element) + 2 * num_negatives * width * element
        )


HEADS = (BidirectionalHeadCosts,)
