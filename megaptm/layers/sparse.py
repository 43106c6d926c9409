"""Sparse attention over the tiles of a pattern: time and memory grow with the number of allowed query-key pairs.

Tiles are computed one after the other, for all sequences and heads at once; on a GPU consecutive tiles of equal form
together, up to `MAX_SCORES`. Only the scores of these tiles are in memory. Queries, keys and values are saved for the
backward pass, which recomputes scores. Only products, softmax and slices are used, which run on every device:
FlexAttention has no backward pass on CPUs and no dropout.
"""

# S sequence, B batch, H heads, K head width, N = B x H, R tiles, q queries of a tile, k its keys, G global positions

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.autograd.function import once_differentiable

from megaptm.layers.accumulate import sum_dtype
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import MAX_SCORES, Pattern, Tile
from megaptm.layers.rng import next_seed


@dataclass(frozen=True)
class GlobalPositions:
    """Global positions of each sequence, padded to an equal number."""

    positions: Tensor
    """Global positions of each sequence, [B, G]."""
    real: Tensor
    """Whether an entry of the global positions is valid, [B, G]; False for padding."""

    @classmethod
    def from_marks(cls, marks_BS: Tensor, positions_BG: Tensor | None = None) -> GlobalPositions:
        """Build the global positions from marks of global tokens [B, S]. `positions_BG`: result of `global_positions`,
        if already computed."""
        positions_BG = global_positions(marks_BS) if positions_BG is None else positions_BG
        return cls(positions_BG, marks_BS.gather(1, positions_BG) != 0)

    def gather(self, x_SBHK: Tensor) -> Tensor:
        """Return x at the global positions, [G, B, H, K]."""
        rows = torch.arange(len(self.positions), device=self.positions.device)
        return x_SBHK[self.positions.t(), rows]

    def scatter(self, x_SBHK: Tensor, own_GBHK: Tensor) -> Tensor:
        """Return x with other values at the global positions."""
        # Padding entries point to other positions of the same sequence, which keep their values.
        put_GBHK = torch.where(self.real.t()[:, :, None, None], own_GBHK, self.gather(x_SBHK))
        rows = torch.arange(len(self.positions), device=self.positions.device)
        return x_SBHK.index_put((self.positions.t(), rows), put_GBHK)

    def key_mask(self, mask: Mask, query: Tensor) -> Tensor:
        """Return the mask of queries [q, 1] and global positions as keys, [B, 1, q, G]."""
        rows, slots = (torch.arange(number, device=self.positions.device) for number in self.positions.shape)
        return self.is_attended(mask, rows.view(-1, *(1,) * (query.dim() + 1)), query, slots)

    def is_attended(self, mask: Mask, batch: Tensor, query: Tensor, slot: Tensor) -> Tensor:
        """Whether queries attend to global positions, for broadcastable batch, query and slot indices."""
        return self.real[batch, slot] & _without_pattern(mask, batch, query, self.positions[batch, slot])

    def query_mask(self, mask: Mask) -> Tensor:
        """Return the mask of global positions as queries and all positions as keys, [B, 1, G, S]."""
        rows, keys = (torch.arange(number, device=mask.device) for number in (len(self.positions), mask.length[1]))
        attended = _without_pattern(mask, rows[:, None, None, None], self.positions[:, None, :, None], keys)
        return attended.expand(len(self.positions), 1, self.positions.shape[1], len(keys))


def global_positions(marks_BS: Tensor) -> Tensor:
    """Return the global positions of each sequence [B, G], padded with other positions to a power of two.

    A kernel is compiled for each G. The host waits for the GPU to count them.
    """
    marks = marks_BS != 0
    max_marked = int(marks.sum(1).max())
    max_marked = max_marked and 1 << (max_marked - 1).bit_length()
    return marks.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :max_marked]


def _without_pattern(mask: Mask, batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the attention mask without the pattern."""
    attended = mask.attends_by_content(batch, query, key)
    return attended & (key <= query) if mask.causal else attended


def attend_by_tiles(
    q_SBHK: Tensor,
    k_SBHK: Tensor,
    v_SBHK: Tensor,
    mask: Mask,
    marked: GlobalPositions | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """Compute attention over the tiles of a pattern: return the output under the mask, [S, B, H, K]. The output at
    global positions is computed elsewhere; here they are treated as ordinary queries."""
    extra = (None, None) if marked is None else (marked.gather(k_SBHK), marked.gather(v_SBHK))
    # Sampled from the caller's generator. The backward pass repeats the dropout masks from it.
    seed = next_seed(q_SBHK.device) if dropout else 0
    mixed: Tensor = _ByTiles.apply(q_SBHK, k_SBHK, v_SBHK, *extra, _TileInputs(mask, marked, scale, dropout, seed))
    return mixed


def max_scores(device: torch.device) -> int:
    """Return the maximum number of scores of consecutive tiles that sparse attention computes at once. A GPU would wait
    for the launches of single tiles; on a CPU single tiles fit into the cache."""
    return MAX_SCORES if device.type == "cuda" else 0


@dataclass(frozen=True, eq=False)
class _Tile:
    """Group of R consecutive tiles of an attention pattern. Its block indices are on the device."""

    queries: slice
    """Queries of all R tiles of the group."""
    keys: slice | Tensor
    """Key positions of the first tile, or block indices [H, R, blocks]. From tile to tile, key positions advance by the
    number of queries."""
    exact: bool
    number: int = 1
    """Number R of tiles in the group."""
    used: Tensor | None = None
    """Whether a key is used, [1, H, R, 1, keys]: False for block indices that only pad shorter tiles. None if all
    are."""

    @property
    def num_queries(self) -> int:
        """Number of queries of one tile."""
        return len(range(self.queries.start, self.queries.stop, self.queries.step or 1)) // self.number

    def windows(self, x: Tensor, dim: int, first: int = 0, last: int | None = None) -> Tensor:
        """Return a view of the keys of all R tiles, positions `first` to `last` of each. The dimension of positions
        becomes R, and the keys of a tile are the last dimension."""
        assert isinstance(self.keys, slice)
        step = self.keys.step or 1
        number = len(range(self.keys.start, self.keys.stop, step)) if last is None else last
        start, until = self.keys.start + first * step, (self.number - 1) * self.num_queries + number - first
        positions = slice(start, start + (until - 1) * step + 1, step)
        return x[(slice(None),) * dim + (positions,)].unfold(dim, number - first, self.num_queries)

    def divide(self, x_SNK: Tensor) -> Tensor:
        """Return the queries of the tiles, [N x R, q, K]."""
        x_NSK = x_SNK[self.queries].transpose(0, 1)
        return x_NSK if self.number == 1 else x_NSK.unflatten(1, (self.number, -1)).flatten(0, 1)

    def join(self, x: Tensor) -> Tensor:
        """Return the output of the tiles in the order of the queries; the inverse of `divide`."""
        x_NSK = x if self.number == 1 else x.unflatten(0, (-1, self.number)).flatten(1, 2)
        return x_NSK.transpose(0, 1)


def _tiles_of(mask: Mask, rows: int) -> list[_Tile]:
    """Return the groups of tiles of an attention mask. `rows`: number of sequences times heads."""
    assert mask.pattern is not None
    # Tensors of a dry run have no values, so they are cached apart.
    mode = detect_fake_mode()
    return _tiles_on(mask.pattern, mask.length[0], mask.device, mode, max_scores(mask.device) // rows)


@lru_cache(maxsize=256)
def _tiles_on(pattern: Pattern, length: int, device: torch.device, mode: object, limit: int) -> list[_Tile]:
    """Return the groups of tiles of a pattern with block indices on the device; cached, because copies in each layer of
    each step would synchronize. `limit`: scores of a sequence and head that are computed at once."""
    return [_on_device(group, pattern.key_block_size, device) for group in _group_tiles(pattern, length, limit)]


def _on_device(tiles: list[Tile], block: int, device: torch.device) -> _Tile:
    first, queries = tiles[0], slice(tiles[0].queries.start, tiles[-1].queries.stop, tiles[0].queries.step)
    if isinstance(first.keys, slice):
        return _Tile(queries, first.keys, first.exact, len(tiles))
    keys = [np.asarray(tile.keys) for tile in tiles]
    widths = np.array([each.shape[1] for each in keys])
    missing = widths.max() - widths
    filled = np.stack([np.pad(each, ((0, 0), (0, number))) for each, number in zip(keys, missing, strict=True)], 1)
    used = None
    if missing.any():
        positions = np.repeat(np.arange(widths.max()) < widths[:, None], block, axis=1)
        used = torch.from_numpy(positions[None, None, :, None]).to(device)
    return _Tile(queries, torch.from_numpy(filled).to(device), first.exact, len(tiles), used)


def _group_tiles(pattern: Pattern, length: int, limit: int) -> Iterator[list[Tile]]:
    """Yield groups of consecutive tiles with equally many queries: of equal windows, or of block indices and nearly
    equally many keys."""
    group: list[Tile] = []
    widest = total = 0
    for tile in pattern.tiles(length):
        width = _num_keys(tile) if isinstance(tile.keys, slice) else tile.keys.shape[1] * pattern.key_block_size
        widest, total = max(widest, width), total + width
        filled = (len(group) + 1) * widest
        fits = filled * _num_queries(tile) <= limit and 4 * filled <= 5 * total
        if group and not (fits and _continues_group(group[-1], tile)):
            yield group
            group, widest, total = [], width, width
        group.append(tile)
    if group:
        yield group


def _continues_group(last: Tile, tile: Tile) -> bool:
    """Whether a tile of an attention pattern continues a group: the form of the last tile, moved by its number of
    queries."""
    if _num_queries(tile) != _num_queries(last):
        return False
    if isinstance(tile.keys, slice) and isinstance(last.keys, slice):
        step = tile.queries.step or 1
        moved = tile.queries.start - last.queries.start
        return (
            moved == _num_queries(tile) * step
            and step == (tile.keys.step or 1)
            and tile.keys.start - last.keys.start == moved
            and _num_keys(tile) == _num_keys(last)
        )
    return not isinstance(tile.keys, slice) and not isinstance(last.keys, slice) and tile.exact == last.exact


def _num_queries(tile: Tile) -> int:
    return len(range(tile.queries.start, tile.queries.stop, tile.queries.step or 1))


def _num_keys(tile: Tile) -> int:
    assert isinstance(tile.keys, slice)
    return len(range(tile.keys.start, tile.keys.stop, tile.keys.step or 1))


@dataclass(frozen=True)
class _TileInputs:
    """Inputs without gradient of the forward and backward pass of sparse attention."""

    mask: Mask
    marked: GlobalPositions | None
    scale: float
    dropout: float
    seed: int


class _ByTiles(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_SBHK: Tensor,
        k_SBHK: Tensor,
        v_SBHK: Tensor,
        k_GBHK: Tensor | None,
        v_GBHK: Tensor | None,
        work: _TileInputs,
    ) -> Tensor:
        ctx.save_for_backward(q_SBHK, k_SBHK, v_SBHK, k_GBHK, v_GBHK)
        ctx.work = work
        keys, values = _KeysOrValues(k_SBHK, k_GBHK, work.mask), _KeysOrValues(v_SBHK, v_GBHK, work.mask)
        mixed_SBHK = torch.empty(q_SBHK.shape, dtype=q_SBHK.dtype, device=q_SBHK.device)
        mixed_SNK = mixed_SBHK.flatten(1, 2)
        for tile, _, _, weights, drop in _attention_weights(q_SBHK, keys, work):
            used = weights if drop is None else weights * drop
            mixed_SNK[tile.queries] = tile.join(torch.bmm(used, values.gather_tiles(tile)))
        return mixed_SBHK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SBHK: Tensor) -> tuple[Tensor | None, ...]:
        work: _TileInputs = ctx.work
        q_SBHK, k_SBHK, v_SBHK, k_GBHK, v_GBHK = ctx.saved_tensors
        keys, values = _KeysOrValues(k_SBHK, k_GBHK, work.mask), _KeysOrValues(v_SBHK, v_GBHK, work.mask)
        grad_q_SBHK = torch.empty(q_SBHK.shape, dtype=q_SBHK.dtype, device=q_SBHK.device)
        grad_q_SNK, grad_SNK = grad_q_SBHK.flatten(1, 2), grad_SBHK.flatten(1, 2)
        for tile, q, k, weights, drop in _attention_weights(q_SBHK, keys, work):
            grad = tile.divide(grad_SNK)
            used = weights if drop is None else weights * drop
            values.add(tile, torch.bmm(used.transpose(1, 2), grad))
            del used  # tensors of scores are the peak of memory
            grad_weights = torch.bmm(grad, values.gather_tiles(tile).transpose(1, 2))
            if drop is not None:
                grad_weights *= drop
            grad_scores = torch._softmax_backward_data(grad_weights, weights, 2, weights.dtype)
            grad_q_SNK[tile.queries] = tile.join(torch.bmm(grad_scores, k)) * work.scale
            keys.add(tile, torch.bmm(grad_scores.transpose(1, 2), q))
        (grad_k, grad_marked_k), (grad_v, grad_marked_v) = keys.gradients(), values.gradients()
        return grad_q_SBHK, grad_k, grad_v, grad_marked_k, grad_marked_v, None


def _attention_weights(
    q_SBHK: Tensor, keys: _KeysOrValues, work: _TileInputs
) -> Iterator[tuple[_Tile, Tensor, Tensor, Tensor, Tensor | None]]:
    """Yield each tile, its scaled queries [N, q, K] and keys [N, k + G, K], its attention weights [N, q, k + G] and
    dropout factors."""
    q_SNK, tile_masks = q_SBHK.flatten(1, 2), _TileMask(work, q_SBHK)
    generator = torch.Generator(q_SBHK.device).manual_seed(work.seed) if work.dropout else None
    for tile in _tiles_of(work.mask, q_SNK.shape[1]):
        q, k = tile.divide(q_SNK) * work.scale, keys.gather_tiles(tile)
        scores = torch.bmm(q, k.transpose(1, 2))
        if (visible := tile_masks.of(tile)) is not None:
            rows = (q_SBHK.shape[1], -1) if visible.dim() == 4 else (q_SBHK.shape[1], -1, tile.number)
            scores.unflatten(0, rows).masked_fill_(~visible, float("-inf"))
        weights = torch.softmax(scores, dim=2)  # accumulates in float32
        del scores
        drop = None
        if generator is not None:
            drop = torch.empty_like(weights).bernoulli_(1 - work.dropout, generator=generator)
            drop /= 1 - work.dropout
        yield tile, q, k, weights, drop


class _TileMask:
    """Attention mask within a tile of an attention pattern."""

    def __init__(self, work: _TileInputs, q_SBHK: Tensor) -> None:
        self.mask, self.marked = work.mask, work.marked
        self.positions = torch.arange(len(q_SBHK), device=q_SBHK.device)
        self.rows = torch.arange(q_SBHK.shape[1], device=q_SBHK.device)
        self.windows: dict[tuple[int, int, int], Tensor] = {}

    def of(self, tile: _Tile) -> Tensor | None:
        """Return the attention mask of a tile as booleans that broadcast to [B, H, q, k + G], or to [B, H, R, q, k + G]
        of several tiles and of block indices. None if nothing is masked."""
        query, key = self.positions[tile.queries][:, None], self._key_positions(tile)
        if tile.number > 1 or not isinstance(tile.keys, slice):
            query = query.unflatten(0, (tile.number, -1))
        rows = self.rows.view(-1, *(1,) * (query.dim() + 1))
        attended = self._by_position(tile, query, key)
        key = key.clamp(max=len(self.positions) - 1)
        if self.mask.documents is not None or self.mask.order is not None:
            allowed = self.mask.attends_by_content(rows, query, key)
            attended = allowed if attended is None else attended & allowed
        if self.marked is None or self.mask.marks is None:
            return attended
        # Global keys are compared once, beside the tile's own keys.
        without_global_tokens = self.mask.marks[rows, key] == 0
        own, beside = (
            without_global_tokens if attended is None else attended & without_global_tokens,
            self.marked.key_mask(self.mask, query),
        )
        shape = (*own.shape[:2], *query.shape[:-1])
        return torch.cat([own.expand(*shape, -1), beside.expand(*shape, -1)], dim=-1)

    def _key_positions(self, tile: _Tile) -> Tensor:
        """Return the key positions of a tile that broadcast to [B, H, q, k] or [B, H, R, q, k]."""
        if isinstance(tile.keys, slice):
            return self.positions[tile.keys] if tile.number == 1 else tile.windows(self.positions, 0)[:, None]
        assert self.mask.pattern is not None
        block = self.mask.pattern.key_block_size
        starts = tile.keys * block
        return (starts[..., None] + torch.arange(block, device=starts.device)).flatten(2)[None, :, :, None]

    def _by_position(self, tile: _Tile, query: Tensor, key: Tensor) -> Tensor | None:
        zero = query.new_zeros(())
        if not isinstance(tile.keys, slice):
            ragged = len(self.positions) % (key.shape[-1] // tile.keys.shape[-1])
            within = (key < len(self.positions)).expand(1, -1, *query.shape[:-1], -1) if ragged else None
            if tile.used is not None:
                within = tile.used if within is None else within & tile.used
            if tile.exact:
                return within
            attended = self.mask.without_global_tokens.attends_by_position(
                zero, zero, query, key.clamp(max=len(self.positions) - 1)
            )
            return attended if within is None else attended & within
        if tile.exact:
            return None
        # The mask of a window depends only on relative positions.
        at = (tile.queries.start - tile.keys.start, query.shape[-2], key.shape[-1])
        if at not in self.windows:
            first_query, first_key = (query, key) if tile.number == 1 else (query[0], key[0, 0])
            attended = self.mask.without_global_tokens.attends_by_position(zero, zero, first_query, first_key)
            self.windows[at] = attended[None, None]
        return self.windows[at] if tile.number == 1 else self.windows[at][None]


class _KeysOrValues:
    """Keys or values of sparse attention, with those of global positions appended, and their float32 gradients."""

    def __init__(self, x_SBHK: Tensor, x_GBHK: Tensor | None, mask: Mask) -> None:
        self.x_SBHK, self.x_GBHK = x_SBHK, x_GBHK
        self.block = 0 if mask.pattern is None else mask.pattern.key_block_size
        self.x_NSK = x_SBHK.flatten(1, 2).transpose(0, 1)
        if self.block:
            missing = -len(x_SBHK) % self.block
            self.x_NSK = F.pad(self.x_NSK, (0, 0, 0, missing)).contiguous()
        self.x_NGK = None if x_GBHK is None else x_GBHK.flatten(1, 2).transpose(0, 1)
        self.grad_NSK: Tensor | None = None
        self.grad_NGK: Tensor | None = None

    def gather_tiles(self, tile: _Tile) -> Tensor:
        """Return the keys or values of the tiles of a group, [N x R, k + G, K]."""
        if isinstance(tile.keys, slice) and tile.number == 1:
            x_NkK = self.x_NSK[:, tile.keys]
        elif isinstance(tile.keys, slice):
            x_NkK = tile.windows(self.x_NSK, 1).transpose(2, 3).flatten(0, 1)
        else:
            blocks = self.x_NSK.view(-1, self.block * self.x_NSK.shape[2])
            x_NkK = blocks[self._block_indices(tile.keys)].view(len(self.x_NSK) * tile.number, -1, self.x_NSK.shape[2])
        return x_NkK if self.x_NGK is None else torch.cat([x_NkK, _repeat_for_tiles(self.x_NGK, tile.number)], dim=1)

    def add(self, tile: _Tile, grad_NkK: Tensor) -> None:
        """Add gradients to those of the keys or values that `gather_tiles` returned."""
        # Equal shapes do not suffice: blocks may be in another order, or global keys may be appended.
        is_complete = self.x_NGK is None and isinstance(tile.keys, slice) and grad_NkK.shape == self.x_NSK.shape
        if self.grad_NSK is None and is_complete:
            self.grad_NSK = grad_NkK
            return
        if self.grad_NSK is None:
            self.grad_NSK = self._zeros_like(self.x_NSK)
        self.grad_NSK = self.grad_NSK.to(sum_dtype(self.grad_NSK.dtype))
        if self.x_NGK is not None:
            marked = self.x_NGK.shape[1]
            self.grad_NGK = self._zeros_like(self.x_NGK) if self.grad_NGK is None else self.grad_NGK
            self.grad_NGK += _sum_over_tiles(grad_NkK[:, grad_NkK.shape[1] - marked :], tile.number)
            grad_NkK = grad_NkK[:, : grad_NkK.shape[1] - marked]
        if isinstance(tile.keys, slice) and tile.number == 1:
            self.grad_NSK[:, tile.keys] += grad_NkK
        elif isinstance(tile.keys, slice):
            # The windows of neighbors overlap; parts as long as the distance between them do not.
            grad_NRKk, size = grad_NkK.unflatten(0, (-1, tile.number)).transpose(2, 3), tile.num_queries
            for first in range(0, grad_NkK.shape[1], size):
                last = min(first + size, grad_NkK.shape[1])
                part = tile.windows(self.grad_NSK, 1, first, last)
                part += grad_NRKk[..., first:last]
        else:
            blocks = self.grad_NSK.view(-1, self.block * self.grad_NSK.shape[2])
            rows = self._block_indices(tile.keys)
            blocks.index_add_(0, rows, grad_NkK.reshape(len(rows), -1).to(blocks.dtype))

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        assert self.grad_NSK is not None
        length = len(self.x_SBHK)
        grad = self.grad_NSK[:, :length].transpose(0, 1).reshape(self.x_SBHK.shape).to(self.x_SBHK.dtype)
        if self.grad_NGK is None or self.x_GBHK is None:
            return grad, None
        return grad, self.grad_NGK.transpose(0, 1).reshape(self.x_GBHK.shape).to(self.x_GBHK.dtype)

    @staticmethod
    def _zeros_like(x: Tensor) -> Tensor:
        return torch.zeros(x.shape, dtype=sum_dtype(x.dtype), device=x.device)

    def _block_indices(self, keys: Tensor) -> Tensor:
        """Return the block indices of tiles, [N x R x blocks], among the blocks of all sequences and heads."""
        each = self.x_NSK.shape[1] // self.block
        first = torch.arange(len(self.x_NSK), device=keys.device) * each
        return (first.view(-1, len(keys), 1, 1) + keys).flatten()


def _repeat_for_tiles(x_NGK: Tensor, number: int) -> Tensor:
    """Return x for each of R tiles, [N x R, G, K]."""
    return x_NGK if number == 1 else x_NGK[:, None].expand(-1, number, -1, -1).flatten(0, 1)


def _sum_over_tiles(x: Tensor, number: int) -> Tensor:
    """Return the sum over R tiles, [N, G, K] from [N x R, G, K]."""
    return x if number == 1 else x.unflatten(0, (-1, number)).sum(1, dtype=sum_dtype(x.dtype))
