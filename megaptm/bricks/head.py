"""What a head says of itself in numbers: maps, costs, and what it asks of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from megaptm.bricks.brick import Map
from megaptm.errors import UserError
from megaptm.spec import Block, ModelSpec, Size

ROWS_PROJECTED = 1024
"""Rows that are projected on the vocabulary at once (`losses.token`): at vocabulary 50,304 they hold 300 MB of logits
in bfloat16 and float32. Fewer rows mean more sums into the gradient of the table; measured on two cores in bfloat16,
1024 rows of width 768, forward and backward: 0.42 s in chunks of 1024, 0.49 of 512, 0.59 of 256, 0.84 of 128; plain
`F.cross_entropy` 0.52 s."""


def keeps_factors(rows: int, width: int) -> bool:
    """Whether of a table's gradient by so many rows, projected at once, the backward pass gets the two factors,
    [rows, V] and [rows, width]: they are not much more than their product."""
    return rows <= 2 * width


def table_gradient_bytes(rows: int, inputs: int, outputs: int, element: int) -> int:
    """What `layers.table_gradient` keeps of a table [outputs, inputs] until the backward pass: the two factors, or
    their product, which is in float32 where it is the sum of several."""
    if rows > ROWS_PROJECTED:
        return outputs * inputs * 4
    return (rows * (outputs + inputs) if keeps_factors(rows, inputs) else outputs * inputs) * element


@dataclass(frozen=True)
class LossBytes:
    """Bytes of a head's loss on one tensor rank."""

    saved: float
    """Until its backward pass, which is after the losses of all heads."""
    transient: float = 0.0
    """Besides, for as long as it projects."""


class HeadBrick(ABC):
    """A head of a model; its name is that of its loss."""

    name: ClassVar[str]
    answers: ClassVar[str] = "labels"
    """The batch's field with what is asked; without it there is no loss, only logits."""
    projects: ClassVar[bool] = True
    """Whether it projects on the vocabulary."""
    regresses: ClassVar[bool] = False
    """Whether it projects on the map of regions' features, turned around."""
    classes: ClassVar[int] = 2
    """Answers that it chooses among, where it does not."""
    chooses: ClassVar[bool] = True
    """Whether it chooses among answers, so that there is a loss of who guesses: not of numbers and distances."""
    predicted_only: ClassVar[bool] = False
    """Whether it reads the predicted positions alone, where the batch says which."""
    contrasts: ClassVar[bool] = False
    """Whether its loss compares rows of the whole global batch: its module is a `models.contrast.ContrastHead`."""
    reads_end: ClassVar[bool] = False
    """Whether it reads where a text ends, behind all of it, so that a causal stack has seen it."""
    next_token: ClassVar[bool] = False
    """Whether it asks each position for the token behind it, which the position must not see."""
    judges_draws: ClassVar[bool] = False
    """Whether the answer is known only once a head has been drawn from: the batch says where it is asked."""
    features: ClassVar[int] = 0
    """F, numbers of a row that are compared, where it `contrasts`."""
    module: ClassVar[str] = ""
    """package.module:NAME of the torch module of a head of the user's own, made with the spec and this."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.readings = spec.readings(self.name)
        """What it reads."""
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
        """The first that it reads."""
        return self.readings[0].stack

    @property
    def size(self) -> Size:
        """Of the first stack that it reads."""
        return self.spec.size_of(self.stack)

    @property
    def width(self) -> int:
        """Of what the first stack that it reads gives."""
        return self.spec.output_width(self.stack)

    @property
    def table_width(self) -> int:
        """Of the table that it projects on; one of its own is as wide as both streams of a reversible stack."""
        size, own = self.spec.size, not self.spec.family.tied and self.block.reversible
        return self.width if own and size.embedding is None else size.table_width

    @property
    def block(self) -> Block:
        """Of the first stack that it reads."""
        return self.spec.family.stacks[self.stack]

    @property
    @abstractmethod
    def maps(self) -> Mapping[str, Map]:
        """Its linear maps, the same on every tensor rank, by the name of the module's child."""

    @property
    def rows(self) -> int:
        """Numbers that tensor ranks divide, for each row of the vocabulary: of a table of its own, or a bias."""
        return 0

    @property
    def others(self) -> int:
        """Further parameters."""
        return 0

    @property
    def published(self) -> int:
        """Parameters that papers count; the rest serves pre-training alone."""
        return 0

    @property
    def parameters(self) -> int:
        """All of them, rows that pad the vocabulary left out."""
        return sum(one.whole for one in self.maps.values()) + self.rows * self.spec.vocabulary + self.others

    def rank_parameters(self, tensor: int) -> int:
        """Parameters of one of so many tensor ranks, rows that pad the vocabulary among them."""
        whole = sum(one.whole for one in self.maps.values()) + self.others
        return whole + self.rows * self.spec.padded_vocabulary // tensor

    def positions_read(self, length: int, num_predicted: int | None) -> int:
        """How many of a row of this length it reads; `num_predicted`: those that are predicted, absent: all."""
        return num_predicted if self.predicted_only and num_predicted is not None else length

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the products by which it projects on the vocabulary."""
        return [(self.table_width, self.spec.vocabulary)] if self.projects else []

    def mapped(self, positions: int) -> int:
        """Of so many positions of a row that it reads, those that its maps take."""
        return positions

    def multiply_adds(self, positions: int) -> int:
        """Of a forward pass over so many positions of a row."""
        products = self.mapped(positions) * sum(one.weights for one in self.maps.values())
        return products + positions * sum(inputs * outputs for inputs, outputs in self.projections)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Of so many positions of a micro-batch, in elements of so many bytes, on one of so many tensor ranks: what it
        reads, gathered, and its gradient; and what projects. `chunked`: `losses.token`, where there is one rank."""
        hidden = 2 * positions * self.width * element
        if not self.projects:
            return LossBytes(hidden)
        vocabulary = self.spec.padded_vocabulary
        if chunked and tensor == 1:
            several = positions > ROWS_PROJECTED
            numbers = min(positions, ROWS_PROJECTED) * vocabulary
            # A softmax in float32; of other formats its input in float32, too, and then none of both: the gradient of
            # the table, which the first rows have not yet, comes afterwards.
            logits = numbers * (8 if element == 4 else element + 8)
            kept = table_gradient_bytes(positions, self.table_width, vocabulary, element)
            if not several and keeps_factors(positions, self.table_width):
                logits -= numbers * element  # one of the two factors
            elif element != 4 and not several:
                logits = max(numbers * element, logits - kept)
            return LossBytes(hidden + kept, logits)
        # Float32 logits, which become their softmax and its gradient in place, beside logits and then gradient in the
        # model's format.
        scores = positions * vocabulary / tensor
        return LossBytes(hidden + scores * 4, 0.0 if element == 4 else scores * element)

    def compare_bytes(self, own: int, rows: int) -> int:
        """At most, while `own` rows are compared with all `rows`, where it `contrasts`: the features of all and two
        copies of their gradient; and of each pair what the softmax says, both ways, and one's gradient behind and
        before it. All are float32."""
        return 4 * (3 * rows * self.features + 4 * own * rows)

    def compare_multiply_adds(self, own: int, rows: int) -> int:
        """Of a forward pass over the same: the product of the features of each pair, both ways."""
        return 2 * own * rows * self.features
