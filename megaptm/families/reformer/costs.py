"""Linear layers and costs of local and LSH attention, and of axial positions."""

from __future__ import annotations

from megaptm.families.reformer.pattern import ChunkPairs
from megaptm.families.reformer.spec import axial_grid, axial_widths
from megaptm.layers.attention_costs import SelfAttentionCosts
from megaptm.layers.costs import LinearShape, MemoryTraffic, SavedBytes
from megaptm.models.embed_costs import InputCosts
from megaptm.spec import Block, Size


class LocalAttentionCosts(SelfAttentionCosts):
    """Costs of Reformer's local self-attention within chunks; a query also attends to the previous chunk."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.pattern = ChunkPairs(self.attention.chunk_length)


class HashedAttentionCosts(SelfAttentionCosts):
    """LSH attention, between positions with similar hashes. Keys are queries of length one. Rows of `qv` are ordered
    (head, [q, v], key width)."""

    defines_mask = True

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.chunk, self.hashes = self.attention.chunk_length, self.attention.num_hashes
        self.factors = self.attention.bucket_factors
        qv = LinearShape(
            size.width, 2 * self.features, bool(self.attention.bias), "columns", matrices=2, interleave=size.key_width
        )
        self.linears, self.biases = {"qv": qv, "output": self.linears["output"]}, 0

    def chunks(self, queries: int) -> int:
        """Return the number of chunks of LSH attention's sorted sequence; 0 if it is so short that all pairs are
        computed."""
        return -(-queries // self.chunk) if queries > self.chunk else 0

    def pairs(self, queries: int, keys: int) -> int:
        """Return LSH attention's number of pairs of all hash rounds: each chunk with itself and the previous one."""
        chunks = self.chunks(queries)
        return self.hashes * chunks * 2 * self.chunk**2 if chunks else queries * keys

    def computes_only_tiles(self, queries: int) -> bool:
        return True

    def takes_mask(self, queries: int) -> bool:
        return False

    def hash_multiply_adds(self, queries: int) -> int:
        return queries * self.features * self.hashes * sum(self.factors) // 2 if self.chunks(queries) else 0

    def chosen_pairs_bytes(self, queries: int) -> int:
        """Return the bytes of LSH attention's bucket ids: 4 per position, head and hash round."""
        return 4 * queries * self.size.heads * self.hashes if self.chunks(queries) else 0

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Return the bytes that LSH attention saves: queries and values in both orders, the outputs of each hash round
        in both orders, and their combination."""
        return SavedBytes(own=self.features * element * (3 + 4 * self.hashes))

    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Return the memory traffic of sorting and unsorting in each hash round of LSH attention."""
        features = self.features * element * (2 + 6 * self.hashes)
        return MemoryTraffic(forward=features, backward=2 * features)


class AxialCosts(InputCosts):
    """Costs of Reformer's axial positions: tables of rows and columns of a grid of positions."""

    @property
    def linears(self) -> tuple[LinearShape, ...]:
        sides = zip(axial_widths(self.spec), axial_grid(self.spec), strict=True)
        return tuple(LinearShape(width, rows, False) for width, rows in sides)
