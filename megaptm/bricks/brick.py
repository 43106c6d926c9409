"""What a brick is: its linear maps, and what it costs. No torch; `layers` builds its modules from the same maps."""

# D width, F feed-forward features, A = heads x key width

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from megaptm.bricks.pattern import Pattern
from megaptm.errors import UserError
from megaptm.plugins import is_plugin
from megaptm.spec import Block, Size

CUSTOM = "package.module:NAME"
"""The word for a pattern of the user's own, whatever it is called."""
WHOLE = ("none", "shared")
"""Words of `Map.split` under which each tensor rank has all of it."""


@dataclass(frozen=True)
class Map:
    """A linear map [..., inputs] -> [..., outputs], and how tensor ranks may divide it (`layers.split`)."""

    inputs: int
    outputs: int
    bias: bool
    split: str = "none"
    of_memory: bool = False
    """Whether it reads the stack that is attended to, not the layer's own stream."""
    matrices: int = 1
    """Of the paper's, that are one here: outputs are `turn` of the first, as many of the next, and so on. Update rules
    that look at a matrix as a whole take each by itself."""
    turn: int = 1

    sequential: bool = False
    """Whether a position waits for what it gave at the one before: a product for each position, of rows alone."""
    of_distances: bool = False
    """Whether it reads the stack's table of distances, once a pass, and no tokens."""
    of_marked: bool = False
    """Whether it is used, and trained, only where a batch marks tokens that see all (`global_tokens`)."""

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs

    @property
    def divided(self) -> int:
        """Parameters that tensor ranks divide."""
        if self.split in WHOLE:
            return 0
        return self.weights + (self.outputs if self.bias and self.split == "columns" else 0)

    @property
    def whole(self) -> int:
        """Parameters that each tensor rank has."""
        bias = self.outputs if self.bias and self.split != "columns" else 0
        return bias + (self.weights if self.split in WHOLE else 0)


@dataclass(frozen=True)
class SavedBytes:
    """Bytes a token that the forward pass leaves for the backward pass, inputs of norms and masks of dropout left out;
    all tensor ranks together."""

    own: float
    """A token of the layer's own stream."""
    memory: float = 0.0
    """A token of the stack that is attended to."""


@dataclass(frozen=True)
class MemoryTraffic:
    """Bytes a token that are read and written between the products of matrices, all tensor ranks together."""

    forward: float
    backward: float


class Brick(ABC):
    """What stands in a sub-layer of the transformer layer, or is a recurrent one. A function of tables alone."""

    maps: Mapping[str, Map]
    """By the name of the module's child."""
    features: int = 0
    """A, of bricks that compare positions: what one pair of a query and a key costs in multiply-adds, twice."""
    pattern: Pattern | None = None
    """Which positions see which, of bricks that compare no more than that."""
    scored: bool = False
    """Whether each layer adds scores of its own to those of queries and keys."""
    biases: int = 0
    """Parameters beside the maps, which tensor ranks divide."""
    kernels: int = 0
    """Launched for each position of a row, by bricks that go from one to the next, besides its products."""
    remembered: int = 0
    """Places before a row whose keys and values are made of what is remembered, in each row anew."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        """`memory` is the width of the stack that is attended to."""
        self.block, self.size = block, size

    @abstractmethod
    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """What activations of `element` bytes leave in memory."""

    @abstractmethod
    def memory_traffic(self, element: int) -> MemoryTraffic:
        """What goes through memory between products."""

    @property
    def past_products(self) -> int:
        """Multiply-adds of a row for keys and values of what is remembered, to which no gradient goes."""
        return 0

    def pairs(self, queries: int, keys: int) -> int:
        """Pairs of positions that are compared in a row, of all that there are."""
        return queries * keys if self.pattern is None else self.pattern.pairs(queries)

    def tiled(self, queries: int) -> bool:
        """Whether of a row of so many positions no more than what its pattern leaves is computed: no mask of all pairs
        is made, and no score is saved."""
        return self.pattern is not None and not self.pattern.dense(queries)

    @property
    def own_mask(self) -> bool:
        """Whether it knows itself which positions see which, and is told of a batch no more than its numbers."""
        return self.pattern is not None

    def hashing(self, queries: int) -> int:
        """Multiply-adds of a row that choose who is compared with whom: once, as no gradient comes through them."""
        return 0

    def chosen_bytes(self, queries: int) -> int:
        """Of a row, what is saved of such a choice where layers are computed again."""
        return 0

    def masked(self, queries: int) -> bool:
        """Whether attention takes a mask here whatever the batch holds."""
        return self.pattern is not None and self.pattern.dense(queries) and not self.pattern.everything(queries)


B = TypeVar("B", bound=type[Brick])
BRICKS: dict[str, dict[str, type[Brick]]] = {"attention": {}, "cross": {}, "ffn": {}, "recurrent": {}}
"""Slot -> word -> brick."""


def register(slot: str, *words: str) -> Callable[[B], B]:
    """Make a brick the one of some words of a slot; one that does not say what it costs is refused."""

    def add(brick: B) -> B:
        if missing := sorted(getattr(brick, "__abstractmethods__", ())):
            raise TypeError(f"{brick.__name__} does not say what it costs: give it {' and '.join(missing)}.")
        for word in words:
            if word in BRICKS[slot]:
                raise TypeError(f"{slot} has a brick called {word!r} already: {BRICKS[slot][word].__name__}.")
            BRICKS[slot][word] = brick
        return brick

    return add


def brick_of(slot: str, word: str, block: Block, size: Size, memory: int | None = None) -> Brick:
    """The brick of a word; a `UserError` that names those that there are, if it is none of them."""
    known = BRICKS[slot]
    if is_plugin(word):  # a function of the user's costs what one of ours does, a pattern what it leaves
        word = {"ffn": "gelu", "attention": CUSTOM}.get(slot, word)
    if word not in known:
        raise UserError(f"Block.{slot} is {word!r}, which no brick implements; use one of {', '.join(known)}.")
    return known[word](block, size, size.width if memory is None else memory)
