"""Options of local and LSH attention, of axial positions, and reversible layers (Reformer, arXiv:2001.04451)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt, prod
from typing import Annotated

from pydantic import Field

from megaptm.spec import AttentionSpec, Block, InputSpec, ModelSpec, PositiveInt, ResidualSpec, Size

MAX_BUCKETS = 1 << 31
"""Maximum number of hash buckets of LSH attention."""


@dataclass(frozen=True, kw_only=True)
class LocalSpec(AttentionSpec):
    """Attention to the chunk of the query and the chunk before it (Reformer, arXiv:2001.04451)."""

    kind = "local"
    costs = "megaptm.families.reformer.costs:LocalAttentionCosts"
    options = (*AttentionSpec.options, "chunk_length")
    reads_global_tokens = True
    caches_keys = False

    chunk_length: PositiveInt = 64
    """Number of positions in a chunk of local attention (Reformer)."""


@dataclass(frozen=True, kw_only=True)
class LSHSpec(LocalSpec):
    """Local attention after sorting positions by hashes of shared queries and keys (Reformer, arXiv:2001.04451)."""

    kind = "lsh"
    takes_global_positions = False
    costs = "megaptm.families.reformer.costs:HashedAttentionCosts"
    module = "megaptm.families.reformer.attention:HashedAttention"
    options = (*LocalSpec.options, "num_hashes", "num_buckets")
    reads_global_tokens = False

    num_hashes: Annotated[int, Field(ge=1, le=1 << 10)] = 1
    """Number of hash rounds of LSH attention, each with its own random rotations."""
    num_buckets: PositiveInt | Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = 64
    """Number of hash buckets of LSH attention, even; a tuple of factors for a factorized hash."""

    @property
    def bucket_factors(self) -> tuple[int, ...]:
        """Return the factors of LSH attention's number of hash buckets."""
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
class AxialInput(InputSpec):
    """Axial positions: two tables, for the row and the column of a position in a grid (section 2)."""

    name = "axial"
    costs = "megaptm.families.reformer.costs:AxialCosts"
    module = "megaptm.families.reformer.positions:AxialPositions"
    reads_positions = True
    initial_std = 1.0  # the released code
    size_keys = ("axial",)
    fits_context = True

    absence = "has no axial positions"

    def errors(self, spec: ModelSpec) -> Iterator[str]:
        rows, columns = axial_grid(spec)
        if (positions := rows * columns) != spec.context:
            yield (
                f"model.axial ({rows} x {columns}) has {positions} positions, and model.context is {spec.context}: "
                "make them equal, or remove model.axial."
            )
        if spec.size.table_width < 4:
            yield f"model.width ({spec.size.table_width}) is too small for axial positions; make it 4 or more."

    def derived_sizes(self, spec: ModelSpec) -> dict[str, tuple[int, int]]:
        return {"axial": axial_grid(spec)}


def axial_grid(spec: ModelSpec) -> tuple[int, int]:
    """Return rows and columns of Reformer's grid of axial positions: the size's, or the factorization of the context
    nearest to a square."""
    if (grid := spec.size.inputs.get("axial")) is not None:
        rows, columns = grid
        return rows, columns
    rows = next(rows for rows in range(isqrt(spec.context), 0, -1) if spec.context % rows == 0)
    return rows, spec.context // rows


def axial_widths(spec: ModelSpec) -> tuple[int, int]:
    """Return the widths of the row and column embeddings of Reformer's axial positions: one to three, as in the
    released models."""
    rows = spec.size.table_width // 4
    return rows, spec.size.table_width - rows


@dataclass(frozen=True, kw_only=True)
class ReversibleResidual(ResidualSpec):
    """Two residual streams (section 3): the inputs of a layer are recomputed from its outputs, so no activations are
    saved."""

    kind = "reversible"
    stack = "megaptm.families.reformer.stack:ReversibleStack"
    streams = 2
    saves_activations = False

    def errors(self, block: Block) -> Iterator[str]:
        conflicts = {
            f"norm.position is {block.norm.position}": block.norm.position != "pre",
            f"position is {block.position}": block.score_bias,
            f"attention is {block.kinds[0]}": any(record.stack != AttentionSpec.stack for record in block.attentions),
            f"cross is {block.cross}": block.cross is not None,
            f"sharing.sublayers is {block.sharing.sublayers}": bool(block.sharing.sublayers),
        }
        for conflict in (conflict for conflict, exists in conflicts.items() if exists):
            yield f"{conflict}, which reversible layers do not support: change it, or use ResidualSpec()."
