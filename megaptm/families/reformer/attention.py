"""LSH attention (Reformer, arXiv:2001.04451, section 2) as in the released models: queries are keys, and a query
attends to its own chunk of the sorted sequence and the chunk before it, whatever their buckets.

The mask is exact: future positions, other documents and padding have no weight. But the whole sequence is sorted, so
later tokens influence which earlier positions share a chunk with a query. This holds for every published
implementation.
"""

# S sequence, B batch, H heads, K head width, D width, R hashes, P positions of a sorted sequence (S padded to whole
# chunks), C chunks of all hashes, c positions of a chunk, k keys of a chunk's queries, F features of a rotation

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from megaptm.families.reformer.costs import HashedAttentionCosts
from megaptm.layers.accumulate import sum_dtype
from megaptm.layers.attention import AttentionCore, AttentionModule
from megaptm.layers.costs import LayerCosts
from megaptm.layers.positions import apply_rotary_embedding
from megaptm.layers.rng import copy_to_device, next_seed
from megaptm.layers.split import Dropout, Linear

HIDDEN, ITSELF = -1e9, -1e5
"""Scores of LSH attention for masked keys, and for a query with itself: it attends to itself only if nothing else is
left."""
MAX_SCORES = 1 << 22
"""Maximum number of LSH attention scores in memory at a time."""
EVALUATION = "evaluation"
"""Seed key of LSH attention's rotations outside of training steps."""


def hash_rotations(key: str, layer: int, heads: range, shape: tuple[int, ...]) -> Tensor:
    """Sample the hash rotations of LSH attention, [H, *shape], float32 on the host. A function of key, layer and head,
    so that all ranks and recomputations agree."""
    made = []
    for head in heads:
        digest = hashlib.sha256(f"rotations:{key}:{layer}:{head}".encode()).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        made.append(generator.standard_normal(shape, dtype=np.float32))
    return torch.from_numpy(np.stack(made))


class HashedAttend(AttentionCore):
    """LSH attention without projections: average of the hash rounds, weighted by their normalizers."""

    def __init__(self, costs: HashedAttentionCosts, *, dropout: float) -> None:
        super().__init__()
        self.costs, self.causal = costs, costs.block.causal
        self.layer, self.heads, self.num_heads = 0, range(costs.size.heads), costs.size.heads
        self.key = EVALUATION
        """Seed key of LSH attention's rotations, in addition to layer and head."""
        self.dropout = Dropout(costs.attention.dropout_rate(dropout), masks="heads")
        self._sampled: tuple[tuple[Any, ...], Tensor] | None = None

    def set_seed_key(self, key: str | None) -> None:
        self.key = EVALUATION if key is None else key

    def assign(self, *, layer: int | None = None, heads: range | None = None) -> None:
        self.layer, self.heads = self.layer if layer is None else layer, self.heads if heads is None else heads

    def hash_buckets(self, q_SBHK: Tensor) -> Tensor | None:
        """Return the hash buckets of LSH attention, [B, H, R, S]. None if the sequence is a single chunk."""
        if not self.costs.chunks(len(q_SBHK)):
            return None
        with torch.no_grad():
            return torch.stack(
                [self._hash_buckets(q_SBHK, rotation) for rotation in self._hash_rotations(q_SBHK).unbind(2)], 2
            )

    def forward(
        self, q_SBHK: Tensor, v_SBHK: Tensor, mask_fields: Tensor | None, buckets_BHRS: Tensor | None
    ) -> Tensor:
        """Return the output of LSH attention, [S, B, H*K]. `mask_fields`: document ids (`Mask.stacked_fields`)."""
        length, chunk = len(q_SBHK), self.costs.chunk if buckets_BHRS is not None else len(q_SBHK)
        q, v = (F.pad(x.permute(1, 2, 0, 3), (0, 0, 0, -length % chunk)) for x in (q_SBHK, v_SBHK))
        documents = None if mask_fields is None else mask_fields[0]
        order = _sort_by_bucket(buckets_BHRS, documents, q)
        inverse = order.argsort(-1)
        chunks = (*order.shape[:2], -1, chunk)
        positions = order.reshape(chunks)
        with self.dropout.use_rng():
            rate = self.dropout.rate if self.dropout.is_active else 0.0
            seed = next_seed(q.device) if rate else 0
        work = _ChunkInputs(
            positions, _document_ids_at(documents, positions), length, self.causal, buckets_BHRS is not None, rate, seed
        )
        q_sorted, v_sorted = (_reorder(x[:, :, None], order, inverse).reshape(*chunks, x.shape[-1]) for x in (q, v))
        mixed, normalizers = _Chunks.apply(q_sorted, v_sorted, work)
        mixed, normalizers = (
            _reorder(x.view(*order.shape, -1), inverse, order)[..., :length, :] for x in (mixed, normalizers[..., None])
        )
        # A hash round is weighted by the softmax normalizer of its keys.
        mixed_BHSK = (mixed * normalizers.softmax(2).to(mixed.dtype)).sum(2) if order.shape[2] > 1 else mixed[:, :, 0]
        return mixed_BHSK.permute(2, 0, 1, 3).flatten(2)

    def _hash_rotations(self, q_SBHK: Tensor) -> Tensor:
        """Return the hash rotations [H, K, R, F] of all factors, concatenated. They are sampled once per step."""
        by = (self.key, self.layer, self.heads, q_SBHK.device)
        if self._sampled is None or self._sampled[0] != by:
            shape = (q_SBHK.shape[-1], self.costs.hashes, sum(self.costs.factors) // 2)
            sampled = hash_rotations(self.key, self.layer, self.heads, shape)
            self._sampled = by, copy_to_device(sampled, q_SBHK.device)
        return self._sampled[1]

    def _hash_buckets(self, q_SBHK: Tensor, rotation_HKF: Tensor) -> Tensor:
        """Return the hash bucket of each position for one rotation, [B, H, S]: the direction, or its opposite, with the
        largest product."""
        rows, heads = q_SBHK.shape[1:3]
        buckets = []
        for piece in q_SBHK.split(max(1, MAX_SCORES // (rows * heads * rotation_HKF.shape[-1]))):
            precise = sum_dtype(piece.dtype)
            turned = torch.einsum("sbhk,hkf->bhsf", piece.to(precise), rotation_HKF.to(precise))
            bucket, product = torch.zeros(turned.shape[:3], dtype=torch.int32, device=turned.device), 1
            for number, part in zip(
                self.costs.factors, turned.split([n // 2 for n in self.costs.factors], -1), strict=True
            ):
                (high, at_high), (low, at_low) = part.max(-1), part.min(-1)
                bucket += product * torch.where(high >= -low, at_high, number // 2 + at_low).int()
                product *= number
            buckets.append(bucket)
        return torch.cat(buckets, 2)


class HashedAttention(AttentionModule):
    """LSH self-attention. Rows of `qv` are ordered (head, [q, v], K)."""

    attend: HashedAttend

    def __init__(self, costs: LayerCosts, *, dropout: float) -> None:
        super().__init__()
        self.key_width = costs.size.key_width
        self.qv, self.output = Linear.from_shape(costs.linears["qv"]), Linear.from_shape(costs.linears["output"])
        self.attend = HashedAttend(cast(HashedAttentionCosts, costs), dropout=dropout)

    def forward(
        self, x_SBD: Tensor, mask: Tensor | None, position_state: Tensor | None = None, keys: Tensor | None = None
    ) -> Tensor:
        """Return the output of the LSH self-attention layer, [S, B, D]. `mask`: document ids of the
        batch (`Mask.stacked_fields`)."""
        assert keys is None, "keys are queries"
        return self.reuse(x_SBD, mask, position_state, None)[0]

    def reuse(
        self, x_SBD: Tensor, mask: Tensor | None, position_state: Tensor | None, choice: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of LSH attention and the hash buckets [B, H, R, S].

        Recomputation passes the buckets of the first pass: its input may differ in the last bits, which could change a
        bucket.
        """
        q, v = self.qv(x_SBD).unflatten(-1, (-1, 2, self.key_width)).unbind(3)
        q = q if position_state is None else apply_rotary_embedding(q, position_state)
        buckets_BHRS = self.attend.hash_buckets(q) if choice is None else choice
        return self.output(self.attend(q, v, mask, buckets_BHRS)), buckets_BHRS


def _sort_by_bucket(buckets_BHRS: Tensor | None, documents_BS: Tensor | None, q_BHPK: Tensor) -> Tensor:
    """Return the positions sorted by document, hash bucket and position, padding last, [B, H, R, P]."""
    rows, heads, positions = q_BHPK.shape[:3]
    if buckets_BHRS is None:
        return torch.arange(positions, device=q_BHPK.device).expand(rows, heads, 1, -1)
    key = buckets_BHRS.long()
    if documents_BS is not None:
        last = documents_BS.amax(1, keepdim=True) + 1
        key = key + (documents_BS.where(documents_BS > 0, last) << 32)[:, None, None]
    missing = positions - key.shape[-1]
    return F.pad(key, (0, missing), value=torch.iinfo(torch.int64).max).argsort(dim=-1, stable=True)


def _document_ids_at(documents_BS: Tensor | None, positions_BHCc: Tensor) -> Tensor | None:
    """Return the document ids of the positions in LSH attention's chunks, [B, H, C, c]; 0 for padding."""
    if documents_BS is None:
        return None
    filled = F.pad(documents_BS, (0, -documents_BS.shape[1] % positions_BHCc.shape[-1]))
    return filled.gather(1, positions_BHCc.flatten(1)).view(positions_BHCc.shape)


def _reorder(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Gather x [B, H, R or 1, P, K] in an order of positions [B, H, R, P]."""
    moved: Tensor = _Reorder.apply(x.expand(*order.shape, -1), order, inverse)
    return moved


class _Reorder(torch.autograd.Function):
    """Permutation along the sequence, by the order of hash buckets. Its gradient is gathered by the inverse order, so
    no sum depends on an order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.gather(3, order[..., None].expand(x.shape))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grads[0].gather(3, inverse[..., None].expand(grads[0].shape)), None, None


@dataclass(frozen=True)
class _ChunkInputs:
    """Inputs of LSH attention's forward and backward pass that have no gradients."""

    positions: Tensor
    """Positions of the sorted sequence of LSH attention, by chunk [B, H, C, c]."""
    documents: Tensor | None
    length: int
    """Length S of the sequence that LSH attention sorts."""
    causal: bool
    looks_back: bool
    """Whether each chunk of LSH attention also attends to the chunk before it; the first chunk attends to the last."""
    dropout: float
    seed: int


class _Chunks(torch.autograd.Function):
    """LSH attention in groups of chunks of the sorted sequence, one group after the other.

    Only the scores of one group are in memory. Queries and values are saved for the backward pass, which recomputes
    scores.
    """

    @staticmethod
    def forward(ctx: Any, q_BHCcK: Tensor, v_BHCcK: Tensor, work: _ChunkInputs) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q_BHCcK, v_BHCcK)
        ctx.work = work
        mixed = torch.empty_like(v_BHCcK)
        normalizers = torch.empty(q_BHCcK.shape[:4], dtype=sum_dtype(q_BHCcK.dtype), device=q_BHCcK.device)
        for chunks, generator in _chunk_ranges(q_BHCcK, work):
            own = slice(chunks.start, chunks.stop)
            mixed[:, :, own], normalizers[:, :, own] = _attend_chunks(
                *_chunk_inputs(q_BHCcK, v_BHCcK, chunks, work), chunks, work, generator
            )
        return mixed, normalizers

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mixed: Tensor, grad_normalizers: Tensor) -> tuple[Tensor, Tensor, None]:
        q_BHCcK, v_BHCcK = ctx.saved_tensors
        work: _ChunkInputs = ctx.work
        grads = [torch.zeros(x.shape, dtype=sum_dtype(x.dtype), device=x.device) for x in (q_BHCcK, v_BHCcK)]
        for chunks, generator in _chunk_ranges(q_BHCcK, work):
            with torch.enable_grad():
                inputs = [
                    None if x is None else x.detach().requires_grad_()
                    for x in _chunk_inputs(q_BHCcK, v_BHCcK, chunks, work)
                ]
                q, q_before, v, v_before = inputs
                assert q is not None
                assert v is not None
                outputs = _attend_chunks(q, q_before, v, v_before, chunks, work, generator)
            own = slice(chunks.start, chunks.stop)
            there = [x for x in inputs if x is not None]
            gradients = iter(torch.autograd.grad(outputs, there, (grad_mixed[:, :, own], grad_normalizers[:, :, own])))
            for number, x in enumerate(inputs):
                if x is not None:
                    _add_to_chunks(grads[number // 2], next(gradients), chunks, before=number % 2 == 1)
        return grads[0].to(q_BHCcK.dtype), grads[1].to(v_BHCcK.dtype), None


def _chunk_ranges(q_BHCcK: Tensor, work: _ChunkInputs) -> Iterator[tuple[range, torch.Generator | None]]:
    """Yield ranges of chunks of LSH attention, and the generator of their dropout masks."""
    rows, heads, chunks, chunk, _ = q_BHCcK.shape
    generator = torch.Generator(q_BHCcK.device).manual_seed(work.seed) if work.dropout else None
    each = max(1, MAX_SCORES // (rows * heads * chunk * chunk * (2 if work.looks_back else 1)))
    for start in range(0, chunks, each):
        yield range(start, min(start + each, chunks)), generator


def _chunk_inputs(
    q: Tensor, v: Tensor, chunks: range, work: _ChunkInputs
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Return queries and values of a range of LSH attention's chunks, each with those of the previous chunks."""
    own = slice(chunks.start, chunks.stop)
    back = (_chunk_before(q, chunks), _chunk_before(v, chunks)) if work.looks_back else (None, None)
    return q[:, :, own], back[0], v[:, :, own], back[1]


def _chunk_before(x: Tensor, chunks: range) -> Tensor:
    if chunks.start:
        return x[:, :, chunks.start - 1 : chunks.stop - 1]
    return torch.cat([x[:, :, -1:], x[:, :, : chunks.stop - 1]], 2)


def _add_to_chunks(grad: Tensor, gradient: Tensor, chunks: range, *, before: bool) -> None:
    if not before:
        grad[:, :, chunks.start : chunks.stop] += gradient
    elif chunks.start:
        grad[:, :, chunks.start - 1 : chunks.stop - 1] += gradient
    else:
        grad[:, :, -1:] += gradient[:, :, :1]
        grad[:, :, : chunks.stop - 1] += gradient[:, :, 1:]


def _attend_chunks(
    q: Tensor,
    q_before: Tensor | None,
    v: Tensor,
    v_before: Tensor | None,
    chunks: range,
    work: _ChunkInputs,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Return attention output [B, H, g, c, K] of a range of chunks, and the log-normalizer of its weights."""
    k = q if q_before is None else torch.cat([q_before, q], 3)
    v = v if v_before is None else torch.cat([v_before, v], 3)
    scores = (q @ _normalize_keys(k).transpose(3, 4)).to(sum_dtype(q.dtype))
    hidden, itself = _chunk_masks(chunks, work)
    scores = scores.masked_fill(hidden, HIDDEN).masked_fill(itself, ITSELF)
    normalizers = scores.logsumexp(-1, keepdim=True)
    weights = (scores - normalizers).exp().to(v.dtype)
    if generator is not None:
        keep = torch.empty_like(weights).bernoulli_(1 - work.dropout, generator=generator)
        weights = weights * (keep / (1 - work.dropout))
    return weights @ v, normalizers.squeeze(-1)


def _normalize_keys(k: Tensor) -> Tensor:
    """Normalize the keys of LSH attention by their root mean square, as the released code does."""
    of_root_one = k * torch.rsqrt(k.square().mean(-1, keepdim=True) + 1e-6)
    return of_root_one / k.shape[-1] ** 0.5


def _chunk_masks(chunks: range, work: _ChunkInputs) -> tuple[Tensor, Tensor]:
    """Return which keys LSH attention masks, and which are the query's own position, [B, H, g, c, k]."""
    own = slice(chunks.start, chunks.stop)

    def queries_and_keys(x: Tensor) -> tuple[Tensor, Tensor]:
        keys = torch.cat([_chunk_before(x, chunks), x[:, :, own]], 3) if work.looks_back else x[:, :, own]
        return x[:, :, own, :, None], keys[:, :, :, None]

    query, key = queries_and_keys(work.positions)
    hidden = key >= work.length
    if work.causal:
        hidden = hidden | (key > query)
    if work.documents is not None:
        query_documents, key_documents = queries_and_keys(work.documents)
        # As in `Mask.attends_by_content`: padding attends to everything, and its output is never read.
        hidden = hidden | ((query_documents != key_documents) & (query_documents != 0))
    return hidden, key == query
