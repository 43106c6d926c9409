"""Costs of heads, their linear layers, and the batch fields that they require. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from megaptm.errors import UserError
from megaptm.families import Registry, contributions
from megaptm.layers.costs import LinearShape
from megaptm.layers.layer_costs import norm_parameters
from megaptm.losses.token_costs import LossBytes, projection_bytes
from megaptm.models.embed_costs import token_costs
from megaptm.plugins import load_plugin
from megaptm.spec import Block, ModelSpec, Size, TransformSpec


class HeadCosts(ABC):
    """Linear layers, costs and batch fields of a head. The name of a head is that of its loss."""

    name: ClassVar[str]
    label_field: ClassVar[str] = "labels"
    """Batch field of the head's labels. Without that field, the head gives only logits, no loss."""
    projects: ClassVar[bool] = True
    """Whether the head projects hidden states on the vocabulary."""
    tied_input: ClassVar[str] = ""
    """Name of the input (`spec.inputs`) whose transposed projection the head uses, if any."""
    classes: ClassVar[int] = 2
    """Number of classes of the head, if it does not project on the vocabulary."""
    is_classifier: ClassVar[bool] = True
    """Whether the head classifies, so that the loss of a random guess is defined; False for regression and
    distances."""
    reads: ClassVar[Literal["each", "first", "any"]] = "any"
    """Positions whose hidden states a term of the loss depends on: its own (`each`), the first of the sequence
    (`first`), or others (`any`), which context parallelism does not support."""
    predicted_only: ClassVar[bool] = False
    """Whether the head reads only predicted positions, if the batch names them."""
    contrasts: ClassVar[bool] = False
    """Whether the loss of the head compares samples of the global batch: see `models.contrast_costs`."""
    reads_end: ClassVar[bool] = False
    """Whether the head reads the last position of a text, where a causal stack has attended to all of it."""
    samples_negatives: ClassVar[bool] = False
    """Whether the softmax of the head may be over sampled tokens (`LossSpec.negatives`)."""
    next_token: ClassVar[bool] = False
    """Whether the head predicts the next token at each position, to which the position must not attend."""
    labels_from_samples: ClassVar[bool] = False
    """Whether the head's labels are known only after sampling from another head. The batch then has target positions
    without labels."""
    initial_values: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """Initial value of all elements of a parameter of the head, by parameter, if it is not random."""
    module: ClassVar[str] = ""
    """Class of the head's torch module, `package.module:NAME`, constructed with the spec and these costs."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.head_inputs = spec.head_inputs(self.name)
        """Outputs of stacks, or of layers of them, that the head reads."""
        for stack, layer in self.head_inputs:
            if stack not in spec.family.stacks:
                raise UserError(f"{spec.name}: head {self.name} reads the {stack}, which is not one of its stacks.")
            if layer is not None and not 0 <= layer < (layers := spec.size_of(stack).layers):
                raise UserError(
                    f"{spec.name}: head {self.name} reads layer {layer} of the {stack}, which has 0 to {layers - 1}."
                )
            if layer is not None and self.contrasts:
                raise UserError(
                    f"{spec.name}: head {self.name} compares samples, so it must read a stack, not a layer."
                )
            if layer is not None and not spec.family.stacks[stack].residual.saves_activations:
                raise UserError(
                    f"{spec.name}: head {self.name} reads layer {layer} of the {stack}, whose layers are "
                    f"{spec.family.stacks[stack].residual.kind} and save no activations: let it read the stack, or use "
                    "ResidualSpec()."
                )

    @property
    def stack(self) -> str:
        """Return the first stack that the head reads."""
        return self.head_inputs[0].stack

    @property
    def size(self) -> Size:
        """Return the size of the first stack that the head reads."""
        return self.spec.size_of(self.stack)

    @property
    def width(self) -> int:
        """Return the output width of the first stack that the head reads."""
        return self.spec.output_width(self.stack)

    @property
    def table_width(self) -> int:
        """Return the width of the table on which the head projects. A table of its own is as wide as all residual
        streams of the stack."""
        size, own = self.spec.size, not self.spec.family.output.tied and self.block.residual.streams > 1
        return self.width if own and size.embedding is None else self.spec.token_width

    @property
    def block(self) -> Block:
        """Return the block of the first stack that the head reads."""
        return self.spec.family.stacks[self.stack]

    @property
    @abstractmethod
    def linears(self) -> Mapping[str, LinearShape]:
        """Return the linear layers of the head by name of the child module; replicated on tensor ranks."""

    @property
    def rows(self) -> int:
        """Return the number of the head's parameters per vocabulary entry, sharded over tensor ranks: a table of its
        own, a bias."""
        return 0

    @property
    def other_parameters(self) -> int:
        """Return the number of the head's parameters without those per vocabulary entry."""
        return 0

    @property
    def published(self) -> int:
        """Return the number of the head's parameters that papers count. The others are used only in pre-training."""
        return 0

    @property
    def parameters(self) -> int:
        """Return the number of all parameters of the head, without vocabulary padding."""
        return (
            sum(linear.replicated for linear in self.linears.values())
            + self.rows * self.spec.vocabulary
            + self.other_parameters
        )

    def rank_parameters(self, tensor: int) -> int:
        """Return the number of the head's parameters on one of `tensor` ranks, with vocabulary padding."""
        replicated = sum(linear.replicated for linear in self.linears.values()) + self.other_parameters
        return replicated + self.rows * self.spec.padded_vocabulary // tensor

    def positions_read(self, length: int, num_predicted: int | None) -> int:
        """Return how many positions of a sequence the head reads. `num_predicted`: predicted positions; None: all."""
        return num_predicted if self.predicted_only and num_predicted is not None else length

    @property
    def last_norm(self) -> str | None:
        """Return the name of the norm whose output the head projects on the vocabulary. None for a post-norm stack: its
        last layer ends with a norm that other layers have, too."""
        if "transform" in self.linears:
            return f"head.{self.name}.norm"
        return None if self.block.norm.position == "post" else f"{self.stack}.final"

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Return the inputs and outputs of the head's matrix products that project on the vocabulary."""
        return [(self.table_width, self.spec.vocabulary)] if self.projects else []

    def rank_projections(self, tensor: int) -> list[tuple[int, float]]:
        """Return the inputs and outputs of the head's projections on one of `tensor` ranks, with vocabulary padding."""
        return [(self.table_width, self.spec.padded_vocabulary / tensor)]

    def rank_vocabulary(self, tensor: int) -> float:
        """Return the number of logits of a position that the head computes on one of `tensor` ranks."""
        return self.spec.padded_vocabulary / tensor

    def num_transformed_positions(self, positions: int) -> int:
        """Return the number of positions to which the head applies its linear layers, out of those that it reads."""
        return positions

    def multiply_adds(self, positions: int) -> int:
        """Return the multiply-adds of the head's forward pass over `positions` of a sequence."""
        products = self.num_transformed_positions(positions) * sum(linear.weights for linear in self.linears.values())
        return products + positions * sum(inputs * outputs for inputs, outputs in self.projections)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, logit_bytes: int | None) -> LossBytes:
        """Return the bytes of the head's loss for `positions` of a micro-batch on one of `tensor` ranks: gathered input
        and its gradient, and the projection. `logit_bytes`: as for `losses.token_costs.projection_bytes`."""
        hidden = 2 * positions * self.width * element
        if not self.projects:
            return LossBytes(hidden)
        if logit_bytes is not None and self.spec.family.output.cap is not None:
            logit_bytes += element  # slope of the soft cap
        projected = projection_bytes(
            positions, self.table_width, self.spec.padded_vocabulary, element, tensor=tensor, logit_bytes=logit_bytes
        )
        return LossBytes(hidden + projected.saved, projected.transient)


class LanguageHeadCosts(HeadCosts):
    """Costs of the language model head, which predicts the next token at every position. Uses the token table or a
    table of its own."""

    name = "lm"
    module = "megaptm.models.heads:LanguageHead"
    reads = "each"
    next_token = True

    @property
    def transform(self) -> TransformSpec | None:
        """Return the record of the layer before the projection, or None."""
        return self.spec.family.output.transform

    @property
    def has_bias(self) -> bool:
        """Whether the head has a bias for each vocabulary entry."""
        return self.spec.family.output.bias

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        width, table = self.width, self.table_width
        if self.transform is not None:
            return {"transform": LinearShape(width, table, self.transform.bias)}
        return {} if table == width else {"narrow": LinearShape(width, table, True)}

    @property
    def other_parameters(self) -> int:
        return 0 if self.transform is None else norm_parameters(self.block, self.table_width)

    @property
    def rows(self) -> int:
        own = 0 if self.spec.family.output.tied else self.table_width
        return own + self.has_bias

    @property
    def published(self) -> int:
        return self.parameters


class MaskedHeadCosts(LanguageHeadCosts):
    """Costs of the masked language model head: that of a language model, for predicted positions only."""

    name = "mlm"
    module = "megaptm.models.heads:MaskedHead"
    next_token = False
    predicted_only = True
    published = 0


class RowClassHeadCosts(HeadCosts):
    """Costs of heads that classify a text or pair of texts, from the first position through BERT's pooler. Base
    class."""

    module = "megaptm.models.heads:RowClassHead"
    reads = "first"
    projects = False
    pooler_published: ClassVar[bool] = False
    """Whether papers count this head's pooler: True for one head of a family."""

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        width = self.width
        return {"pooler": LinearShape(width, width, True), "classify": LinearShape(width, self.classes, True)}

    @property
    def published(self) -> int:
        return self.linears["pooler"].replicated if self.pooler_published else 0

    def num_transformed_positions(self, positions: int) -> int:
        return 1


class TokenClassHeadCosts(HeadCosts):
    """Costs of heads that classify each token. Base class."""

    module = "megaptm.models.heads:TokenClassHead"
    reads = "each"
    projects = False

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {"classify": LinearShape(self.width, self.classes, True)}


class NextSentenceHeadCosts(RowClassHeadCosts):
    """Costs of the next sentence prediction head: whether the second text follows the first (BERT, arXiv:1810.04805,
    3.1)."""

    name = "next-sentence"
    label_field = "next_sentence"
    pooler_published = True


class SentenceOrderHeadCosts(RowClassHeadCosts):
    """Costs of the sentence order prediction head: whether two segments of a document are in order (ALBERT,
    arXiv:1909.11942, 3.1)."""

    name = "sentence-order"
    label_field = "sentence_order"
    pooler_published = True


_HEADS: dict[str, type[HeadCosts]] = {
    head.name: head for head in (LanguageHeadCosts, MaskedHeadCosts, NextSentenceHeadCosts, SentenceOrderHeadCosts)
}
HEADS: Registry[type[HeadCosts]] = Registry(
    _HEADS, lambda: ((head.name, head) for heads in contributions("head_costs", "HEADS") for head in heads)
)
"""Costs of heads by the head's name. A module that only a config names adds its own: `HEADS["low"] = LowHeadCosts`."""


def head_costs(spec: ModelSpec) -> dict[str, HeadCosts]:
    """Return the costs of each head of a model, by name."""
    if unknown := set(spec.family.heads) - set(HEADS):
        raise UserError(f"{spec.name}: heads {sorted(unknown)} are unknown; use some of {', '.join(HEADS)}.")
    tokens = token_costs(spec)
    other = {} if tokens is None else tokens.heads
    return {
        name: load_plugin(other[name], f"heads of {spec.name}", "class")(spec) if name in other else HEADS[name](spec)
        for name in spec.family.heads
    }


def projected_norms(spec: ModelSpec) -> set[str | None]:
    """Return the `last_norm` of each head that projects on the vocabulary."""
    return {head.last_norm for head in head_costs(spec).values() if head.projects}
