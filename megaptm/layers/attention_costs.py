"""Linear layers and costs of attention modules. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megaptm.layers.costs import HeadNormShape, LayerCosts, LinearShape, MemoryTraffic, SavedBytes
from megaptm.layers.custom_pattern import load_pattern
from megaptm.layers.pattern import SlidingWindow
from megaptm.spec import Block, Size

MAX_LOGITS = 2**24
"""Maximum number of logits that exist while the largest one is measured: 64 MiB in float32."""


class SelfAttentionCosts(LayerCosts):
    """Costs of scaled dot-product self-attention.

    Rows of `qkv` are ordered (head, [q, k, v], key width). With fewer key heads than query heads there are two
    projections: `query`, and `kv` with rows (head, [k, v], key width).
    """

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.features = size.heads * size.key_width
        self.key_features = size.key_heads * size.key_width
        bias, no_keys = bool(self.attention.bias), self.attention.bias == "no-keys"
        self.biases = 2 * self.features if no_keys else 0
        interleave = size.key_width
        projections = {
            "qkv": LinearShape(
                size.width, 3 * self.features, bias and not no_keys, "columns", matrices=3, interleave=interleave
            )
        }
        if size.key_heads != size.heads:
            # A single key head is replicated on tensor ranks; each uses it with its own queries.
            split = "shared" if size.key_heads == 1 else "columns"
            projections = {
                "query": LinearShape(size.width, self.features, bias, "columns"),
                "kv": LinearShape(size.width, 2 * self.key_features, bias, split, matrices=2, interleave=interleave),
            }
        self.linears = projections | {"output": LinearShape(self.features, size.width, bias, "rows")}
        if self.attention.qk_norm == "head":
            self.norms = dict.fromkeys(("query_norm", "key_norm"), HeadNormShape(size.key_width, "shared"))
        if self.attention.qk_norm == "width":
            of_keys = "shared" if size.key_heads == 1 < size.heads else "columns"
            self.norms = {
                "query_norm": HeadNormShape(self.features, "columns"),
                "key_norm": HeadNormShape(self.key_features, of_keys),
            }

    @classmethod
    def stack_linears(cls, record: Any, block: Block, size: Size, layers: range) -> Iterator[LinearShape]:
        """Yield the tables that a stack has for this kind of attention outside of its layers. A table is described as a
        linear layer from its width to its rows."""
        yield from ()

    @classmethod
    def stack_norms(cls, record: Any, layers: range) -> int:
        """Return the number of norms that a stack has for this kind of attention outside of its layers."""
        return 0

    @classmethod
    def repeated_layers(cls, record: Any, size: Size) -> tuple[int, ...]:
        """Return the indices of layers whose attention runs once more in a pass."""
        return ()

    @classmethod
    def position_table(cls, record: Any, size: Size, layers: range, positions: int) -> LinearShape | None:
        """Return the table of positions that this kind of attention uses in pre-training only, or None."""
        return None

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Return the bytes saved for the backward pass of attention: queries and output (own), keys and values
        (memory), and inputs of norms."""
        saved = (3 if self.norms else 2) * element
        return SavedBytes(own=saved * self.features, memory=saved * self.key_features)

    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Return the memory traffic of attention: layout changes for the kernel and back, norms and rotary embedding
        of queries and keys."""
        features = self.features + self.key_features
        # Each is read twice and written once, and a float32 product is written and read.
        turned = features * (3 * element + 8) if self.block.position == "rope" else 0
        moved = features * element * (2 if self.norms else 1)
        return MemoryTraffic(forward=2 * moved + turned, backward=4 * moved + turned)


class BandedAttentionCosts(SelfAttentionCosts):
    """Costs of self-attention within a band."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        before = size.band_width - 1
        self.pattern = SlidingWindow(before, 0 if block.causal else before)


class SlidingWindowCosts(SelfAttentionCosts):
    """Self-attention within a sliding window."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        window = self.attention.window
        self.pattern = SlidingWindow(window - 1, 0) if block.causal else SlidingWindow(window // 2, window // 2)


class CustomPatternCosts(SelfAttentionCosts):
    """Costs of self-attention with a user-defined pattern."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.pattern = load_pattern(self.attention.pattern)


class CrossAttentionCosts(SelfAttentionCosts):
    """Costs of cross-attention: queries of one stack, keys and values from another's output. Rows of `kv`: (head, [k,
    v], key width)."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        bias = bool(self.attention.bias)
        self.biases, self.norms = 0, {}
        split = "shared" if size.key_heads == 1 < size.heads else "columns"
        self.linears = {
            "query": LinearShape(size.width, self.features, bias, "columns"),
            "kv": LinearShape(
                memory, 2 * self.key_features, bias, split, reads_memory=True, matrices=2, interleave=size.key_width
            ),
            "output": LinearShape(self.features, size.width, bias, "rows"),
        }

    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Return the memory traffic of cross-attention: layout changes. It has no rotary embedding."""
        return MemoryTraffic(forward=self.features * 4 * element, backward=self.features * 8 * element)
