"""Kinds of attention. A record holds the options of one kind; `Block.attention` is a record, or a tuple of records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

if TYPE_CHECKING:
    from megaptm.spec.block import Block
    from megaptm.spec.size import Size

AtLeastOne = Annotated[int, Field(ge=1)]
DropoutRate = Annotated[float, Field(ge=0.0, lt=1.0)]
MAX_BUCKETS = 1 << 31
"""Bound of the number of hash buckets."""


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Scaled dot-product attention of all pairs. Base class of all kinds."""

    kind: ClassVar[str] = "dot"
    """Name of the kind: key of its costs (`bricks.BRICKS`) and of its module (`layers.layer.MODULES`)."""
    options: ClassVar[tuple[str, ...]] = ("dropout",)
    """Fields that a config may set, under `model.attention`. The others define the family."""
    reads_global_tokens: ClassVar[bool] = False
    """Whether global tokens (batch field `global_tokens`) attend to more positions than others do."""
    caches_keys: ClassVar[bool] = True
    """Whether text can be generated with cached keys and values."""
    scores_distances: ClassVar[bool] = False
    """Whether scores depend on the distance of query and key."""

    bias: bool | Literal["no-keys"] = True
    """Whether attention projections have a bias; `no-keys`: all but the key projection (DeBERTa)."""
    scale: Literal["sqrt", "sqrt-3", "none"] = "sqrt"
    """Divisor of the scores: square root of the head width (`sqrt`), of three times the head width (`sqrt-3`, DeBERTa:
    scores are sums of three products), or 1 (`none`, T5)."""
    dropout: bool | DropoutRate = True
    """Whether the model's dropout also applies to attention weights (not in the original Transformer), or a rate."""

    def dropout_rate(self, model: float) -> float:
        """Return the dropout rate of attention weights in a model with dropout rate `model`."""
        return self.dropout * model if isinstance(self.dropout, bool) else self.dropout

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        """Yield an error message for each value that this kind does not support, starting with the field."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class BandedSpec(AttentionSpec):
    """Attention of positions less than `Size.band` apart (GPT-3, arXiv:2005.14165, 2.1)."""

    kind = "banded"
    reads_global_tokens = True


@dataclass(frozen=True, kw_only=True)
class PatternSpec(AttentionSpec):
    """Attention with a user-defined pattern."""

    kind = "pattern"
    reads_global_tokens = True
    caches_keys = False

    pattern: str
    """`package.module:NAME` of a `bricks.custom_pattern.CustomPattern`."""


@dataclass(frozen=True, kw_only=True)
class WindowSpec(AttentionSpec):
    """Attention in a sliding window, and of positions that the batch's field `global_tokens` marks, which have
    projections of their own (Longformer, arXiv:2004.05150)."""

    kind = "window"
    options = (*AttentionSpec.options, "window", "dilation")
    reads_global_tokens = True

    window: AtLeastOne = 512
    """Number of attended positions besides the query's own. Half of them are on each side; with causal `visibility` all
    are before it."""
    dilation: AtLeastOne = 1
    """Step between attended positions."""

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if self.window % 2 and not block.causal:
            yield f"attention.window ({self.window}) must be even: half of the window is on each side."


@dataclass(frozen=True, kw_only=True)
class BlockSparseSpec(AttentionSpec):
    """Attention to neighboring, random, first and last blocks (BigBird, arXiv:2007.14062)."""

    kind = "blocks"
    options = (*AttentionSpec.options, "block_size", "num_random_blocks", "seed", "edge_blocks")
    reads_global_tokens = True

    block_size: AtLeastOne = 64
    """Positions of a block."""
    num_random_blocks: Annotated[int, Field(ge=0, le=1 << 10)] = 3
    """Number of random blocks that each block attends to; sampled for each layer and head."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """Seed of the random blocks, besides layer and head. Part of the model: evaluation must use the blocks of
    training."""
    edge_blocks: bool = True
    """Whether the first and last block are global (BigBird-ITC). If false, only the positions that the batch's field
    `global_tokens` marks are global (BigBird-ETC)."""

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if block.causal:
            yield (
                "attention is block-sparse and visibility is causal, but all positions attend to the last block: use "
                "full or ordered visibility."
            )


@dataclass(frozen=True, kw_only=True)
class LocalSpec(AttentionSpec):
    """Attention to the chunk of the query and the chunk before it (Reformer, arXiv:2001.04451)."""

    kind = "local"
    options = (*AttentionSpec.options, "chunk_length")
    reads_global_tokens = True
    caches_keys = False

    chunk_length: AtLeastOne = 64
    """Positions of a chunk."""


@dataclass(frozen=True, kw_only=True)
class LSHSpec(LocalSpec):
    """Local attention after sorting positions by hashes of shared queries and keys (Reformer, arXiv:2001.04451)."""

    kind = "lsh"
    options = (*LocalSpec.options, "num_hashes", "num_buckets")
    reads_global_tokens = False

    num_hashes: Annotated[int, Field(ge=1, le=1 << 10)] = 1
    """Number of hash rounds, each with its own random rotations."""
    num_buckets: AtLeastOne | Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] = 64
    """Number of hash buckets, even; a tuple of factors for a factorized hash."""

    @property
    def bucket_factors(self) -> tuple[int, ...]:
        """Factors of the number of buckets."""
        return (self.num_buckets,) if isinstance(self.num_buckets, int) else self.num_buckets

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if odd := [factor for factor in self.bucket_factors if factor % 2]:
            yield f"attention.num_buckets ({odd[0]}) must be even: half of the buckets are the negatives of the others."
        if prod(self.bucket_factors) >= MAX_BUCKETS:
            yield (
                f"attention.num_buckets has a product of {prod(self.bucket_factors):,}, and must be below "
                f"{MAX_BUCKETS:,}: lower it."
            )
        if block.ordered:
            yield (
                f"attention is LSH, whose keys are its queries, and visibility is {block.visibility}: use full or "
                "causal visibility."
            )
        if self.bias == "no-keys":
            yield "attention.bias is no-keys, but the keys of LSH attention are its queries: use true or false."
        if size.key_heads != size.heads:
            yield f"kv_heads ({size.key_heads}): the keys of LSH attention are its queries; leave kv_heads out."


@dataclass(frozen=True, kw_only=True)
class DisentangledSpec(AttentionSpec):
    """Attention with scores of content and distance, from a distance table of the stack (DeBERTa, arXiv:2006.03654)."""

    kind = "disentangled"
    scores_distances = True

    max_distance: AtLeastOne = 512
    """Largest distance to each side."""
    num_distance_buckets: AtLeastOne | None = None
    """Distance buckets to each side, logarithmic for large distances. None: one per distance."""
    norm: bool = False
    """Whether the distance table is normalized (DeBERTa-v2)."""
    projections: Literal["own", "tokens"] = "own"
    """Projections of the distance table: its `own`, or those of the `tokens`."""

    @property
    def table_rows(self) -> int:
        """Number of rows of the distance table."""
        return 2 * (self.max_distance if self.num_distance_buckets is None else self.num_distance_buckets)

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if block.score_bias:
            yield f"position is {block.position}, but disentangled attention encodes distances itself: use none."


@dataclass(frozen=True, kw_only=True)
class RelativeSpec(AttentionSpec):
    """Attention with scores of content and distance, from sinusoids, over a sequence and a recurrence cache
    (Transformer-XL, arXiv:1901.02860). All layers of a stack have it."""

    kind = "relative"
    scores_distances = True

    biases: Literal["stack", "layer"] = "stack"
    """Owner of the query biases u and v: the `stack` (Transformer-XL) or each `layer` (XLNet)."""
    segments: bool = False
    """Whether scores also encode if query and key share a segment (XLNet, arXiv:1906.08237, 2.5)."""
    query_stream: bool = False
    """Whether a query stream runs beside the content stream: one query for each target position, which attends to the
    positions before it in the factorization order, itself excluded (XLNet, arXiv:1906.08237, 2.3)."""
    cached: Literal["sequence", "half"] = "sequence"
    """Part of a sequence that enters the recurrence cache: all of it, or its first `half` (XLNet, whose sequences
    overlap by half)."""

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if any(record.kind != self.kind for record in block.attentions):
            yield "attention is relative in some layers only: use it in all layers of the stack, or in none."
        conflicts = {
            f"position is {block.position}": block.position != "none",
            "norm.position is parallel": block.norm.position == "parallel",
            "attention.bias is no-keys": self.bias == "no-keys",
            f"cross is {block.cross}": block.cross is not None,
            f"last_layer is {block.last_layer}": block.last_layer != "once",
            "convolution is true": block.convolution,
        }
        for conflict in (conflict for conflict, exists in conflicts.items() if exists):
            yield f"{conflict}, which relative attention does not support: change either."
        if size.key_heads != size.heads:
            yield f"kv_heads ({size.key_heads}): relative attention has as many key heads as heads; leave kv_heads out."
        if size.width % 2:
            yield f"width ({size.width}) must be even: relative attention has pairs of sine and cosine."
