"""Attention kernels for GPUs: FlexAttention and flash-attn. `layers.kernel_choice` chooses one.

FlexAttention is compiled and computes only blocks that its mask does not exclude. flash-attn supports windows. Torch's
fused kernel is in `layers.attention`, tiles are in `layers.sparse`.
"""

# S sequence, B batch, H heads, G heads of keys, K head width, N blocks of queries, M blocks of keys

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.layers.accumulate import sum_dtype
from megaptm.layers.kernel_choice import AttentionWork, ComputeDevice
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import AllPairs, Pattern, SlidingWindow, attended_blocks
from megaptm.layers.soft_cap import soft_cap
from megaptm.layers.sparse import GlobalPositions, attend_by_tiles

if TYPE_CHECKING:  # it takes a second to import
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Number of positions per block of FlexAttention's block mask. Tile sizes of the compiled kernels divide it."""
MAX_COMPILED = 64
"""Maximum number of compiled variants of FlexAttention (patterns, lengths, types) in a process; torch's default is 8.
Further attention computations use tiles."""

PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""Values of `train.precision` by dtype of the queries."""


def describe_work(
    mask: Mask, dtype: torch.dtype, key_width: int, dropout: float, *, capped: bool = False
) -> AttentionWork:
    """Return the properties of an attention computation on which the choice of a kernel depends. `dtype`: dtype of the
    queries."""
    return AttentionWork(
        queries=mask.length[0],
        key_width=key_width,
        precision=PRECISIONS.get(dtype, str(dtype)),
        causal=mask.causal,
        pattern=mask.pattern,
        documents=mask.documents is not None,
        ordered=mask.order is not None,
        marked=mask.marks is not None,
        capped=capped,
        dropout=dropout,
    )


def describe_device(device: torch.device) -> ComputeDevice:
    """Return the properties of a device on which the choice of an attention kernel depends."""
    return ComputeDevice(
        device.type,
        flash=device.type == "cuda" and has_flash(device),
        # Compiled code cannot ask for the inference mode, and is never run in it.
        any_length=not torch.compiler.is_compiling() and torch.is_inference_mode_enabled(),
    )


@cache
def has_flash(device: torch.device) -> bool:
    """Whether torch has FlashAttention kernels for a GPU: Ampere or later."""
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Arguments of an attention kernel: queries [S, B, H, K], keys and values [S, B, G, K], and the options of
    `attend_with_kernel`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    marked: GlobalPositions | None
    scale: float
    dropout: float
    cap: float | None


def attend_with_kernel(
    kernel: str,
    q_SBHK: Tensor,
    k_SBGK: Tensor,
    v_SBGK: Tensor,
    mask: Mask,
    marked: GlobalPositions | None,
    *,
    scale: float,
    dropout: float,
    cap: float | None = None,
) -> Tensor:
    """Compute attention with a kernel: return the output [S, B, H, K] under the mask. The output at global tokens is
    computed elsewhere."""
    return RUN[kernel](AttentionCall(q_SBHK, k_SBGK, v_SBGK, mask, marked, scale, dropout, cap))


def repeat_for_heads(x_MBGK: Tensor, heads: int) -> Tensor:
    """Repeat keys or values of G heads for H query heads, for attention kernels that need equal numbers: [M, B, H,
    K]."""
    groups = x_MBGK.shape[2]
    if groups == heads:
        return x_MBGK
    # Kernels with a mask need as many key heads as query heads. Expanding one head is a view.
    return x_MBGK.expand(-1, -1, heads, -1) if groups == 1 else x_MBGK.repeat_interleave(heads // groups, dim=2)


def _attend_by_tiles(call: AttentionCall) -> Tensor:
    mask, heads = call.mask, call.q.shape[2]
    if mask.pattern is None:
        mask = replace(mask, pattern=SlidingWindow(len(call.q) - 1, 0) if mask.causal else AllPairs())
    return attend_by_tiles(
        *(call.q, repeat_for_heads(call.k, heads), repeat_for_heads(call.v, heads), mask, call.marked),
        scale=call.scale,
        dropout=call.dropout,
    )


def _attend_by_flex(call: AttentionCall) -> Tensor:
    assert not call.dropout, "it has none"
    q, k, v, mask, marked = call.q, call.k, call.v, call.mask, call.marked
    if marked is not None:
        # Global keys are appended, so that they are compared once.
        k, v = torch.cat([k, marked.gather(k)]), torch.cat([v, marked.gather(v)])
    q_BHSK, k_BGSK, v_BGSK = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    blocks, grouped = block_mask(mask, marked), q.shape[2] != k.shape[2]
    attend = _compiled_flex if q.is_cuda else _flex_attention
    try:
        mixed_BHSK: Tensor = attend()(
            *(q_BHSK, k_BGSK, v_BGSK),
            score_mod=score_function(call.cap),
            block_mask=blocks,
            scale=call.scale,
            enable_gqa=grouped,
        )
    except torch._dynamo.exc.FailOnRecompileLimitHit:
        # With more variants than this, compiling takes longer than tiles.
        if call.cap is None:
            return _attend_by_tiles(call)
        dense, causal = mask.for_kernel(None), mask.causal
        return attend_capped(q, call.k, call.v, dense, causal=causal, scale=call.scale, cap=call.cap)
    return mixed_BHSK.permute(2, 0, 1, 3)


@cache
def score_function(cap: float | None) -> Callable[..., Tensor] | None:
    """Return FlexAttention's score function for a soft cap, the same function for the same cap."""
    return None if cap is None else lambda score, batch, head, query, key: soft_cap(score, cap)


def attend_capped(
    q_SBHK: Tensor,
    k_MBGK: Tensor,
    v_MBGK: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    scale: float,
    cap: float,
    dropout: float = 0.0,
) -> Tensor:
    """Attend with a soft cap of scores, all of which are in memory: return the output [S, B, H, K]. A mask replaces
    `causal`."""
    heads = q_SBHK.shape[2]
    q, k, v = (
        x.permute(1, 2, 0, 3) for x in (q_SBHK, repeat_for_heads(k_MBGK, heads), repeat_for_heads(v_MBGK, heads))
    )
    scores_BHSM = soft_cap(q @ k.transpose(2, 3) * scale, cap)
    if mask is None and causal:
        mask = torch.ones(scores_BHSM.shape[2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores_BHSM = scores_BHSM.masked_fill(~mask, -torch.inf)
    weights_BHSM = torch.softmax(scores_BHSM, -1, dtype=sum_dtype(q.dtype)).to(q.dtype)
    return (F.dropout(weights_BHSM, dropout, training=True) @ v).permute(2, 0, 1, 3)


def _flex_attention() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@cache
def _compiled_flex() -> Callable[..., Any]:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(MAX_COMPILED, torch._dynamo.config.recompile_limit)
    # fullgraph: the eager fallback of FlexAttention would silently materialize all scores.
    compiled: Callable[..., Any] = torch.compile(_flex_attention(), dynamic=False, fullgraph=True)
    return compiled


def block_mask(mask: Mask, marked: GlobalPositions | None = None, *, block: int = BLOCK) -> BlockMask:
    """Return FlexAttention's block mask. Keys of global tokens follow the keys of the sequence."""
    from torch.nn.attention.flex_attention import BlockMask

    length, beside = mask.length[1], 0 if marked is None else marked.positions.shape[1]
    packed_BHX = pack_blocks(mask, beside, block=block) if mask.blocks is None else mask.blocks
    of_queries, of_keys = -(-length // block), -(-(length + beside) // block)
    number_BHN, keys_BHX, number_BHM, queries_BHX = packed_BHX.split(
        [of_queries, of_queries * of_keys, of_keys, of_queries * of_keys], dim=2
    )
    return BlockMask(
        seq_lengths=(length, length + beside),
        kv_num_blocks=number_BHN,
        kv_indices=keys_BHX.unflatten(2, (of_queries, of_keys)),
        full_kv_num_blocks=None,
        full_kv_indices=None,
        q_num_blocks=number_BHM,
        q_indices=queries_BHX.unflatten(2, (of_keys, of_queries)),
        full_q_num_blocks=None,
        full_q_indices=None,
        BLOCK_SIZE=(block, block),
        mask_mod=_mask_mod(mask, marked),
    )


def pack_blocks(mask: Mask, beside: int, content: Tensor | None = None, *, block: int = BLOCK) -> Tensor:
    """Return which blocks of positions attend to which, for FlexAttention, int32 [B, H, X]: the number of key blocks of
    each query block, their indices, and the same for each key block.

    All are in one tensor, so that recomputation can save it. `beside`: number of global keys. `content`: result of
    `content_blocks`, if already computed.
    """
    length = mask.length[1]
    content = content_blocks(mask, block=block) if content is None else content
    attended_BHNM = _by_position(mask.pattern, length, block, mask.causal, mask.device) & content
    if beside:
        blocks = -(-(length + beside) // block)
        attended_BHNM = F.pad(attended_BHNM, (0, blocks - attended_BHNM.shape[3]), value=True)
        attended_BHNM[..., length // block :] = True
    parts = []
    for attended in (attended_BHNM, attended_BHNM.transpose(2, 3)):
        parts.append(attended.sum(-1, dtype=torch.int32))
        parts.append(attended.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32).flatten(2))
    return torch.cat(parts, 2)


class SharedBlocks:
    """FlexAttention blocks of a micro-batch for the layers of a stack, built once for each attention pattern."""

    def __init__(self) -> None:
        self._content: Tensor | None = None
        self._packed: dict[Pattern | None, Tensor] = {}

    def pack(self, mask: Mask) -> Tensor | None:
        """Return `pack_blocks` of a mask that differs from earlier ones only by its attention pattern. None if the
        number of its global tokens is not known."""
        if mask.marks is not None and mask.global_positions is None:
            return None
        if mask.pattern not in self._packed:
            if self._content is None:
                self._content = content_blocks(mask)
            beside = 0 if mask.marks is None or mask.global_positions is None else mask.global_positions.shape[1]
            self._packed[mask.pattern] = pack_blocks(mask, beside, self._content)
        return self._packed[mask.pattern]


@lru_cache(maxsize=256)
def _by_position(pattern: Pattern | None, length: int, block: int, causal: bool, device: torch.device) -> Tensor:
    """Return the FlexAttention blocks that the attention pattern allows, [1, H or 1, N, N]; cached on the device."""
    return torch.from_numpy(attended_blocks(pattern, length, block, causal=causal)).to(device)[None]


def content_blocks(mask: Mask, *, block: int = BLOCK) -> Tensor:
    """Return the FlexAttention blocks that documents and attention order allow, [B or 1, 1, N, N]."""
    length = mask.length[1]
    attended = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=mask.device)
    if mask.documents is not None:
        (low, high), (low_k, high_k) = (_block_ranges(tensor, length, block) for tensor in mask.documents)
        both = (low[:, None, :, None] <= high_k[:, None, None]) & (low_k[:, None, None] <= high[:, None, :, None])
        # Padding attends to everything.
        attended = both | (low == 0)[:, None, :, None]
    if mask.order is not None:
        low, high = _block_ranges(mask.order, length, block)
        attended = attended & (low[:, None, None] <= high[:, None, :, None])
    return attended


def _block_ranges(numbers_BS: Tensor, length: int, block: int) -> tuple[Tensor, Tensor]:
    """Return minimum and maximum of each FlexAttention block of positions, [B, N]."""
    missing = -length % block
    filled = torch.cat([numbers_BS, numbers_BS[:, -1:].expand(-1, missing)], 1).unflatten(1, (-1, block))
    return filled.amin(2), filled.amax(2)


def _mask_mod(mask: Mask, marked: GlobalPositions | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return FlexAttention's `mask_mod`, which must be a plain function."""
    if marked is None or mask.marks is None:
        return lambda batch, head, query, key: mask.attends(batch, head, query, key)
    marks, without_global_tokens, length = mask.marks, mask.without_global_tokens, mask.length[1]

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own, slot = key.clamp(max=length - 1), (key - length).clamp(min=0)
        of_row = without_global_tokens.attends(batch, head, query, own) & (marks[batch, own] == 0)
        return torch.where(key < length, of_row, marked.is_attended(mask, batch, query, slot))

    return attends


def _flash_attn(call: AttentionCall) -> Tensor:
    from flash_attn import flash_attn_func

    mixed_BSHK: Tensor = flash_attn_func(
        *(x.transpose(0, 1) for x in (call.q, call.k, call.v)),
        dropout_p=call.dropout,
        softmax_scale=call.scale,
        causal=call.mask.causal,
        window_size=kernel_window(call.mask.pattern, call.mask.causal),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        softcap=call.cap or 0.0,
    )
    return mixed_BSHK.transpose(0, 1)


def kernel_window(pattern: Pattern | None, causal: bool) -> tuple[int, int]:
    """Return the attention window before and after a query for kernels that support windows; -1: unlimited."""
    if pattern is None:
        return -1, 0 if causal else -1
    assert isinstance(pattern, SlidingWindow)
    return pattern.before, 0 if causal else pattern.after


RUN: dict[str, Callable[[AttentionCall], Tensor]] = {
    "tiles": _attend_by_tiles,
    "flex": _attend_by_flex,
    "flash-attn": _flash_attn,
}
