"""Base class of head bricks: linear layers, costs, and required fields of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from megaptm.bricks.brick import LinearShape
from megaptm.errors import UserError
from megaptm.spec import Block, ModelSpec, Size

ROWS_PROJECTED = 1024
"""Positions that are projected on the vocabulary at once (`losses.token`): at vocabulary 50,304 they hold 300 MB of
logits in bfloat16 and float32. Fewer positions mean more additions to the gradient of the table. Measured on two cores
in bfloat16, 1024 positions of width 768, forward and backward: 0.42 s in chunks of 1024, 0.49 of 512, 0.59 of 256, 0.84
of 128; plain `F.cross_entropy` 0.52 s."""


def keeps_factors(rows: int, width: int) -> bool:
    """Whether the two factors of a table gradient, [rows, V] and [rows, width], are saved instead of their product:
    they are not much larger. `rows`: positions that are projected at once."""
    return rows <= 2 * width


def table_gradient_bytes(rows: int, inputs: int, outputs: int, element: int) -> int:
    """Return the bytes that `layers.table_gradient` saves for a table [outputs, inputs] until the backward pass.

    They are the two factors or their product, which is in float32 if it is the sum of several.
    """
    if rows > ROWS_PROJECTED:
        return outputs * inputs * 4
    return (rows * (outputs + inputs) if keeps_factors(rows, inputs) else outputs * inputs) * element


@dataclass(frozen=True)
class LossBytes:
    """Bytes of a head's loss on one tensor rank."""

    saved: float
    """Saved until the backward pass, which follows the losses of all heads."""
    transient: float = 0.0
    """Additional bytes during the projection."""


class HeadBrick(ABC):
    """Head of a model. Its name is that of its loss."""

    name: ClassVar[str]
    label_field: ClassVar[str] = "labels"
    """Batch field of the labels. Without it the head gives only logits, no loss."""
    projects: ClassVar[bool] = True
    """Whether it projects on the vocabulary."""
    tied_input: ClassVar[str] = ""
    """Name of the input (`spec.inputs`) whose transposed projection it projects with, if any."""
    classes: ClassVar[int] = 2
    """Number of classes, if it does not project on the vocabulary."""
    is_classifier: ClassVar[bool] = True
    """Whether it chooses among classes, so that the loss of a random guess is defined; False for regression and
    distances."""
    predicted_only: ClassVar[bool] = False
    """Whether it reads only predicted positions, if the batch names them."""
    contrasts: ClassVar[bool] = False
    """Whether its loss compares samples of the global batch: its module is a `models.contrast.ContrastHead`."""
    reads_end: ClassVar[bool] = False
    """Whether it reads the last position of a text, where a causal stack has attended to all of it."""
    next_token: ClassVar[bool] = False
    """Whether each position predicts the next token, to which it must not attend."""
    labels_from_samples: ClassVar[bool] = False
    """Whether labels are known only after sampling from a head; the batch has the target positions."""
    features: ClassVar[int] = 0
    """F, features of a sample for comparison, if it `contrasts`."""
    initial_values: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """Parameter -> initial value of all of its elements, if it is not random."""
    module: ClassVar[str] = ""
    """package.module:NAME of the torch module of a user-defined head, constructed with the spec and this brick."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.readings = spec.readings(self.name)
        """Stacks, or layers of them, that it reads."""
        for stack, layer in self.readings:
            if stack not in spec.family.stacks:
                raise UserError(f"{spec.name}: head {self.name} reads the {stack}, which is no stack of it.")
            if layer is not None and not 0 <= layer < (layers := spec.size_of(stack).layers):
                raise UserError(
                    f"{spec.name}: head {self.name} reads layer {layer} of the {stack}, which has 0 to {layers - 1}."
                )
            if layer is not None and self.contrasts:
                raise UserError(f"{spec.name}: head {self.name} compares rows, so it reads whole stacks, not a layer.")
            if layer is not None and spec.family.stacks[stack].reversible:
                raise UserError(
                    f"{spec.name}: head {self.name} reads layer {layer} of the {stack}, whose layers are reversible "
                    "and keep nothing: let it read the stack, or set residual=sum."
                )

    @property
    def stack(self) -> str:
        """First stack that it reads."""
        return self.readings[0].stack

    @property
    def size(self) -> Size:
        """Size of the first stack that it reads."""
        return self.spec.size_of(self.stack)

    @property
    def width(self) -> int:
        """Output width of the first stack that it reads."""
        return self.spec.output_width(self.stack)

    @property
    def table_width(self) -> int:
        """Width of the table on which it projects. A table of its own is as wide as both streams of a reversible
        stack."""
        size, own = self.spec.size, not self.spec.family.output.tied and self.block.reversible
        return self.width if own and size.embedding is None else size.table_width

    @property
    def block(self) -> Block:
        """Block of the first stack that it reads."""
        return self.spec.family.stacks[self.stack]

    @property
    @abstractmethod
    def maps(self) -> Mapping[str, LinearShape]:
        """Linear layers by name of the child module; replicated on tensor ranks."""

    @property
    def rows(self) -> int:
        """Parameters per vocabulary entry that tensor ranks divide: an own table, a bias."""
        return 0

    @property
    def other_parameters(self) -> int:
        """Further parameters."""
        return 0

    @property
    def published(self) -> int:
        """Parameters that papers count. The others are used only in pre-training."""
        return 0

    @property
    def parameters(self) -> int:
        """All parameters, without vocabulary padding."""
        return (
            sum(linear.replicated for linear in self.maps.values())
            + self.rows * self.spec.vocabulary
            + self.other_parameters
        )

    def rank_parameters(self, tensor: int) -> int:
        """Return the parameters of one of `tensor` tensor ranks, with vocabulary padding."""
        replicated = sum(linear.replicated for linear in self.maps.values()) + self.other_parameters
        return replicated + self.rows * self.spec.padded_vocabulary // tensor

    def positions_read(self, length: int, num_predicted: int | None) -> int:
        """Return how many positions of a sequence it reads. `num_predicted`: predicted positions; None: all."""
        return num_predicted if self.predicted_only and num_predicted is not None else length

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the products that project on the vocabulary."""
        return [(self.table_width, self.spec.vocabulary)] if self.projects else []

    def mapped(self, positions: int) -> int:
        """Return to how many of the positions that it reads its linear layers are applied."""
        return positions

    def multiply_adds(self, positions: int) -> int:
        """Return the multiply-adds of a forward pass over `positions` of a sequence."""
        products = self.mapped(positions) * sum(linear.weights for linear in self.maps.values())
        return products + positions * sum(inputs * outputs for inputs, outputs in self.projections)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Return the bytes for `positions` of a micro-batch on one of `tensor` ranks: gathered input and its gradient,
        and the projection. `chunked`: with `losses.token`, on one tensor rank."""
        hidden = 2 * positions * self.width * element
        if not self.projects:
            return LossBytes(hidden)
        vocabulary = self.spec.padded_vocabulary
        if chunked and tensor == 1:
            several = positions > ROWS_PROJECTED
            numbers = min(positions, ROWS_PROJECTED) * vocabulary
            # Softmax in float32. Other formats also need its float32 input. Later neither: the gradient of the table
            # comes afterwards, and the first positions do not have one yet.
            logits = numbers * (8 if element == 4 else element + 8)
            saved = table_gradient_bytes(positions, self.table_width, vocabulary, element)
            if not several and keeps_factors(positions, self.table_width):
                logits -= numbers * element  # one of the two factors
            elif element != 4 and not several:
                logits = max(numbers * element, logits - saved)
            return LossBytes(hidden + saved, logits)
        # Float32 logits, which become their softmax and its gradient in place; beside them logits, then gradient, in
        # the model's format.
        scores = positions * vocabulary / tensor
        return LossBytes(hidden + scores * 4, 0.0 if element == 4 else scores * element)

    def compare_bytes(self, own: int, rows: int) -> int:
        """Return the peak bytes of comparing `own` samples with all `rows`, if it `contrasts`, in float32: features of
        all and two copies of their gradient, and per pair the softmax in both directions and one gradient before and
        after it."""
        return 4 * (3 * rows * self.features + 4 * own * rows)

    def compare_multiply_adds(self, own: int, rows: int) -> int:
        """Return the multiply-adds of that comparison, forward: products of features of each pair, in both
        directions."""
        return 2 * own * rows * self.features
