"""A pattern of the user's own: a function of two places, and the blocks of a row in which it is asked. No torch."""

# N blocks of a row

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from megaptm.bricks.pattern import Pattern, Tile
from megaptm.errors import UserError
from megaptm.plugins import is_plugin, load_plugin, plugin_error
from megaptm.spec import Block

COMPARED_ROWS = 8
"""Rows of blocks, at most, of which all pairs are compared: of 16,384 places half a second where all are seen."""
LARGEST = 4096
"""Places of a block, at most: a shorter row is computed as if it had so many."""


@dataclass(frozen=True)
class CustomPattern(Pattern):
    """A place sees another where `mask` says so and `block_mask` has the blocks that they are in: whatever either says,
    all kernels say the same. Each place sees itself, so that none sees nothing in a text by itself."""

    mask: Callable[[Any, Any], Any] = field(repr=False)
    """Of places of queries and of keys, integers that broadcast, numpy's or torch's: booleans. It is made of operators,
    as in `(query - key) % 8 == 0`, which both have, and which FlexAttention can compile."""
    block_mask: Callable[[int], np.ndarray] | None = field(default=None, repr=False)
    """Of how many blocks a row has: which blocks of queries see something of which blocks of keys, bool [N, N]. No
    other is computed. Absent: `mask` is asked of all pairs of a row, once, in time that grows with its square."""
    block: int = 64
    """Places of a block."""
    name: str = "CustomPattern"
    """By which it is told of."""

    @property
    def tile_block(self) -> int:
        return self.block

    def everything(self, length: int) -> bool:
        return False

    def sees(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        # All heads see alike. An index that is no tensor would be sent to a GPU, and one of no dimension, as of a head
        # may be, be waited for: torch takes its number.
        row = query // self.block
        return self.mask(query, key) & table[row * 0, row, key // self.block]

    def table(self, length: int) -> np.ndarray:
        """Of blocks, [1, N, N]."""
        return _table(self, length)

    def tiles(self, length: int) -> Iterator[Tile]:
        for row, seen in enumerate(self.table(length)[0]):
            yield Tile(slice(row * self.block, min(length, (row + 1) * self.block)), np.flatnonzero(seen)[None])


def has_custom_pattern(block: Block) -> bool:
    """Whether some layers see by one."""
    return bool(pattern_words(block))


def pattern_words(block: Block) -> list[str]:
    """Those words of a block's attention that name one."""
    return [word for word in block.words if is_plugin(word)]


def load_pattern(word: str) -> CustomPattern:
    """The pattern that a word of `Block.attention` names, `package.module:NAME`."""
    found = load_plugin(word, "Block.attention", "pattern")
    if not isinstance(found, CustomPattern):
        raise UserError(f"Block.attention: `{word}` is not a `{__name__}.CustomPattern`: correct the name.")
    if type(found.block) is not int or not 1 <= found.block <= LARGEST:
        raise UserError(
            f"Block.attention: the block of `{word}` is {found.block!r}: give a whole number from 1 to {LARGEST:,}."
        )
    return replace(found, name=word)


def check_alike(pattern: CustomPattern, query: Any, key: Any) -> None:
    """A `UserError` where the mask says of torch's tensors, on this machine, what it does not say of numpy's arrays."""
    expected = _asked(pattern, query.numpy(), key.numpy())
    try:
        seen = pattern.mask(query, key)
    except Exception as error:  # whatever the user's code raises
        raise plugin_error(f"Block.attention: of torch's tensors the mask of `{pattern.name}`", error) from None
    if type(seen) is not type(query) or str(seen.dtype) != "torch.bool":
        kind = f"{getattr(seen, 'dtype', '')} {type(seen).__name__}".strip()
        raise _wrong(pattern, f"of torch's tensors its mask gives a {kind}", "make it of operators, which both have")
    if not np.array_equal(seen.numpy(), expected):
        raise _wrong(
            pattern, "of torch's tensors its mask says what it does not of numpy's arrays", "make it of operators"
        )


def fingerprint(pattern: CustomPattern, length: int) -> str:
    """Of what a pattern says of rows of so many places: which blocks see which, and the pairs of some of these. A
    `UserError` where its mask says something else each time."""
    table, places = _table(pattern, length)[0], np.arange(length)
    said = hashlib.sha256(np.packbits(table).tobytes())
    for row in np.unique(np.linspace(0, len(table) - 1, COMPARED_ROWS).astype(np.int64)):
        queries = places[row * pattern.block : (row + 1) * pattern.block, None]
        keys = places[table[row, places // pattern.block]][None]
        pairs, again = (_asked(pattern, queries.copy(), keys.copy()) for _ in range(2))
        if not np.array_equal(pairs, again):
            raise _wrong(pattern, "its mask says something else each time", "let it say what follows from places alone")
        said.update(np.packbits(pairs).tobytes())
    return said.hexdigest()


@lru_cache(maxsize=64)
def _table(pattern: CustomPattern, length: int) -> np.ndarray:
    number, places = -(-length // pattern.block), np.arange(length)
    places.setflags(write=False)  # or a mask that changes what it is given would change what is asked of it next
    if not (itself := _asked(pattern, places, places)).all():
        raise _wrong(pattern, f"place {np.argmin(itself)} does not see itself", "let each see itself")
    if pattern.block_mask is None:
        rows = (places[start : start + pattern.block] for start in range(0, length, pattern.block))
        begins = np.arange(0, length, pattern.block)
        found = np.stack(
            [np.logical_or.reduceat(_asked(pattern, row[:, None], places[None]).any(0), begins) for row in rows]
        )
        return found[None]
    try:
        found, again = pattern.block_mask(number), pattern.block_mask(number)
    except Exception as error:  # whatever the user's code raises
        raise plugin_error(f"Block.attention: the block mask of `{pattern.name}`", error) from None
    if not isinstance(found, np.ndarray) or found.dtype != bool or found.shape != (number, number):
        what = f"{found.dtype} {[*found.shape]}" if isinstance(found, np.ndarray) else type(found).__name__
        raise _wrong(
            pattern, f"its block mask is {what}", f"of {number} blocks give an array, bool [{number}, {number}]"
        )
    if not np.array_equal(found, again):  # so would those of each process be, and of a run that goes on
        raise _wrong(
            pattern, "its block mask is another each time", "draw it by a seed, as np.random.default_rng(0) does"
        )
    if not found.diagonal().all():
        raise _wrong(pattern, f"block {np.argmin(found.diagonal())} does not see itself", "let each see itself")
    return found[None]


def _asked(pattern: CustomPattern, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """What the mask says; a `UserError` where that is no booleans of the pairs."""
    try:
        seen = pattern.mask(query, key)
    except Exception as error:  # whatever the user's code raises
        raise plugin_error(f"Block.attention: the mask of `{pattern.name}`", error) from None
    shape = np.broadcast_shapes(query.shape, key.shape)
    if not isinstance(seen, np.ndarray) or seen.dtype != bool or seen.shape != shape:
        what = f"{seen.dtype} {[*seen.shape]}" if isinstance(seen, np.ndarray) else type(seen).__name__
        raise _wrong(
            pattern, f"of places {[*query.shape]} and {[*key.shape]} its mask says {what}", f"give bool {[*shape]}"
        )
    return seen


def _wrong(pattern: CustomPattern, what: str, remedy: str) -> UserError:
    return UserError(f"Block.attention: the pattern `{pattern.name}` is broken ({what}): {remedy}.")
