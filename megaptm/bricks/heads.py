"""Heads: what reads the last layer, in numbers, and what each asks of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from megaptm.bricks.adaptive import cluster_maps, projections
from megaptm.bricks.brick import Map
from megaptm.bricks.layer import norm_parameters
from megaptm.errors import UserError
from megaptm.plugins import is_plugin
from megaptm.spec import Block, ModelSpec, Size

ROWS_PROJECTED = 1024
"""Rows that are projected on the vocabulary at once (`losses.token`): at vocabulary 50,304 they hold 300 MB of logits
in bfloat16 and float32. Fewer rows mean more sums into the gradient of the table; measured on two cores in bfloat16,
1024 rows of width 768, forward and backward: 0.42 s in chunks of 1024, 0.49 of 512, 0.59 of 256, 0.84 of 128; plain
`F.cross_entropy` 0.52 s."""


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
    classes: ClassVar[int] = 2
    """Answers that it chooses among, where it does not."""
    predicted_only: ClassVar[bool] = False
    """Whether it reads the predicted positions alone, where the batch says which."""
    contrasts: ClassVar[bool] = False
    """Whether its loss compares rows of the whole global batch: its module is a `models.contrast.ContrastHead`."""
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
            table = 4 if positions > ROWS_PROJECTED else element
            logits = min(positions, ROWS_PROJECTED) * vocabulary * (element + 4)
            return LossBytes(hidden + vocabulary * self.table_width * table, logits)
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


class LanguageHeadBrick(HeadBrick):
    """The next token at every position: the stream times the token table, or a table of its own."""

    name = "lm"
    next_token = True

    @property
    def maps(self) -> Mapping[str, Map]:
        width, table = self.width, self.table_width
        if self.spec.size.cutoffs:
            return {"narrow": Map(width, table, False)} if cluster_maps(self.spec) else {}
        return {} if table == width else {"narrow": Map(width, table, True)}

    @property
    def others(self) -> int:
        if not self.spec.size.cutoffs:
            return 0
        # A bias a word, and a row with a bias for each cluster but the first.
        return self.spec.vocabulary + len(self.spec.size.cutoffs) * (self.spec.size.table_width + 1)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Of clusters one after another, whole on each tensor rank, and the gradients of all their tables."""
        if not self.spec.size.cutoffs:
            return super().loss_bytes(positions, element, tensor=tensor, chunked=chunked)
        table = 4 if positions > ROWS_PROJECTED else element
        products = projections(self.spec)
        tables, rows = sum(inputs * outputs for inputs, outputs in products), max(outputs for _, outputs in products)
        hidden = 2 * positions * self.width * element
        return LossBytes(hidden + tables * table, min(positions, ROWS_PROJECTED) * rows * (element + 4))

    @property
    def projections(self) -> list[tuple[int, int]]:
        """By clusters, each projects all positions: see `models.adaptive`."""
        if not self.spec.size.cutoffs:
            return super().projections
        products = projections(self.spec)
        # What makes the narrower tables' inputs.
        maps = [(self.width, width) for width, _ in products[1:]] if cluster_maps(self.spec) else []
        return [*products, *maps]

    @property
    def rows(self) -> int:
        if self.spec.size.cutoffs:
            return 0
        own = 0 if self.spec.family.tied else self.table_width
        return own + self.spec.family.output_bias

    @property
    def published(self) -> int:
        return self.parameters


class MaskedHeadBrick(HeadBrick):
    """Masked tokens: a transform, a norm, the token table and a bias a word (BERT). Reads predicted positions alone."""

    name = "mlm"
    predicted_only = True
    rows = 1

    @property
    def maps(self) -> Mapping[str, Map]:
        return {"transform": Map(self.width, self.table_width, True)}

    @property
    def others(self) -> int:
        return norm_parameters(self.block, self.table_width)


class BidirectionalHeadBrick(HeadBrick):
    """The next token of a text, and of the same or another one read from its end, each by a stack of its own: a table
    and a bias a word that both have in common (ELMo, arXiv:1802.05365, 3.1). Papers leave it out."""

    name = "bidirectional-lm"
    next_token = True

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        if len(self.readings) != 2 or spec.family.tied:
            raise UserError(
                f"{spec.name}: the {self.name} head reads two stacks, by a table of its own: give it two in `reads`, "
                "and tied=False."
            )

    @property
    def maps(self) -> Mapping[str, Map]:
        return {}

    @property
    def rows(self) -> int:
        return self.spec.size.table_width + 1

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Of both directions, on words that are drawn where such stand for all."""
        words = self.spec.family.negatives or self.spec.vocabulary
        return [(self.spec.size.table_width, words)] * 2

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Where words are drawn: logits, and their float32 form twice; vectors of what is right and what is drawn."""
        if not (drawn := self.spec.family.negatives):
            return super().loss_bytes(2 * positions, element, tensor=tensor, chunked=chunked)
        width = self.spec.size.table_width
        return LossBytes(2 * positions * (drawn * (element + 8) + 3 * width * element) + 2 * drawn * width * element)


class PermutationHeadBrick(HeadBrick):
    """Words that are asked in an order, from queries beside the text: the token table and a bias a word (XLNet)."""

    name = "permutation-lm"
    predicted_only = True
    rows = 1

    @property
    def maps(self) -> Mapping[str, Map]:
        return {}


class SpanBoundaryHeadBrick(HeadBrick):
    """Tokens of a masked span from the two positions around it (SpanBERT, arXiv:1907.10529, 3.2): two layers, each with
    a norm, then the token table and a bias a word."""

    name = "span-boundary"
    answers = "span_labels"
    predicted_only = True
    rows = 1
    offsets: ClassVar[int] = 20
    """Places of a span that are told apart: `objectives.span_boundary.LONGEST`."""
    offset_width: ClassVar[int] = 200
    """Width of the table that tells them apart, whatever the model's (the released code)."""

    @property
    def maps(self) -> Mapping[str, Map]:
        width, table = self.width, self.table_width
        return {"first": Map(2 * width + self.offset_width, width, True), "second": Map(width, table, True)}

    @property
    def others(self) -> int:
        norms = sum(norm_parameters(self.block, one.outputs) for one in self.maps.values())
        return self.offsets * self.offset_width + norms


class RowClassHeadBrick(HeadBrick):
    """Base of heads that choose among classes of a row of texts, read at the first position through BERT's pooler."""

    projects = False
    pooler_published: ClassVar[bool] = False
    """Whether papers count this head's pooler: of a family's heads, one's."""

    @property
    def maps(self) -> Mapping[str, Map]:
        width = self.width
        return {"pooler": Map(width, width, True), "classify": Map(width, self.classes, True)}

    @property
    def published(self) -> int:
        return self.maps["pooler"].whole if self.pooler_published else 0

    def mapped(self, positions: int) -> int:
        return 1


class TokenClassHeadBrick(HeadBrick):
    """Base of heads that choose among classes of each token."""

    projects = False

    @property
    def maps(self) -> Mapping[str, Map]:
        return {"classify": Map(self.width, self.classes, True)}


class ReplacedHeadBrick(HeadBrick):
    """Whether each token was replaced: a transform and a number a position (ELECTRA, arXiv:2003.10555, section 2)."""

    name = "replaced-token"
    answers = "replaced"
    projects = False
    judges_draws = True

    @property
    def maps(self) -> Mapping[str, Map]:
        width = self.width
        return {"transform": Map(width, width, True), "classify": Map(width, 1, True)}


class NextSentenceHeadBrick(RowClassHeadBrick):
    """Whether the second text follows the first (BERT, arXiv:1810.04805, 3.1)."""

    name = "next-sentence"
    answers = "next_sentence"
    pooler_published = True


class SentenceOrderHeadBrick(RowClassHeadBrick):
    """Whether two stretches of a document are in their order (ALBERT, arXiv:1909.11942, 3.1)."""

    name = "sentence-order"
    answers = "sentence_order"
    pooler_published = True


class SentenceDistanceHeadBrick(RowClassHeadBrick):
    """Whether two stretches are neighbors, of one document, or of two (ERNIE 2.0, arXiv:1907.12412, 4.2.2)."""

    name = "sentence-distance"
    answers = "sentence_distance"
    classes = 3


class DialogueHeadBrick(RowClassHeadBrick):
    """Whether turns are of one dialogue, or one of them of another (ERNIE 1.0, arXiv:1904.09223, 3.3)."""

    name = "dialogue"
    answers = "dialogue"


class DiscourseHeadBrick(RowClassHeadBrick):
    """Which of 174 connectives stood between two texts, by the labels of a corpus (ERNIE 2.0, arXiv:1907.12412, 4.2.3;
    Discovery, arXiv:1903.11850)."""

    name = "discourse"
    answers = "discourse"
    classes = 174


class RelevanceHeadBrick(RowClassHeadBrick):
    """Whether a title was clicked for a query, only shown, or neither, by the labels of a corpus (ERNIE 2.0,
    arXiv:1907.12412, 4.2.3)."""

    name = "relevance"
    answers = "relevance"
    classes = 3


class SentenceReorderingHeadBrick(RowClassHeadBrick):
    """The order in which up to three stretches of a document stand (ERNIE 2.0, arXiv:1907.12412, 4.2.2)."""

    name = "sentence-reordering"
    answers = "sentence_reordering"
    classes = 9
    pooler_published = True


class CapitalizationHeadBrick(TokenClassHeadBrick):
    """Of each token whether its word began with a capital letter (ERNIE 2.0, arXiv:1907.12412, 4.2.1)."""

    name = "capitalization"
    answers = "capitalization"


class TokenDocumentHeadBrick(TokenClassHeadBrick):
    """Of each token whether the rest of its document has it as well (ERNIE 2.0, arXiv:1907.12412, 4.2.1)."""

    name = "token-document"
    answers = "token_document"


class ImageLabelHeadBrick(HeadBrick):
    """Which label an image has, by what is said of it as a whole: a table and a bias a label (ViT, arXiv:2010.11929,
    3.1). Papers leave it out."""

    name = "image-label"
    answers = "image_label"

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        if spec.family.tied:
            raise UserError(f"{spec.name}: the {self.name} head has a table of its own; set tied=False.")

    @property
    def maps(self) -> Mapping[str, Map]:
        return {}

    @property
    def rows(self) -> int:
        return self.width + 1

    @property
    def projections(self) -> list[tuple[int, int]]:
        return [(self.width, self.spec.vocabulary)]

    def multiply_adds(self, positions: int) -> int:
        """One of them is projected."""
        return super().multiply_adds(1)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """The same; all are gathered."""
        one = super().loss_bytes(1, element, tensor=tensor, chunked=chunked)
        return LossBytes(one.saved + 2 * (positions - 1) * self.width * element, one.transient)


class MaskedPatchHeadBrick(HeadBrick):
    """The mean color, of 512, of patches that were hidden (ViT, arXiv:2010.11929, appendix B.1.2)."""

    name = "masked-patch"
    answers = "patch_colors"
    projects = False
    classes = 512
    predicted_only = True

    @property
    def maps(self) -> Mapping[str, Map]:
        return {"classify": Map(self.width, self.classes, True)}


class ImageTextHeadBrick(HeadBrick):
    """Images and texts that find each other in the whole batch, both ways (CLIP, arXiv:2103.00020, figure 3): a map
    of each to one space, as wide as the texts' stack, and a temperature. Papers count it."""

    name = "image-text"
    answers = "text_end"
    projects = False
    contrasts = True
    others = 1

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        if len(self.readings) != 2:
            raise UserError(f"{spec.name}: the {self.name} head reads two stacks, of images and of texts: name both.")

    @property
    def embedding(self) -> int:
        """Width of the space in which images and texts are compared."""
        return self.spec.size_of(self.readings[1].stack).width

    @property
    def features(self) -> int:  # type: ignore[override]  # a constant of other heads
        return 2 * self.embedding + 1

    @property
    def maps(self) -> Mapping[str, Map]:
        return {
            stack: Map(self.spec.output_width(stack), self.embedding, False)
            for stack in [reading.stack for reading in self.readings]
        }

    @property
    def published(self) -> int:
        return self.parameters

    def multiply_adds(self, positions: int) -> int:
        """Of one place of either."""
        return super().multiply_adds(1)


HEADS: dict[str, type[HeadBrick]] = {
    head.name: head
    for head in (
        *(LanguageHeadBrick, MaskedHeadBrick, SpanBoundaryHeadBrick, NextSentenceHeadBrick, SentenceOrderHeadBrick),
        *(BidirectionalHeadBrick, PermutationHeadBrick),
        *(ReplacedHeadBrick, CapitalizationHeadBrick, TokenDocumentHeadBrick),
        *(SentenceReorderingHeadBrick, SentenceDistanceHeadBrick, DialogueHeadBrick),
        *(DiscourseHeadBrick, RelevanceHeadBrick),
        *(ImageLabelHeadBrick, MaskedPatchHeadBrick, ImageTextHeadBrick),
    )
}


H = TypeVar("H", bound=type[HeadBrick])


def register_head(head: H) -> H:
    """Make a head of the user's own one that families name, and losses of objectives; a decorator of its brick."""
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
    """The family's heads by name."""
    if unknown := set(spec.family.heads) - set(HEADS):
        raise UserError(f"{spec.name}: heads {sorted(unknown)} are unknown; use some of {', '.join(HEADS)}.")
    return {name: HEADS[name](spec) for name in spec.family.heads}
