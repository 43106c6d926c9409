"""Attention kernels for GPUs: FlexAttention, flash-attn, Transformer Engine. `layers.kernel_choice` chooses one.

FlexAttention is compiled and computes only blocks that its mask does not exclude. flash-attn and Transformer Engine
support windows. Torch's fused kernel is in `layers.attention`, tiles are in `layers.sparse`.
"""

# S sequence, B batch, H heads, G heads of keys, K head width, N blocks of queries, M blocks of keys

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.layers.kernel_choice import AttentionWork, ComputeDevice
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import AllPairs, Pattern, SlidingWindow, attended_blocks
from megaptm.layers.sparse import Marked, attend_by_tiles

if TYPE_CHECKING:  # it takes a second to import
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Number of positions per block of FlexAttention. Tile sizes of the compiled kernels divide it."""
MAX_COMPILED = 64
"""Maximum number of compiled variants of FlexAttention (patterns, lengths, types) in a process; torch's default is 8.
Others use tiles."""

PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""Type of queries -> `train.precision`."""


def work_of(q_SBHK: Tensor, mask: Mask, marked: Marked | None, dropout: float) -> AttentionWork:
    """Describe the attention computation that a kernel must do."""
    return AttentionWork(
        queries=len(q_SBHK),
        key_width=q_SBHK.shape[3],
        precision=PRECISIONS.get(q_SBHK.dtype, str(q_SBHK.dtype)),
        causal=mask.causal,
        pattern=mask.pattern,
        documents=mask.documents is not None,
        ordered=mask.order is not None,
        marked=marked is not None,
        dropout=dropout,
    )


def device_of(device: torch.device) -> ComputeDevice:
    """Describe the device on which an attention kernel runs."""
    return ComputeDevice(
        device.type,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        any_length=torch.is_inference_mode_enabled(),
    )


def attend_by(
    kernel: str,
    q_SBHK: Tensor,
    k_SBGK: Tensor,
    v_SBGK: Tensor,
    mask: Mask,
    marked: Marked | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """Attend with a kernel: return the output [S, B, H, K] under the mask. Global tokens' own output is computed
    elsewhere."""
    return RUN[kernel](q_SBHK, k_SBGK, v_SBGK, mask, marked, scale, dropout)


def for_heads(x_MBGK: Tensor, heads: int) -> Tensor:
    """Repeat G key heads for H query heads, for kernels that need equal numbers: [M, B, H, K]."""
    groups = x_MBGK.shape[2]
    if groups == heads:
        return x_MBGK
    # Kernels with a mask need as many key heads as query heads. Expanding one head is a view.
    return x_MBGK.expand(-1, -1, heads, -1) if groups == 1 else x_MBGK.repeat_interleave(heads // groups, dim=2)


def _tiles(q: Tensor, k: Tensor, v: Tensor, mask: Mask, marked: Marked | None, scale: float, dropout: float) -> Tensor:
    k, v = for_heads(k, q.shape[2]), for_heads(v, q.shape[2])
    if mask.pattern is None:
        mask = replace(mask, pattern=SlidingWindow(len(q) - 1, 0) if mask.causal else AllPairs())
    return attend_by_tiles(q, k, v, mask, marked, scale=scale, dropout=dropout)


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, marked: Marked | None, scale: float, dropout: float) -> Tensor:
    assert not dropout, "it has none"
    k_padded, v_padded = k, v
    if marked is not None:
        # Global keys are appended, so that they are compared once.
        k, v = torch.cat([k, marked.take(k)]), torch.cat([v, marked.take(v)])
    q_BHSK, k_BGSK, v_BGSK = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    blocks, grouped = block_mask(mask, marked), q.shape[2] != k.shape[2]
    attend = _compiled_flex if q.is_cuda else _flex_attention
    try:
        mixed_BHSK: Tensor = attend()(q_BHSK, k_BGSK, v_BGSK, block_mask=blocks, scale=scale, enable_gqa=grouped)
    except torch._dynamo.exc.FailOnRecompileLimitHit:
        # With more variants than this, compiling takes longer than tiles.
        return _tiles(q, k_padded, v_padded, mask, marked, scale, dropout)
    return mixed_BHSK.permute(2, 0, 1, 3)


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


def block_mask(mask: Mask, marked: Marked | None = None, *, block: int = BLOCK) -> BlockMask:
    """Return FlexAttention's block mask. Keys of global tokens follow the keys of the sequence."""
    from torch.nn.attention.flex_attention import BlockMask

    length, beside = mask.length[1], 0 if marked is None else marked.positions.shape[1]
    attended_BHNM = _by_position(mask.pattern, length, block, mask.causal, mask.device) & _by_content(
        mask, length, block
    )
    if beside:
        blocks = -(-(length + beside) // block)
        attended_BHNM = F.pad(attended_BHNM, (0, blocks - attended_BHNM.shape[3]), value=True)
        attended_BHNM[..., length // block :] = True
    number = attended_BHNM.sum(-1, dtype=torch.int32)
    order = attended_BHNM.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return BlockMask.from_kv_blocks(
        number, order, BLOCK_SIZE=block, mask_mod=_mask_mod(mask, marked), seq_lengths=(length, length + beside)
    )


@lru_cache(maxsize=256)
def _by_position(pattern: Pattern | None, length: int, block: int, causal: bool, device: torch.device) -> Tensor:
    """Return the blocks of FlexAttention that the pattern allows, [1, H or 1, N, N]; cached on the device."""
    return torch.from_numpy(attended_blocks(pattern, length, block, causal=causal)).to(device)[None]


def _by_content(mask: Mask, length: int, block: int) -> Tensor:
    """Return the blocks of FlexAttention that documents and order allow, [B or 1, 1, N, N]."""
    attended = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=mask.device)
    if mask.documents is not None:
        (low, high), (low_k, high_k) = (_ends(tensor, length, block) for tensor in mask.documents)
        both = (low[:, None, :, None] <= high_k[:, None, None]) & (low_k[:, None, None] <= high[:, None, :, None])
        # Padding attends to everything.
        attended = both | (low == 0)[:, None, :, None]
    if mask.order is not None:
        low, high = _ends(mask.order, length, block)
        attended = attended & (low[:, None, None] <= high[:, None, :, None])
    return attended


def _ends(numbers_BS: Tensor, length: int, block: int) -> tuple[Tensor, Tensor]:
    """Return the minimum and the maximum of each block of positions, [B, N]."""
    missing = -length % block
    filled = torch.cat([numbers_BS, numbers_BS[:, -1:].expand(-1, missing)], 1).unflatten(1, (-1, block))
    return filled.amin(2), filled.amax(2)


def _mask_mod(mask: Mask, marked: Marked | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return FlexAttention's mask function, which must be a plain function."""
    if marked is None or mask.marks is None:
        return lambda batch, head, query, key: mask.attends(batch, head, query, key)
    marks, without_global_tokens, length = mask.marks, mask.without_global_tokens, mask.length[1]

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own, slot = key.clamp(max=length - 1), (key - length).clamp(min=0)
        of_row = without_global_tokens.attends(batch, head, query, own) & (marks[batch, own] == 0)
        return torch.where(key < length, of_row, marked.attended(mask, batch, query, slot))

    return attends


def _flash_attn(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, marked: Marked | None, scale: float, dropout: float
) -> Tensor:
    from flash_attn import flash_attn_func

    mixed_BSHK: Tensor = flash_attn_func(
        *(x.transpose(0, 1) for x in (q, k, v)),
        dropout_p=dropout,
        softmax_scale=scale,
        causal=mask.causal,
        window_size=kernel_window(mask),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return mixed_BSHK.transpose(0, 1)


def _transformer_engine(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, marked: Marked | None, scale: float, dropout: float
) -> Tensor:
    attend = _engine(q.shape[2], k.shape[2], q.shape[3], mask.causal, kernel_window(mask), scale, dropout)
    mixed_SBA: Tensor = attend(*(x.contiguous() for x in (q, k, v)))
    return mixed_SBA.unflatten(-1, (q.shape[2], -1))


@lru_cache(maxsize=64)
def _engine(
    heads: int, key_heads: int, key_width: int, causal: bool, window: tuple[int, int], scale: float, dropout: float
) -> Callable[..., Tensor]:
    from transformer_engine.pytorch import DotProductAttention

    made: Callable[..., Tensor] = DotProductAttention(
        heads,
        key_width,
        num_gqa_groups=key_heads,
        attention_dropout=dropout,
        qkv_format="sbhd",
        attn_mask_type="causal" if causal else "no_mask",
        window_size=window,
        softmax_scale=scale,
    )
    return made


def kernel_window(mask: Mask) -> tuple[int, int]:
    """Return the window before and after a query for flash-attn and Transformer Engine; -1: unlimited."""
    after = 0 if mask.causal else -1
    if mask.pattern is None:
        return -1, after
    assert isinstance(mask.pattern, SlidingWindow)
    return mask.pattern.before, 0 if mask.causal else mask.pattern.after


RUN: dict[str, Callable[..., Tensor]] = {
    "tiles": _tiles,
    "flex": _flex,
    "flash-attn": _flash_attn,
    "transformer-engine": _transformer_engine,
}
