"""Bricks of attention."""

from __future__ import annotations

from dataclasses import replace

from megaptm.bricks.brick import Brick, Map, MemoryTraffic, SavedBytes, register
from megaptm.bricks.custom_pattern import load_pattern
from megaptm.bricks.pattern import ChunkPairs, SlidingWindow, SparseBlocks
from megaptm.spec import Block, Size


@register("attention", "dot")
class SelfAttentionBrick(Brick):
    """Scaled dot product self-attention.

    Rows of `qkv` are ordered (head, [q, k, v], key width). With fewer key heads than query heads there are two
    projections: `query`, and `kv` with rows (head, [k, v], key width).
    """

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.features = size.heads * size.key_width
        self.key_features = size.key_heads * size.key_width
        bias, no_keys = bool(self.attention.bias), self.attention.bias == "no-keys"
        self.biases = 2 * self.features if no_keys else 0
        turn = size.key_width
        projections = {
            "qkv": Map(size.width, 3 * self.features, bias and not no_keys, "columns", matrices=3, turn=turn)
        }
        if size.key_heads != size.heads:
            # A single key head is replicated on tensor ranks; each uses it with its own queries.
            split = "shared" if size.key_heads == 1 else "columns"
            projections = {
                "query": Map(size.width, self.features, bias, "columns"),
                "kv": Map(size.width, 2 * self.key_features, bias, split, matrices=2, turn=turn),
            }
        self.maps = projections | {"output": Map(self.features, size.width, bias, "rows")}

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Return the bytes of queries and output (own), and of keys and values (memory)."""
        return SavedBytes(own=2 * self.features * element, memory=2 * self.key_features * element)

    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Return the traffic of layout changes for the kernel and back, and of rotary embedding of queries and keys."""
        features = self.features + self.key_features
        # Each is read twice and written once, and a float32 product is written and read.
        turned = features * (3 * element + 8) if self.block.position == "rope" else 0
        return MemoryTraffic(forward=features * 2 * element + turned, backward=features * 4 * element + turned)


@register("attention", "banded")
class BandedAttentionBrick(SelfAttentionBrick):
    """Self-attention within a band."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        before = size.band_width - 1
        self.pattern = SlidingWindow(before, 0 if block.causal else before)


@register("attention", "window")
class WindowAttentionBrick(SelfAttentionBrick):
    """Self-attention within a sliding window. Global tokens have projections of their own, with rows ordered like
    `qkv`."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        window, dilation, causal = self.attention.window, self.attention.dilation, block.causal
        self.pattern = SlidingWindow(window if causal else window // 2, 0 if causal else window // 2, dilation)
        of_tokens = Map(size.width, 3 * self.features, bool(self.attention.bias), "columns", matrices=3)
        self.maps = {**self.maps, "global_qkv": replace(of_tokens, turn=size.key_width, of_marked=True)}


@register("attention", "blocks")
class BlockAttentionBrick(SelfAttentionBrick):
    """Block-sparse self-attention."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        record = self.attention
        self.pattern = SparseBlocks(
            record.block_size, record.num_random_blocks, record.edge_blocks, heads=range(size.heads), seed=record.seed
        )


@register("attention", "pattern")
class CustomPatternBrick(SelfAttentionBrick):
    """Self-attention with a user-defined pattern."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.pattern = load_pattern(self.attention.pattern)


@register("attention", "local")
class LocalAttentionBrick(SelfAttentionBrick):
    """Self-attention within chunks; a query also attends to the previous chunk."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.pattern = ChunkPairs(self.attention.chunk_length)


@register("attention", "lsh")
class HashedAttentionBrick(SelfAttentionBrick):
    """LSH attention, between positions with similar hashes. Keys are queries of length one. Rows of `qv` are ordered
    (head, [q, v], key width)."""

    own_mask = True

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.chunk, self.hashes = self.attention.chunk_length, self.attention.num_hashes
        self.factors = self.attention.bucket_factors
        qv = Map(size.width, 2 * self.features, bool(self.attention.bias), "columns", matrices=2, turn=size.key_width)
        self.maps, self.biases = {"qv": qv, "output": self.maps["output"]}, 0

    def chunks(self, queries: int) -> int:
        """Return the number of chunks of a sorted sequence; 0 if it is so short that all pairs are computed."""
        return -(-queries // self.chunk) if queries > self.chunk else 0

    def pairs(self, queries: int, keys: int) -> int:
        """Return the pairs of all hash rounds: each chunk with itself and the previous one."""
        chunks = self.chunks(queries)
        return self.hashes * chunks * 2 * self.chunk**2 if chunks else queries * keys

    def tiled(self, queries: int) -> bool:
        return True

    def masked(self, queries: int) -> bool:
        return False

    def hashing(self, queries: int) -> int:
        return queries * self.features * self.hashes * sum(self.factors) // 2 if self.chunks(queries) else 0

    def chosen_bytes(self, queries: int) -> int:
        """Return the bytes of bucket ids: 4 per position, head and hash round."""
        return 4 * queries * self.size.heads * self.hashes if self.chunks(queries) else 0

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Return the bytes of queries and values in both orders, of the outputs of each hash round in both orders, and
        of their combination."""
        return SavedBytes(own=self.features * element * (3 + 4 * self.hashes))

    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Return the traffic of sorting and unsorting in each hash round."""
        features = self.features * element * (2 + 6 * self.hashes)
        return MemoryTraffic(forward=features, backward=2 * features)


@register("attention", "disentangled")
class DisentangledAttentionBrick(SelfAttentionBrick):
    """Attention with content and distance scores. Rows of the distance table are projected to keys and queries."""

    scored = True

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        if self.attention.projections == "own":
            bias = self.attention.bias
            self.maps = {
                **self.maps,
                "position_key": Map(size.width, self.features, bias is True, "columns", of_distances=True),
                "position_query": Map(size.width, self.features, bool(bias), "columns", of_distances=True),
            }

    def pairs(self, queries: int, keys: int) -> int:
        """Return the pairs of queries and keys, and of each query or key with every possible distance."""
        return queries * keys + queries * min(2 * keys, self.attention.table_rows)


@register("attention", "relative")
class RelativeAttentionBrick(SelfAttentionBrick):
    """Relative attention: content and distance scores, over a sequence and its recurrence cache. Distances are
    projected to keys, and each head adds bias vectors to its queries."""

    scored = True

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        of_distances = Map(size.width, self.features, False, "columns", of_distances=True)
        self.maps = {**self.maps, "place": of_distances}
        self.remembered = size.remembered

    @property
    def past_products(self) -> int:
        return self.remembered * 2 * self.features * self.size.width

    def pairs(self, queries: int, keys: int) -> int:
        """Return the pairs of queries with keys, including cached ones, and with every possible distance."""
        keys += self.remembered
        distances = keys + (1 if self.block.causal else queries)
        return queries * keys + queries * distances // 2


@register("cross", "dot")
class CrossAttentionBrick(SelfAttentionBrick):
    """Cross-attention: queries of one stack, keys and values from another's output. Rows of `kv`: (head, [k, v], key
    width)."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        bias = bool(self.attention.bias)
        self.key_features, self.biases = self.features, 0
        self.maps = {
            "query": Map(size.width, self.features, bias, "columns"),
            "kv": Map(memory, 2 * self.features, bias, "columns", of_memory=True, matrices=2, turn=size.key_width),
            "output": Map(self.features, size.width, bias, "rows"),
        }

    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Return the traffic of layout changes; cross-attention has no rotary embedding."""
        return MemoryTraffic(forward=self.features * 4 * element, backward=self.features * 8 * element)
