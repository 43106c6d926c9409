"""Attention modules. `forward` infers the number of heads from the weights: a tensor rank holds some of the heads."""

# S sequence, B batch, D width, H heads, K head width, M memory (encoder) sequence

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch.nn.attention import SDPBackend, sdpa_kernel

from megaptm.layers.context import UsesContextRanks
from megaptm.layers.costs import LayerCosts
from megaptm.layers.custom_pattern import CustomPattern, check_pattern_libraries
from megaptm.layers.kernel_choice import AUTO, FLEX, FUSED, choose_kernel
from megaptm.layers.kernels import (
    SharedBlocks,
    attend_capped,
    attend_with_kernel,
    describe_device,
    describe_work,
    kernel_window,
    repeat_for_heads,
)
from megaptm.layers.mask import Mask
from megaptm.layers.norm import HeadNorm
from megaptm.layers.pattern import Pattern
from megaptm.layers.positions import apply_rotary_embedding
from megaptm.layers.soft_cap import soft_cap
from megaptm.layers.sparse import GlobalPositions
from megaptm.layers.split import Dropout, HeadBias, Linear
from megaptm.layers.varlen import attend_by_document
from megaptm.spec import find_visibility

MIN_SCORE = -100.0
"""Maximum attention score that `scores` treats as masked. The released code of TinyBERT adds -10,000 to masked
scores."""
SOUND = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention kernels of torch that are correct with any mask."""
MAX_COMPARED = 256
"""Maximum number of positions at which the torch and numpy forms of a custom attention pattern are compared."""


class AttentionCore(nn.Module):
    """Attention of queries to keys and values, without projections. Base class of all kinds, which may depend on layer
    and heads."""

    num_heads: int = 0
    """Number of attention heads of all tensor ranks, for a kind of attention whose heads differ."""

    def assign(self, *, layer: int | None = None, heads: range | None = None) -> None:
        """Set the layer index, or the attention heads of this rank, for kinds of attention that sample per layer and
        head."""

    def set_seed_key(self, key: str | None) -> None:
        """Set the seed key for the random choices that this kind of attention makes in each step. None: the key for
        evaluation."""


class Attend(UsesContextRanks, AttentionCore):
    """Scaled dot-product attention with dropout on the attention weights."""

    pattern: Pattern | None = None
    """Attention pattern; with offsets of documents, none or a window."""

    def __init__(self, *, causal: bool, scale: float, dropout: float, cap: float | None = None) -> None:
        super().__init__()
        self.causal, self.scale, self.cap = causal, scale, cap
        self.dropout = Dropout(dropout, masks="heads")

    def forward(self, q_SBHK: Tensor, k_MBHK: Tensor, v_MBHK: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention output [S, B, H*K].

        `mask` is boolean, a bias on the scores, or offsets of documents (`layers.varlen`); a bias and offsets replace
        `causal`. With context ranks S and M are the positions of this rank, and the mask is of its queries and all
        keys. Keys and values may have fewer heads than queries; each serves a group of consecutive query heads.
        """
        return self.attend_by_head(q_SBHK, k_MBHK, v_MBHK, mask).flatten(2)

    def attend_by_head(self, q_SBHK: Tensor, k_MBHK: Tensor, v_MBHK: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention output before heads are merged, [S, B, H, K]."""
        if self.context.size == 1:
            return self._attend(q_SBHK, k_MBHK, v_MBHK, mask)
        k_MBHK, v_MBHK = self.context.gather(k_MBHK, v_MBHK)
        outputs, length = [], len(q_SBHK) // 2
        for number, chunk in enumerate(self.context.chunks(len(q_SBHK) * self.context.size)):
            # Keys after the last query are never attended to.
            end, start = chunk.stop if self.causal else len(k_MBHK), number * length
            own = mask
            if mask is not None:
                is_dense = not are_offsets(mask)
                own = mask[..., start : start + length, :end] if is_dense else mask[2 * number : 2 * number + 2]
            # A view would keep the memory of this rank's keys and values, which are one product with its queries.
            queries = q_SBHK[start : start + length].contiguous()
            outputs.append(self._attend(queries, k_MBHK[:end], v_MBHK[:end], own))
        return torch.cat(outputs)

    def _attend(self, q_SBHK: Tensor, k_MBHK: Tensor, v_MBHK: Tensor, mask: Tensor | None) -> Tensor:
        rate = self.dropout.rate if self.dropout.is_active else 0.0
        if mask is not None and are_offsets(mask):
            with self.dropout.use_rng():
                return attend_by_document(
                    *(q_SBHK, k_MBHK, v_MBHK, mask),
                    causal=self.causal,
                    scale=self.scale,
                    dropout=rate,
                    window=kernel_window(self.pattern, self.causal),
                )
        if self.cap is not None:
            with self.dropout.use_rng():
                return attend_capped(
                    *(q_SBHK, k_MBHK, v_MBHK, mask), causal=self.causal, scale=self.scale, cap=self.cap, dropout=rate
                )
        heads = q_SBHK.shape[2]
        q, k, v = (
            x.permute(1, 2, 0, 3) for x in (q_SBHK, repeat_for_heads(k_MBHK, heads), repeat_for_heads(v_MBHK, heads))
        )
        with self.dropout.use_rng(), _sound_kernels(mask):
            mixed_BHSK = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask if mask is None or not mask.is_floating_point() else mask.to(q.dtype),
                dropout_p=rate,
                is_causal=self.causal and mask is None,
                scale=self.scale,
            )
        return mixed_BHSK.permute(2, 0, 1, 3)


def are_offsets(mask: Tensor) -> bool:
    """Whether the mask of an attention module consists of document offsets."""
    return mask.dim() < 3


def apply_linear(linear: Linear, x_SBD: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a linear layer; return [S, B, ...], in memory [B, S, ...] if the attention mask consists of document
    offsets.

    The kernel for document offsets needs the positions of a document side by side in memory. Moving the input is
    cheaper than moving queries, keys and values, which are wider.
    """
    if not _swaps_axes(linear, mask):
        return linear(x_SBD)
    return linear(x_SBD.transpose(0, 1).contiguous()).transpose(0, 1)


def _project_heads(
    linear: Linear, x_SBD: Tensor, mask: Tensor | None, matrices: int, key_width: int
) -> tuple[Tensor, ...]:
    """Return queries, keys or values, each [S, B, H, K], from a linear layer with their interleaved matrices. The
    memory order is that of `apply_linear`."""
    moves = _swaps_axes(linear, mask)
    x = x_SBD.transpose(0, 1).contiguous() if moves else x_SBD
    # Divided before they are moved back, so that their gradients are joined in the order of the product.
    parts: tuple[Tensor, ...] = linear(x).unflatten(-1, (-1, matrices, key_width)).unbind(3)
    return tuple(part.transpose(0, 1) for part in parts) if moves else parts


def _swaps_axes(linear: Linear, mask: Tensor | None) -> bool:
    # With sequence parallelism the layer gathers or divides the first axis.
    return mask is not None and are_offsets(mask) and not linear.sequence_parallel


@lru_cache
def _compare_torch_and_numpy_once(pattern: CustomPattern) -> None:
    """Check once per process that a custom attention pattern gives equal masks in torch and numpy."""
    positions = torch.arange(min(2 * pattern.block, MAX_COMPARED) + 1, device="cpu")
    check_pattern_libraries(pattern, *torch.meshgrid(positions, positions, indexing="ij"))


def _sound_kernels(mask: Tensor | None) -> AbstractContextManager[None]:
    """Return a context without the attention kernels of torch that are wrong with such a mask.

    On H100 and later torch 2.13 may choose cuDNN's kernel for a mask. Its backward pass gives NaN if all scores of a
    query are low and the length is 64 more than a multiple of 128 (github.com/pytorch/pytorch/issues/196678).
    """
    if mask is None:
        return nullcontext()
    # Compiled code can name kernels, but not read which are enabled.
    return sdpa_kernel(SOUND) if torch.compiler.is_compiling() else without_cudnn()


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Disable cuDNN's attention kernel in torch's scaled dot-product attention."""
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


class PatternAttend(Attend):
    """Attention with a pattern, by the kernel that `layers.kernel_choice` chooses.

    `forward` takes the tensor from which a mask is built with the pattern (`Mask.stacked_fields`), or a complete mask
    like `Attend`.
    """

    def __init__(self, costs: LayerCosts, *, dropout: float) -> None:
        rate = costs.attention.dropout_rate(dropout)
        cap = costs.attention.score_cap
        super().__init__(causal=costs.block.causal, scale=score_scale(costs), dropout=rate, cap=cap)
        self.pattern, self.visibility, self.num_heads = costs.pattern, costs.block.visibility, costs.size.heads
        self.kernel = AUTO
        """Attention kernel that the config requests."""
        if isinstance(self.pattern, CustomPattern) and detect_fake_mode() is None:
            _compare_torch_and_numpy_once(self.pattern)

    def assign(self, *, layer: int | None = None, heads: range | None = None) -> None:
        if self.pattern is not None:
            self.pattern = self.pattern.for_heads(layer=layer, heads=heads)

    def has_global_tokens(self, fields: Tensor | None) -> bool:
        """Whether `fields`, from which masks are built, marks global tokens."""
        if fields is None or are_offsets(fields):
            return False
        return len(fields) > 1 + find_visibility(self.visibility).ordered

    def forward(
        self,
        q_SBHK: Tensor,
        k_SBHK: Tensor,
        v_SBHK: Tensor,
        mask: Tensor | None,
        global_qkv: tuple[Tensor, Tensor, Tensor] | None = None,
        positions_BG: Tensor | None = None,
        blocks_BHX: Tensor | None = None,
    ) -> Tensor:
        """Return the attention output [S, B, H*K].

        `global_qkv`: separate queries, keys and values of global attention, if the layer has them. `positions_BG`:
        global positions, if already computed (`global_positions`). `blocks_BHX`: result of `shared_blocks`.
        """
        is_plain = self.pattern is None and self.cap is None and self.kernel in (AUTO, FUSED)
        if mask is None and (is_plain or self.context.size > 1):
            return super().forward(q_SBHK, k_SBHK, v_SBHK, None)
        if mask is not None and (mask.dtype == torch.bool or mask.is_floating_point() or are_offsets(mask)):
            return super().forward(q_SBHK, k_SBHK, v_SBHK, mask)
        return self.attend_in_pattern(q_SBHK, k_SBHK, v_SBHK, mask, global_qkv, positions_BG, blocks_BHX)

    def attend_in_pattern(
        self,
        q_SBHK: Tensor,
        k_SBHK: Tensor,
        v_SBHK: Tensor,
        mask: Tensor | None,
        global_qkv: tuple[Tensor, Tensor, Tensor] | None,
        positions_BG: Tensor | None,
        blocks_BHX: Tensor | None,
    ) -> Tensor:
        """Return the attention output [S, B, H*K] of the kernel that the pattern has. Compiled layers leave it
        eager."""
        made = Mask.from_stacked_fields(
            mask,
            len(q_SBHK),
            q_SBHK.device,
            visibility=self.visibility,
            pattern=self.pattern,
            blocks=blocks_BHX,
        )
        marked = None if made.marks is None else GlobalPositions.from_marks(made.marks, positions_BG)
        rate = self.dropout.rate if self.dropout.is_active else 0.0
        kernel = self._choose_kernel(made, q_SBHK.dtype, q_SBHK.shape[3])
        if kernel == FUSED:
            mixed_SBHK = self.attend_by_head(q_SBHK, k_SBHK, v_SBHK, made.for_kernel(None))
        else:
            with self.dropout.use_rng():
                mixed_SBHK = attend_with_kernel(
                    *(kernel, q_SBHK, k_SBHK, v_SBHK, made, marked), scale=self.scale, dropout=rate, cap=self.cap
                )
        if marked is not None:
            q, k, v = (q_SBHK, k_SBHK, v_SBHK) if global_qkv is None else global_qkv
            mixed_SBHK = marked.scatter(
                mixed_SBHK, self.attend_by_head(marked.gather(q), k, v, marked.query_mask(made))
            )
        return mixed_SBHK.flatten(2)

    def _choose_kernel(self, mask: Mask, dtype: torch.dtype, key_width: int) -> str:
        """Return the attention kernel for a mask with this pattern."""
        rate = self.dropout.rate if self.dropout.is_active else 0.0
        work = describe_work(mask, dtype, key_width, rate, capped=self.cap is not None)
        return choose_kernel(work, describe_device(mask.device), self.kernel).kernel

    def shared_blocks(self, mask: Mask, shared: SharedBlocks, dtype: torch.dtype, key_width: int) -> Tensor | None:
        """Return the attention blocks of this layer's pattern if FlexAttention computes it, else None. `mask`: mask of
        the stack, without a pattern."""
        mask = mask.with_pattern(self.pattern)
        return shared.pack(mask) if self._choose_kernel(mask, dtype, key_width) == FLEX else None


def score_scale(costs: LayerCosts) -> float:
    """Return the factor by which attention scores are scaled."""
    terms, record = {"sqrt": 1, "sqrt-3": 3}, costs.attention
    width = costs.size.key_width if record.scale_width is None else record.scale_width
    return 1 / math.sqrt(terms[record.scale] * width) if record.scale in terms else 1.0


class AttentionModule(nn.Module):
    """Self-attention with projections. Base class of all kinds.

    `forward` returns [S, B, D]. It takes x [S, B, D], a mask, a position state, an input of keys and values if it is
    not x, and further arguments of the kind.
    """

    attend: AttentionCore

    def train_global_projections(self, enabled: bool) -> None:
        """Set whether to train projections that only global tokens use. Batches without such tokens never use them."""

    def reuse(
        self, x_SBD: Tensor, mask: Tensor | None, position_state: Tensor | None, choice: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention output, and a choice of query-key pairs that the same call must repeat when it is
        recomputed."""
        return self(x_SBD, mask, position_state), None


class SelfAttention(AttentionModule):
    """Self-attention with query, key and value projections.

    Rows of `qkv` are ordered (head, [q, k, v], K), so that a contiguous slice holds complete heads. If keys and values
    have fewer heads, the projections are `query` and `kv`, as in `CrossAttention`.
    """

    qkv: Linear
    query: Linear
    kv: Linear
    query_norm: HeadNorm
    key_norm: HeadNorm

    def __init__(self, costs: LayerCosts, *, dropout: float) -> None:
        super().__init__()
        self.key_width = costs.size.key_width
        self.grouped, self.normed = "kv" in costs.linears, bool(costs.norms)
        for name in ("query", "kv") if self.grouped else ("qkv",):
            self.add_module(name, Linear.from_shape(costs.linears[name]))
        # Biases of queries and values, ordered (head, [q, v], K), if keys have no bias.
        self.biases = HeadBias(costs.biases) if costs.biases else None
        for name, shape in costs.norms.items():
            self.add_module(name, HeadNorm(shape, costs.block.norm, key_width=self.key_width))
        self.attend: Attend = PatternAttend(costs, dropout=dropout)
        self.output = Linear.from_shape(costs.linears["output"])

    def forward(self, x_SBD: Tensor, mask: Tensor | None, *inputs: Any, **options: Any) -> Tensor:
        """Return the output of self-attention, [S, B, D]. `compute_attention` describes the arguments."""
        return apply_linear(self.output, self.compute_attention(x_SBD, mask, *inputs, **options), mask)

    def compute_attention(
        self,
        x_SBD: Tensor,
        mask: Tensor | None,
        position_state: Tensor | None = None,
        keys: Tensor | None = None,
        cached_states: None = None,
        positions_BG: Tensor | None = None,
        blocks_BHX: Tensor | None = None,
    ) -> Tensor:
        """Return the attention output before the output projection, [S, B, H*K].

        `position_state`: result of `positions.rotary_embedding`, if any. `keys`: input of the key and value
        projections, if not x. `positions_BG`, `blocks_BHX`: as in `PatternAttend.forward`.
        """
        read = self._rotate_queries_and_keys(*self._project(x_SBD, keys, mask), position_state)
        if positions_BG is None and blocks_BHX is None:
            return self.attend(*read, mask)
        return self.attend(*read, mask, None, positions_BG, blocks_BHX)

    def scores(self, x_SBD: Tensor, mask: Tensor | None, position_state: Tensor | None = None) -> Tensor:
        """Return attention scores before the softmax, [B, H, S, S] float32; zero if masked or at most `MIN_SCORE`.

        `mask` as in `Attend.forward`. Fused kernels do not return scores, so they are computed a second time.
        """
        q_SBHK, k_SBHK = self.queries_and_keys(x_SBD, position_state)
        k_SBHK = repeat_for_heads(k_SBHK, q_SBHK.shape[2])
        scores = q_SBHK.permute(1, 2, 0, 3).float() @ k_SBHK.permute(1, 2, 3, 0).float() * self.attend.scale
        scores = soft_cap(scores, self.attend.cap)
        if mask is None and self.attend.causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if mask is not None and mask.is_floating_point():
            scores = scores + mask
        elif mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return scores.masked_fill(scores <= MIN_SCORE, 0.0)

    def queries_and_keys(self, x_SBD: Tensor, position_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the queries and keys whose products are the scores, each [S, B, H, K]."""
        return self._rotate_queries_and_keys(*self._project(x_SBD, None), position_state)[:2]

    def _rotate_queries_and_keys(
        self, q: Tensor, k: Tensor, v: Tensor, position_state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys with rotary position embedding, if `position_state` has one."""
        return (
            (q, k, v)
            if position_state is None
            else (apply_rotary_embedding(q, position_state), apply_rotary_embedding(k, position_state), v)
        )

    def _project(self, x_SBD: Tensor, keys: Tensor | None, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of self-attention, each [S, B, H, K]."""
        if self.grouped:
            (q,) = _project_heads(self.query, x_SBD, mask, 1, self.key_width)
            k, v = _project_heads(self.kv, x_SBD if keys is None else keys, mask, 2, self.key_width)
        else:
            q, k, v = _project_heads(self.qkv, x_SBD, mask, 3, self.key_width)
            if keys is not None:
                _, k, v = self.qkv(keys).unflatten(-1, (-1, 3, self.key_width)).unbind(3)
        if self.biases is not None:
            of_queries, of_values = self.biases.bias.view(-1, 2, self.key_width).unbind(1)
            q, v = q + of_queries, v + of_values
        return (self.query_norm(q), self.key_norm(k), v) if self.normed else (q, k, v)


class CrossAttention(nn.Module):
    """Cross-attention of a decoder to the encoder output. Rows of `kv` are ordered (head, [k, v], K)."""

    def __init__(self, costs: LayerCosts, *, dropout: float) -> None:
        super().__init__()
        self.key_width = costs.size.key_width
        self.query, self.kv = Linear.from_shape(costs.linears["query"]), Linear.from_shape(costs.linears["kv"])
        rate, cap = costs.attention.dropout_rate(dropout), costs.attention.score_cap
        self.attend = Attend(causal=False, scale=score_scale(costs), dropout=rate, cap=cap)
        self.output = Linear.from_shape(costs.linears["output"])

    def forward(self, x_SBD: Tensor, memory_MBD: Tensor, mask: Tensor | None) -> Tensor:
        # The memory is not copied: every layer would save a copy for its backward pass.
        q, kv = apply_linear(self.query, x_SBD, mask), self.kv(memory_MBD)
        k, v = kv.view(*kv.shape[:2], -1, 2, self.key_width).unbind(3)
        mixed_SBA = self.attend(q.view(*q.shape[:2], -1, self.key_width), k, v, mask)
        return apply_linear(self.output, mixed_SBA, mask)
