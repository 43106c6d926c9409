"""Attention within documents by FlashAttention's kernels for sequences of different lengths, which torch includes.

The documents of all sequences are concatenated, with the offset of each: no mask of all pairs is built, and pairs of
different documents are not computed. Padding is a document of its own. The host knows the documents of a micro-batch,
so it need not wait for a device to count them.
"""

# B batch, S sequence, M memory sequence, H heads, G heads of keys, K head width, T = B x S, N documents

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

OFFSETS = "document_offsets"
"""Batch field with the document offsets (`document_offsets`) of a stack's input, added by the engine."""
MAX_DOCUMENTS = 2**15
"""Maximum number of documents in a micro-batch: the second dimension of a kernel's grid, at most 65,535, counts them,
padded to a power of two."""
CROSS_OFFSETS = "cross_offsets"
"""Batch field with the `cross_offsets` of a stack's input and of the stack that it attends to, added by the engine."""


def attend_by_document(
    q_SBHK: Tensor,
    k_MBGK: Tensor,
    v_MBGK: Tensor,
    offsets: Tensor,
    *,
    causal: bool,
    scale: float,
    dropout: float,
    window: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Compute attention within documents: return the output [S, B, H, K].

    `offsets`: result of `document_offsets` or `cross_offsets` on the device, or a pair of rows of `context_offsets`.
    `window`: number of attended positions before and after the query; -1: all.
    """
    # Copies, unless sequences come first in memory, as after `layers.attention.apply_linear`.
    q, k, v = (x.transpose(0, 1).flatten(0, 1) for x in (q_SBHK, k_MBGK, v_MBGK))
    queries, keys = (offsets, offsets) if offsets.dim() == 1 else offsets.unbind()
    # The lengths only bound the grid of the kernel: blocks after the end of a document return at once.
    mixed_THK: Tensor = torch.ops.aten._flash_attention_forward(
        *(q, k, v, queries, keys, len(q_SBHK), len(k_MBGK), dropout, causal, False),
        scale=scale,
        window_size_left=window[0],
        window_size_right=window[1],
    )[0]
    return mixed_THK.unflatten(0, (q_SBHK.shape[1], -1)).transpose(0, 1)


def document_offsets(documents_BS: Tensor) -> Tensor | None:
    """Return the first position of each document in the concatenated sequences, and the end: int32 [N + 1].

    `documents_BS`: document ids on the host, 0 for padding. None if a document is interrupted by another or by padding,
    or if there are too many.
    """
    ids = documents_BS.numpy()
    is_start = np.ones(ids.shape, dtype=bool)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=is_start[:, 1:])
    (starts,) = is_start.ravel().nonzero()
    owners = ids.ravel()[starts]
    documents = (starts // ids.shape[1] * (ids.max() + 1) + owners)[owners > 0]
    if len(starts) > MAX_DOCUMENTS or len(np.unique(documents)) != len(documents):
        return None
    return torch.from_numpy(_pad_offsets(starts, ids.size))


def cross_offsets(documents_BS: Tensor, memory_BM: Tensor) -> Tensor | None:
    """Return the offsets of the same documents in both inputs of cross-attention, int32 [2, N + 1]. Padding of one
    attends to padding of the other.

    None unless the ids of each sequence ascend, with padding only at its end; or if there are too many.
    """
    streams = [documents_BS.numpy(), memory_BM.numpy()]
    last = int(max(ids.max() for ids in streams)) + 1
    if last > sum(ids.shape[1] for ids in streams):
        return None
    counts = []
    for ids in streams:
        padding_last = np.where(ids == 0, last, ids)
        if (padding_last[:, 1:] < padding_last[:, :-1]).any():
            return None
        cells = padding_last + np.arange(len(ids))[:, None] * (last + 1)
        counts.append(np.bincount(cells.ravel(), minlength=len(ids) * (last + 1)))
    lengths = np.stack(counts)
    ends = lengths[:, lengths.any(0)].cumsum(1)
    if ends.shape[1] > MAX_DOCUMENTS:
        return None
    starts = np.pad(ends[:, :-1], ((0, 0), (1, 0)))
    return torch.from_numpy(np.stack([_pad_offsets(row, ids.size) for row, ids in zip(starts, streams, strict=True)]))


def context_offsets(documents_BS: Tensor, memory_BM: Tensor, chunks: Sequence[range], *, causal: bool) -> Tensor | None:
    """Return the offsets of the queries of a context rank and of all keys, int32 [2 x chunks, N + 1]: a pair of rows
    for each chunk of queries, in the form of `cross_offsets`, with the keys up to its end if attention is causal.

    FlashAttention aligns causality to the last query and key of a document, which are then the same position. None in
    the cases of `cross_offsets`.
    """
    pairs = [
        cross_offsets(documents_BS[:, chunk.start : chunk.stop], memory_BM[:, : chunk.stop if causal else None])
        for chunk in chunks
    ]
    known = [offsets for offsets in pairs if offsets is not None]
    if len(known) < len(pairs):
        return None
    length = max(offsets.shape[1] for offsets in known)
    return torch.cat([torch.cat([of, of[:, -1:].expand(-1, length - of.shape[1])], 1) for of in known])


def _pad_offsets(starts: np.ndarray, end: int) -> np.ndarray:
    """Return document offsets, followed by the end and by empty documents up to a power of two of documents.

    Compiled code and recorded graphs then see few shapes. The number is a function of the micro-batch alone, because
    the random numbers of dropout depend on it.
    """
    number = 1 << (len(starts) - 1).bit_length()
    return np.concatenate([starts, np.full(number + 1 - len(starts), end)]).astype(np.int32)
