"""Base class of the costs of layers: their linear layers, from which modules are built, and their bytes. No torch."""

# D width, F feed-forward features, A = heads x key width

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from megaptm.layers.pattern import Pattern
from megaptm.plugins import load_class
from megaptm.spec import AttentionSpec, Block, InputSpec, LayerSpec, Size

WHOLE = ("none", "shared")
"""Values of `LinearShape.split` with which every tensor rank holds the full linear layer."""


@dataclass(frozen=True)
class LinearShape:
    """Shape of a linear layer [..., inputs] -> [..., outputs], and how tensor ranks may divide it (`layers.split`)."""

    inputs: int
    outputs: int
    bias: bool
    split: str = "none"
    reads_memory: bool = False
    """Whether a linear layer reads the output of another stack (cross-attention), not the layer's own hidden states."""
    matrices: int = 1
    """Number of matrices of the paper that are stored as one linear layer: `interleave` outputs of the first, of the
    next, and so on. Update rules that need full matrices handle each separately."""
    interleave: int = 1

    sequential: bool = False
    """Whether each position of a linear layer depends on the output of the previous one, so that there is one matrix
    product per position."""
    reads_distances: bool = False
    """Whether a linear layer reads the stack's distance table, once per pass, instead of tokens."""
    global_only: bool = False
    """Whether a linear layer is used and trained only if a batch marks global tokens (`global_tokens`)."""

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs

    @property
    def divided(self) -> int:
        """Return the number of parameters of the linear layer that are sharded over tensor ranks."""
        if self.split in WHOLE:
            return 0
        return self.weights + (self.outputs if self.bias and self.split == "columns" else 0)

    @property
    def replicated(self) -> int:
        """Return the number of parameters of the linear layer that are replicated on tensor ranks."""
        bias = self.outputs if self.bias and self.split != "columns" else 0
        return bias + (self.weights if self.split in WHOLE else 0)


@dataclass(frozen=True)
class HeadNormShape:
    """Shape of an RMSNorm of queries or keys."""

    features: int
    """Number of its weights: the width of one head, or of all."""
    split: str
    """`columns` (tensor ranks hold the weights of their heads) or `shared` (all weights, used with their own heads)."""


@dataclass(frozen=True)
class SavedBytes:
    """Bytes per token that the forward pass of a layer saves for the backward pass, over all tensor ranks. They exclude
    norm inputs and dropout masks."""

    own: float
    """Bytes per token of the layer's own stack that are saved."""
    memory: float = 0.0
    """Bytes per token of the stack that cross-attention reads that are saved."""


@dataclass(frozen=True)
class MemoryTraffic:
    """Bytes per token that a layer reads and writes between matrix products, over all tensor ranks."""

    forward: float
    backward: float


class LayerCosts(ABC):
    """Linear layers and costs of a sub-layer of a transformer layer, or of a layer of another kind. They depend only on
    block and size."""

    linears: Mapping[str, LinearShape]
    """Linear layers of a layer by name of the child module."""
    features: int = 0
    """Total width A of the attention heads: one query-key pair costs 2 A multiply-adds."""
    pattern: Pattern | None = None
    """Attention pattern of the layer, if it alone restricts attention."""
    scored: bool = False
    """Whether each layer adds its own terms, such as a position bias, to the attention scores."""
    biases: int = 0
    """Number of further parameters of the layer, sharded over tensor ranks."""
    norms: Mapping[str, HeadNormShape] = MappingProxyType({})
    """Norms of queries and keys by name of the child module."""
    kernels: int = 0
    """Number of kernels per position that the layer launches besides matrix products, if it processes positions one by
    one."""
    score_terms: int = 0
    """Number of terms of distances or segments that each head adds to the score of a query and a key."""
    launches: int = 0
    """Number of kernels of a layer in both passes beyond those of plain sub-layers (`tests/cuda/launches.yaml`)."""
    cached_positions: int = 0
    """Number of positions in the layer's recurrence cache, whose keys and values are recomputed for each sequence."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        """Compute the costs of a layer. `memory`: width of the stack that cross-attention reads."""
        self.block, self.size = block, size

    @property
    def attention(self) -> Any:
        """Return the record of the layer's kind of attention, a subclass of `spec.AttentionSpec`."""
        assert isinstance(self.block.attention, AttentionSpec), "call `Block.at` for one layer first"
        return self.block.attention

    @abstractmethod
    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Return the bytes of the layer's saved activations; `element`: bytes of an activation."""

    @abstractmethod
    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Return the layer's memory traffic between matrix products."""

    @property
    def cache_multiply_adds(self) -> int:
        """Return the multiply-adds per sequence for keys and values of the recurrence cache, which get no gradient."""
        return 0

    def pairs(self, queries: int, keys: int) -> int:
        """Return the number of query-key pairs in a sequence for which the layer computes a score."""
        return queries * keys if self.pattern is None else self.pattern.pairs(queries)

    def computes_only_tiles(self, queries: int) -> bool:
        """Whether attention computes only the query-key pairs of its pattern: no mask of all pairs is built and no
        score is saved."""
        return self.pattern is not None and not self.pattern.is_dense(queries)

    @property
    def defines_mask(self) -> bool:
        """Whether the layer itself defines which positions attend to which. It then needs no mask, only document ids
        and order of the batch."""
        return self.pattern is not None

    def hash_multiply_adds(self, queries: int) -> int:
        """Return the multiply-adds per sequence with which LSH attention chooses query-key pairs. They have no
        gradient, so they are computed once."""
        return 0

    def chosen_pairs_bytes(self, queries: int) -> int:
        """Return the bytes per sequence of the chosen query-key pairs that are saved when layers are recomputed."""
        return 0

    def takes_mask(self, queries: int) -> bool:
        """Whether attention of the layer takes a mask for any batch."""
        return self.pattern is not None and self.pattern.is_dense(queries) and not self.pattern.attends_to_all(queries)


@cache
def costs_class(record: AttentionSpec | InputSpec | LayerSpec) -> Any:
    """Return the class of costs that the record of a kind of attention, layer or input names."""
    return load_class(record, "costs")
