"""Attention bricks. The heads of a layer are counted nowhere in `forward`: each rank has those its weights hold."""

# S sequence, B batch, D width, H heads, K head width, M memory (encoder) sequence

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._guards import detect_fake_mode

from megaptm.bricks import Brick
from megaptm.bricks.custom_pattern import CustomPattern, check_alike
from megaptm.bricks.kernels import AUTO, FUSED, choose
from megaptm.bricks.pattern import SparseBlocks
from megaptm.layers.kernels import attend_by, device_of, for_heads, work_of
from megaptm.layers.mask import Mask
from megaptm.layers.positions import rotate
from megaptm.layers.sparse import Marked
from megaptm.layers.split import Dropout, HeadBias, Linear
from megaptm.spec import visibility_of

LEAST_SCORE = -100.0
"""What scores so is not seen, to whom scores are told: the released code of TinyBERT, whose masks add -10,000."""
MOST_COMPARED = 256
"""Places at which what a pattern of the user's own says is compared."""


class Attend(nn.Module):
    """Softmax-weighted mean of values, all heads at once, with dropout on the weights."""

    def __init__(self, *, causal: bool, scale: float, dropout: float) -> None:
        super().__init__()
        self.causal, self.scale = causal, scale
        self.dropout = Dropout(dropout, region="heads")

    def forward(self, q_SBHK: Tensor, k_MBHK: Tensor, v_MBHK: Tensor, mask: Tensor | None) -> Tensor:
        """[S, B, H*K]. A mask, boolean or a bias on the scores, says everything; without one, `causal` does.

        Keys and values may have fewer heads, of which each serves as many heads of queries, one after the other.
        """
        return self.weigh(q_SBHK, k_MBHK, v_MBHK, mask).flatten(2)

    def weigh(self, q_SBHK: Tensor, k_MBHK: Tensor, v_MBHK: Tensor, mask: Tensor | None) -> Tensor:
        """The same before heads are put together, [S, B, H, K]."""
        heads = q_SBHK.shape[2]
        q, k, v = (x.permute(1, 2, 0, 3) for x in (q_SBHK, for_heads(k_MBHK, heads), for_heads(v_MBHK, heads)))
        with self.dropout.drawing(), sound_kernels(mask):
            mixed_BHSK = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask if mask is None or not mask.is_floating_point() else mask.to(q.dtype),
                dropout_p=self.dropout.rate if self.dropout.draws else 0.0,
                is_causal=self.causal and mask is None,
                scale=self.scale,
            )
        return mixed_BHSK.permute(2, 0, 1, 3)


@lru_cache
def _check_alike_once(pattern: CustomPattern) -> None:
    """Once, however many layers see by it."""
    places = torch.arange(min(2 * pattern.block, MOST_COMPARED) + 1, device="cpu")
    check_alike(pattern, *torch.meshgrid(places, places, indexing="ij"))


@contextmanager
def sound_kernels(mask: Tensor | None) -> Iterator[None]:
    """Within it torch takes no kernel of attention that is known to be wrong with such a mask.

    On H100 and later torch 2.13 may take cuDNN's where there is a mask. Its backward pass gives NaN where a row's
    scores are all low and the length is 64 more than a multiple of 128 (github.com/pytorch/pytorch/issues/196678).
    """
    without = mask is not None and torch.backends.cuda.cudnn_sdp_enabled()
    if without:
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if without:
            torch.backends.cuda.enable_cudnn_sdp(True)


class PatternAttend(Attend):
    """The same of what a pattern lets be seen, by the kernel that `bricks.kernels` chooses. It takes the numbers that
    make a mask with the pattern (`Mask.numbers`); or a mask that is whole, as `Attend` does."""

    def __init__(self, brick: Brick, *, dropout: float) -> None:
        rate = brick.block.attention_rate(dropout)
        super().__init__(causal=brick.block.causal, scale=score_scale(brick), dropout=rate)
        self.pattern, self.visibility, self.heads = brick.pattern, brick.block.visibility, brick.size.heads
        self.kernel = AUTO
        """The one that is wanted."""
        if isinstance(self.pattern, CustomPattern) and detect_fake_mode() is None:
            _check_alike_once(self.pattern)

    def is_of(self, *, layer: int | None = None, heads: range | None = None) -> None:
        """Which layer it is of, and which of its heads are here: what is drawn depends on both."""
        if isinstance(self.pattern, SparseBlocks):
            layer = self.pattern.layer if layer is None else layer
            self.pattern = replace(self.pattern, layer=layer, heads=self.pattern.heads if heads is None else heads)

    def marks(self, numbers: Tensor | None) -> bool:
        """Whether these numbers mark tokens that see all."""
        return numbers is not None and len(numbers) > 1 + visibility_of(self.visibility).ordered

    def forward(
        self,
        q_SBHK: Tensor,
        k_SBHK: Tensor,
        v_SBHK: Tensor,
        mask: Tensor | None,
        of_marked: tuple[Tensor, Tensor, Tensor] | None = None,
        places_BG: Tensor | None = None,
    ) -> Tensor:
        """[S, B, H*K]; `of_marked`: queries, keys and values by which marked positions see all, where they are
        others; `places_BG`: these positions, where they are known (`marked_places`)."""
        if mask is not None and (mask.dtype == torch.bool or mask.is_floating_point()):
            return super().forward(q_SBHK, k_SBHK, v_SBHK, mask)
        made = Mask.of(mask, len(q_SBHK), q_SBHK.device, visibility=self.visibility, pattern=self.pattern)
        marked = None if made.marks is None else Marked.of(made.marks, places_BG)
        rate = self.dropout.rate if self.dropout.draws else 0.0
        kernel = choose(work_of(q_SBHK, made, marked, rate), device_of(q_SBHK.device), self.kernel).kernel
        if kernel == FUSED:
            mixed_SBHK = self.weigh(q_SBHK, k_SBHK, v_SBHK, made.scores(None))
        else:
            with self.dropout.drawing():
                mixed_SBHK = attend_by(kernel, q_SBHK, k_SBHK, v_SBHK, made, marked, scale=self.scale, dropout=rate)
        if marked is not None:
            q, k, v = (q_SBHK, k_SBHK, v_SBHK) if of_marked is None else of_marked
            mixed_SBHK = marked.put(mixed_SBHK, self.weigh(marked.take(q), k, v, marked.see(made)))
        return mixed_SBHK.flatten(2)


def score_scale(brick: Brick) -> float:
    """What scores are multiplied by."""
    terms = {"sqrt": 1, "sqrt-3": 3}
    return 1 / math.sqrt(terms[scale] * brick.size.key_width) if (scale := brick.block.scale) in terms else 1.0


class SelfAttention(nn.Module):
    """Queries, keys and values from one stream.

    Rows of `qkv` are ordered (head, [q, k, v], K), so that a contiguous slice of them is whole heads. Where keys and
    values have fewer heads it is `query` and `kv`, as in `CrossAttention`.
    """

    qkv: Linear
    query: Linear
    kv: Linear

    def __init__(self, brick: Brick, *, dropout: float) -> None:
        super().__init__()
        self.key_width = brick.size.key_width
        self.grouped = "kv" in brick.maps
        for name in ("query", "kv") if self.grouped else ("qkv",):
            self.add_module(name, Linear.of(brick.maps[name]))
        # Of queries and values, rows (head, [q, v], K), where keys have none.
        self.biases = HeadBias(brick.biases) if brick.biases else None
        self.attend: Attend = PatternAttend(brick, dropout=dropout)
        self.output = Linear.of(brick.maps["output"])

    def forward(
        self,
        x_SBD: Tensor,
        mask: Tensor | None,
        position_state: Tensor | None = None,
        keys: Tensor | None = None,
        past: None = None,
        places_BG: Tensor | None = None,
    ) -> Tensor:
        """`position_state`: the rotation of queries and keys (`positions.rotation`), where the stack has one. `keys`:
        what keys and values are made of, where it is not x. `places_BG`: as `PatternAttend` has it."""
        read = self._placed(*self._project(x_SBD, keys), position_state)
        return self.output(self.attend(*read, mask) if places_BG is None else self.attend(*read, mask, None, places_BG))

    def scores(self, x_SBD: Tensor, mask: Tensor | None, position_state: Tensor | None = None) -> Tensor:
        """[B, H, S, S], float32: what the softmax is taken of; zero for pairs that are hidden, or score -100 and less.

        `mask` as `Attend` takes it. No kernel gives them, so that they are computed a second time.
        """
        q_SBHK, k_SBHK, _ = self._placed(*self._project(x_SBD, None), position_state)
        k_SBHK = for_heads(k_SBHK, q_SBHK.shape[2])
        scores = q_SBHK.permute(1, 2, 0, 3).float() @ k_SBHK.permute(1, 2, 3, 0).float() * self.attend.scale
        if mask is None and self.attend.causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if mask is not None and mask.is_floating_point():
            scores = scores + mask
        elif mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return scores.masked_fill(scores <= LEAST_SCORE, 0.0)

    def _placed(self, q: Tensor, k: Tensor, v: Tensor, position_state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys that know their places."""
        return (q, k, v) if position_state is None else (rotate(q, position_state), rotate(k, position_state), v)

    def _project(self, x_SBD: Tensor, keys: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [S, B, H, K], keys and values."""
        if self.grouped:
            q, kv = self.query(x_SBD), self.kv(x_SBD if keys is None else keys)
            q, (k, v) = q.unflatten(-1, (-1, self.key_width)), kv.unflatten(-1, (-1, 2, self.key_width)).unbind(3)
        else:
            q, k, v = self.qkv(x_SBD).unflatten(-1, (-1, 3, self.key_width)).unbind(3)
            if keys is not None:
                _, k, v = self.qkv(keys).unflatten(-1, (-1, 3, self.key_width)).unbind(3)
        if self.biases is not None:
            of_queries, of_values = self.biases.bias.view(-1, 2, self.key_width).unbind(1)
            q, v = q + of_queries, v + of_values
        return q, k, v


class CrossAttention(nn.Module):
    """Queries from the decoder, keys and values from the encoder's output. Rows of `kv`: (head, [k, v], K)."""

    def __init__(self, brick: Brick, *, dropout: float) -> None:
        super().__init__()
        self.key_width = brick.size.key_width
        self.query, self.kv = Linear.of(brick.maps["query"]), Linear.of(brick.maps["kv"])
        self.attend = Attend(causal=False, scale=score_scale(brick), dropout=brick.block.attention_rate(dropout))
        self.output = Linear.of(brick.maps["output"])

    def forward(self, x_SBD: Tensor, memory_MBD: Tensor, mask: Tensor | None) -> Tensor:
        q, kv = self.query(x_SBD), self.kv(memory_MBD)
        k, v = kv.view(*kv.shape[:2], -1, 2, self.key_width).unbind(3)
        return self.output(self.attend(q.view(*q.shape[:2], -1, self.key_width), k, v, mask))
