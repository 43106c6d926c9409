"""Costs of heads, and the batch fields that they require."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

from megaptm.bricks.adaptive import cluster_maps, projections
from megaptm.bricks.brick import LinearShape
from megaptm.bricks.head import ROWS_PROJECTED, HeadBrick, LossBytes, table_gradient_bytes
from megaptm.bricks.layer import norm_parameters
from megaptm.errors import UserError
from megaptm.families import Registry, contributions
from megaptm.plugins import is_plugin
from megaptm.spec import ModelSpec


class LanguageHeadBrick(HeadBrick):
    """Language model head: next token at every position, by the token table or a table of its own."""

    name = "lm"
    next_token = True

    @property
    def maps(self) -> Mapping[str, LinearShape]:
        width, table = self.width, self.table_width
        if self.spec.size.cutoffs:
            return {"narrow": LinearShape(width, table, False)} if cluster_maps(self.spec) else {}
        return {} if table == width else {"narrow": LinearShape(width, table, True)}

    @property
    def other_parameters(self) -> int:
        if not self.spec.size.cutoffs:
            return 0
        # One bias per token, and one row with a bias per cluster after the first.
        return self.spec.vocabulary + len(self.spec.size.cutoffs) * (self.spec.size.table_width + 1)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Return the bytes of all clusters, computed one after the other and replicated on tensor ranks, with the
        gradients of all their tables."""
        if not self.spec.size.cutoffs:
            return super().loss_bytes(positions, element, tensor=tensor, chunked=chunked)
        products = projections(self.spec)
        saved = sum(table_gradient_bytes(positions, inputs, outputs, element) for inputs, outputs in products)
        largest = max(outputs for _, outputs in products)
        hidden = 2 * positions * self.width * element
        return LossBytes(hidden + saved, min(positions, ROWS_PROJECTED) * largest * (element + 4))

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Each cluster projects all positions: see `models.adaptive`."""
        if not self.spec.size.cutoffs:
            return super().projections
        products = projections(self.spec)
        # Projections to the narrower tables' widths.
        maps = [(self.width, width) for width, _ in products[1:]] if cluster_maps(self.spec) else []
        return [*products, *maps]

    @property
    def rows(self) -> int:
        if self.spec.size.cutoffs:
            return 0
        own = 0 if self.spec.family.output.tied else self.table_width
        return own + self.spec.family.output.bias

    @property
    def published(self) -> int:
        return self.parameters


class MaskedHeadBrick(HeadBrick):
    """Masked language model head (BERT): linear layer, norm, token table, one bias per token. Reads only predicted
    positions."""

    name = "mlm"
    predicted_only = True
    rows = 1

    @property
    def maps(self) -> Mapping[str, LinearShape]:
        return {"transform": LinearShape(self.width, self.table_width, True)}

    @property
    def other_parameters(self) -> int:
        return norm_parameters(self.block, self.table_width)


class RowClassHeadBrick(HeadBrick):
    """Base of heads that classify a text or pair of texts, from the first position through BERT's pooler."""

    projects = False
    pooler_published: ClassVar[bool] = False
    """Whether papers count this head's pooler: true for one head of a family."""

    @property
    def maps(self) -> Mapping[str, LinearShape]:
        width = self.width
        return {"pooler": LinearShape(width, width, True), "classify": LinearShape(width, self.classes, True)}

    @property
    def published(self) -> int:
        return self.maps["pooler"].replicated if self.pooler_published else 0

    def mapped(self, positions: int) -> int:
        return 1


class TokenClassHeadBrick(HeadBrick):
    """Base of heads that classify each token."""

    projects = False

    @property
    def maps(self) -> Mapping[str, LinearShape]:
        return {"classify": LinearShape(self.width, self.classes, True)}


class NextSentenceHeadBrick(RowClassHeadBrick):
    """Next sentence prediction: whether the second text follows the first (BERT, arXiv:1810.04805, 3.1)."""

    name = "next-sentence"
    label_field = "next_sentence"
    pooler_published = True


class SentenceOrderHeadBrick(RowClassHeadBrick):
    """Sentence order prediction: whether two segments of a document are in order (ALBERT, arXiv:1909.11942, 3.1)."""

    name = "sentence-order"
    label_field = "sentence_order"
    pooler_published = True


_HEADS: dict[str, type[HeadBrick]] = {
    head.name: head for head in (LanguageHeadBrick, MaskedHeadBrick, NextSentenceHeadBrick, SentenceOrderHeadBrick)
}
HEADS: Registry[type[HeadBrick]] = Registry(
    _HEADS, lambda: ((head.name, head) for heads in contributions("heads", "HEADS") for head in heads)
)
"""Heads by name."""

H = TypeVar("H", bound=type[HeadBrick])


def register_head(head: H) -> H:
    """Register the brick of a user-defined head, so that families and objectives can name it. A class decorator."""
    if missing := sorted(getattr(head, "__abstractmethods__", ())):
        raise TypeError(f"{head.__name__} does not say what it costs: give it {' and '.join(missing)}.")
    if not is_plugin(head.module):
        raise TypeError(f"{head.__name__}.module ({head.module!r}) must be written `package.module:NAME`.")
    if head.contrasts and not head.features:
        raise TypeError(f"{head.__name__} does not say what its comparison costs: give it `features`, a row's numbers.")
    known = HEADS.setdefault(head.name, head)
    if (known.__module__, known.__qualname__) != (head.__module__, head.__qualname__):
        raise TypeError(f"there is a head called {head.name!r} already: {known.__name__}.")
    return head


def heads(spec: ModelSpec) -> dict[str, HeadBrick]:
    """Return the heads of the family, by name."""
    if unknown := set(spec.family.heads) - set(HEADS):
        raise UserError(f"{spec.name}: heads {sorted(unknown)} are unknown; use some of {', '.join(HEADS)}.")
    return {name: HEADS[name](spec) for name in spec.family.heads}
