"""User-defined attention patterns: a function of two positions, evaluated in blocks of a sequence. No torch."""

# N blocks of a sequence

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from megaptm.errors import UserError
from megaptm.layers.pattern import Pattern, Tile
from megaptm.plugins import load_plugin, plugin_error
from megaptm.spec import Block, PatternSpec

COMPARED_ROWS = 8
"""Maximum number of block rows of a custom attention pattern whose query-key pairs are all compared: half a second for
16,384 positions if all attend."""
LARGEST = 4096
"""Maximum block size of a custom attention pattern in positions. A shorter sequence costs as much as a block."""


@dataclass(frozen=True)
class CustomPattern(Pattern):
    """Custom attention pattern: a query attends to a key if `mask` is True and `block_mask` includes their blocks.

    All kernels apply both conditions. Each position must attend to itself, so that no query of a document has no key.
    """

    mask: Callable[[Any, Any], Any] = field(repr=False)
    """Function from query and key positions to a boolean array: which queries attend to which keys.

    Positions are integer arrays of numpy or torch that broadcast. The function uses operators that both have, such as
    `(query - key) % 8 == 0`, which FlexAttention can compile.
    """
    block_mask: Callable[[int], np.ndarray] | None = field(default=None, repr=False)
    """Function from the number of blocks of a sequence to a boolean array [N, N]: which blocks of queries attend to
    which blocks of keys. Other blocks are not computed.

    None: `mask` is evaluated once for all pairs of a sequence, in quadratic time.
    """
    block: int = 64
    """Number of positions in a block of the attention pattern."""
    name: str = "CustomPattern"
    """Name of the attention pattern in messages."""

    @property
    def key_block_size(self) -> int:
        return self.block

    def attends_to_all(self, length: int) -> bool:
        return False

    def attends(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        # The same for all heads. An index that is no tensor would be copied to a GPU, and torch reads the value of an
        # index without dimensions, such as a head may be: it would synchronize.
        row = query // self.block
        return self.mask(query, key) & table[row * 0, row, key // self.block]

    def table(self, length: int) -> np.ndarray:
        """Return the block table of the attention pattern, [1, N, N]: which blocks of queries attend to which blocks of
        keys."""
        return _block_table(self, length)

    def tiles(self, length: int) -> Iterator[Tile]:
        for row, attended in enumerate(self.table(length)[0]):
            yield Tile(slice(row * self.block, min(length, (row + 1) * self.block)), np.flatnonzero(attended)[None])


def pattern_words(block: Block) -> list[str]:
    """Return the names of the user-defined attention patterns of a block."""
    return list(dict.fromkeys(record.pattern for record in block.attentions if isinstance(record, PatternSpec)))


def load_pattern(word: str) -> CustomPattern:
    """Load the custom attention pattern that a value of `Block.attention` names, `package.module:NAME`."""
    pattern = load_plugin(word, "Block.attention", "pattern")
    if not isinstance(pattern, CustomPattern):
        raise UserError(f"Block.attention: `{word}` is not a `{__name__}.CustomPattern`: correct the name.")
    if type(pattern.block) is not int or not 1 <= pattern.block <= LARGEST:
        raise UserError(
            f"Block.attention: the block of `{word}` is {pattern.block!r}: give a whole number from 1 to {LARGEST:,}."
        )
    return replace(pattern, name=word)


def check_pattern_libraries(pattern: CustomPattern, query: Any, key: Any) -> None:
    """Raise UserError if the mask of a custom attention pattern differs between torch tensors and numpy arrays on this
    machine."""
    expected = _mask_of(pattern, query.numpy(), key.numpy())
    try:
        attended = pattern.mask(query, key)
    except Exception as error:  # whatever the user's code raises
        raise plugin_error(
            f"Block.attention: the mask of `{pattern.name}`, called with torch tensors,", error
        ) from None
    if type(attended) is not type(query) or str(attended.dtype) != "torch.bool":
        kind = f"{getattr(attended, 'dtype', '')} {type(attended).__name__}".strip()
        raise _invalid_pattern_error(
            pattern, f"its mask returns a {kind} for torch tensors", "use only operators that torch and numpy share"
        )
    if not np.array_equal(attended.numpy(), expected):
        raise _invalid_pattern_error(
            pattern,
            "its mask gives different results for torch tensors and numpy arrays",
            "use only operators that torch and numpy share",
        )


def pattern_fingerprint(pattern: CustomPattern, length: int) -> str:
    """Return a hash of a custom attention pattern for a sequence length: of its block table, and of the pairs of some
    block rows.

    Raise UserError if the mask is not reproducible.
    """
    table, positions = _block_table(pattern, length)[0], np.arange(length)
    digest = hashlib.sha256(np.packbits(table).tobytes())
    for row in np.unique(np.linspace(0, len(table) - 1, COMPARED_ROWS).astype(np.int64)):
        queries = positions[row * pattern.block : (row + 1) * pattern.block, None]
        keys = positions[table[row, positions // pattern.block]][None]
        pairs, again = (_mask_of(pattern, queries.copy(), keys.copy()) for _ in range(2))
        if not np.array_equal(pairs, again):
            raise _invalid_pattern_error(
                pattern,
                "its mask differs between two calls with the same positions",
                "compute it from the positions only",
            )
        digest.update(np.packbits(pairs).tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _block_table(pattern: CustomPattern, length: int) -> np.ndarray:
    number, positions = -(-length // pattern.block), np.arange(length)
    positions.setflags(write=False)  # Read-only: a mask that writes to its input would change later inputs.
    if not (itself := _mask_of(pattern, positions, positions)).all():
        raise _invalid_pattern_error(
            pattern, f"position {np.argmin(itself)} does not attend to itself", "let every position attend to itself"
        )
    if pattern.block_mask is None:
        rows = (positions[start : start + pattern.block] for start in range(0, length, pattern.block))
        starts = np.arange(0, length, pattern.block)
        blocks = np.stack(
            [np.logical_or.reduceat(_mask_of(pattern, row[:, None], positions[None]).any(0), starts) for row in rows]
        )
        return blocks[None]
    try:
        blocks, again = pattern.block_mask(number), pattern.block_mask(number)
    except Exception as error:  # whatever the user's code raises
        raise plugin_error(f"Block.attention: the block mask of `{pattern.name}`", error) from None
    if not isinstance(blocks, np.ndarray) or blocks.dtype != bool or blocks.shape != (number, number):
        received = f"{blocks.dtype} {[*blocks.shape]}" if isinstance(blocks, np.ndarray) else type(blocks).__name__
        raise _invalid_pattern_error(
            pattern, f"its block mask is {received}", f"return a bool array [{number}, {number}] for {number} blocks"
        )
    if not np.array_equal(blocks, again):  # it would also differ between processes, and in a resumed run
        raise _invalid_pattern_error(
            pattern, "its block mask differs between two calls", "use a fixed seed, as in np.random.default_rng(0)"
        )
    if not blocks.diagonal().all():
        raise _invalid_pattern_error(
            pattern,
            f"block {np.argmin(blocks.diagonal())} does not attend to itself",
            "let every block attend to itself",
        )
    return blocks[None]


def _mask_of(pattern: CustomPattern, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return the mask of a custom attention pattern. Raise UserError if it is not a boolean array of the pairs."""
    try:
        attended = pattern.mask(query, key)
    except Exception as error:  # whatever the user's code raises
        raise plugin_error(f"Block.attention: the mask of `{pattern.name}`", error) from None
    shape = np.broadcast_shapes(query.shape, key.shape)
    if not isinstance(attended, np.ndarray) or attended.dtype != bool or attended.shape != shape:
        received = (
            f"{attended.dtype} {[*attended.shape]}" if isinstance(attended, np.ndarray) else type(attended).__name__
        )
        raise _invalid_pattern_error(
            pattern,
            f"for positions {[*query.shape]} and {[*key.shape]} its mask is {received}",
            f"return bool {[*shape]}",
        )
    return attended


def _invalid_pattern_error(pattern: CustomPattern, problem: str, remedy: str) -> UserError:
    return UserError(f"Block.attention: the pattern `{pattern.name}` is invalid ({problem}): {remedy}.")
