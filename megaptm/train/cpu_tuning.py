"""Faster training on CPUs. No other module depends on it: to remove it, delete this file, its test, and the call in
`train.run`.

`tune_for_cpu` replaces kernels of torch for CPU tensors, and sets an option of the memory allocator. Speeds are of an
AMD EPYC of family 26 with AVX-512, one thread (benchmarks/products.py).

| what | where | gain |
|---|---|---|
| float32 products by oneDNN instead of MKL | AMD with AVX-512 | 229 instead of 114 GFLOP/s |
| bfloat16 products in float32 | Intel without AMX | 155 instead of 82 GFLOP/s |
| bfloat16 attention by plain products | AMD with AVX-512 BF16 | 1.4 to 2.6x |
| freed memory is kept | Linux with glibc | a quarter of a step |

Sums are added in another order. The choice depends on vendor and instructions of the processor, dtypes and shapes, not
on measurements, so that a resumed run makes the same choice on the same processor.
"""

# B batch, H heads, N = B H, S queries, T keys, K head width, q queries and t keys of a part

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, get_kernel

PROCESSOR = Path("/proc/cpuinfo")
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"

MIN_MULTIPLIED = 2**22
"""Minimum number of multiplications of a matrix product that oneDNN computes. For a smaller product, calling oneDNN and
generating its code for each new shape (1 ms) costs as much as it gains."""
MIN_ROWS = 64
"""Minimum number of rows of a bfloat16 product that is computed in float32. With fewer, copying the weight costs more
than the product."""
NUM_QUERIES = 256
"""Number of queries whose attention weights are computed at once, so that they stay in the cache."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Options of glibc's `mallopt`."""
MAX_BYTES = 2**31 - 1
"""Maximum value of an option of `mallopt`, which takes an int."""


@cache
def tune_for_cpu() -> Callable[[], None]:
    """Tune this process for training on CPUs. Return a function that restores the kernels of torch."""
    keep_freed_memory()
    library = Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # torch warns that a kernel is replaced
        if prefers_onednn():
            _replace_kernel(library, "mm", _mm_by_onednn)
            _replace_kernel(library, "addmm", _addmm_by_onednn)
            _replace_kernel(library, "addmm_", _add_mm_by_onednn)
        elif prefers_float32():
            _replace_kernel(library, "mm", _mm_in_float32)
            _replace_kernel(library, "addmm", _addmm_in_float32)
        if prefers_products():
            _replace_kernel(library, ATTENTION, _attend_forward)
            _replace_kernel(library, f"{ATTENTION}_backward", _attend_backward)

    def restore() -> None:
        library._destroy()
        tune_for_cpu.cache_clear()

    return restore


def prefers_onednn() -> bool:
    """Whether oneDNN is faster than MKL in float32. MKL uses 256-bit vectors unless Intel made the processor."""
    return _cpu_has("AuthenticAMD", "avx512f") and torch.backends.mkldnn.is_available()


def prefers_float32() -> bool:
    """Whether bfloat16 products are slower than float32 ones."""
    return _cpu_has("GenuineIntel") and not _cpu_has("amx_bf16")


def prefers_products() -> bool:
    """Whether bfloat16 attention is faster by plain products than by torch's fused kernel. Not measured on Intel."""
    return _cpu_has("AuthenticAMD", "avx512_bf16")


def _cpu_has(*words: str) -> bool:
    """Whether Linux describes the CPU with these words: vendor, instructions."""
    try:
        return {*words} <= {*PROCESSOR.read_text(errors="replace").split()}
    except OSError:  # not Linux, or hidden
        return False


def keep_freed_memory() -> None:
    """Retain freed memory in this process, up to 2 GiB, if the allocator is glibc's.

    Otherwise it is returned to Linux, which zeroes each page on the next allocation. Large tensors of a step have the
    same sizes in the next one.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None:
        # glibc before 2.35 accepts at most 32 MiB; the trim threshold alone would then fix the limit at 128 KiB.
        if not mallopt(M_MMAP_THRESHOLD, MAX_BYTES):
            mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, MAX_BYTES)


def _replace_kernel(library: Library, name: str, kernel: Callable[..., Any]) -> None:
    """Replace a kernel of torch for CPU tensors. The first argument of `kernel` is the replaced kernel."""
    original = get_kernel(f"aten::{name}", "CPU")

    def call(keys: Any, *args: Any, **options: Any) -> Any:
        return kernel(lambda *args, **options: original.call_boxed(keys, *args, **options), *args, **options)

    library.impl(name, call, "CPU", with_keyset=True)


def _is_large(a_NI: Tensor, b_IO: Tensor) -> bool:
    return a_NI.dtype == torch.float32 and a_NI.numel() * b_IO.shape[1] >= MIN_MULTIPLIED


def _mm_by_onednn(mm: Callable[..., Tensor], a_NI: Tensor, b_IO: Tensor) -> Tensor:
    return _multiply_by_onednn(a_NI, b_IO, None) if _is_large(a_NI, b_IO) else mm(a_NI, b_IO)


def _addmm_by_onednn(
    addmm: Callable[..., Tensor], c_O: Tensor, a_NI: Tensor, b_IO: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    if not _is_large(a_NI, b_IO) or c_O.dim() != 1 or (beta, alpha) != (1, 1):
        return addmm(c_O, a_NI, b_IO, beta=beta, alpha=alpha)
    return _multiply_by_onednn(a_NI, b_IO, c_O.contiguous())  # oneDNN ignores the strides of a bias


def _add_mm_by_onednn(
    addmm_: Callable[..., Tensor], c_NO: Tensor, a_NI: Tensor, b_IO: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    if not _is_large(a_NI, b_IO) or (beta, alpha) != (1, 1):
        return addmm_(c_NO, a_NI, b_IO, beta=beta, alpha=alpha)
    return c_NO.add_(_multiply_by_onednn(a_NI, b_IO, None))


def _multiply_by_onednn(a_NI: Tensor, b_IO: Tensor, bias_O: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a_NI, b_IO.t(), bias_O, "none", [], "")
    return product


def _is_widened(a_NI: Tensor) -> bool:
    return a_NI.dtype == torch.bfloat16 and len(a_NI) >= MIN_ROWS


def _mm_in_float32(mm: Callable[..., Tensor], a_NI: Tensor, b_IO: Tensor) -> Tensor:
    return mm(a_NI.float(), b_IO.float()).bfloat16() if _is_widened(a_NI) else mm(a_NI, b_IO)


def _addmm_in_float32(addmm: Callable[..., Tensor], c: Tensor, a_NI: Tensor, b_IO: Tensor, **scales: float) -> Tensor:
    if not _is_widened(a_NI):
        return addmm(c, a_NI, b_IO, **scales)
    return addmm(c.float(), a_NI.float(), b_IO.float(), **scales).bfloat16()


def _attend_forward(
    fused: Callable[..., tuple[Tensor, Tensor]],
    q_BHSK: Tensor,
    k_BHTK: Tensor,
    v_BHTK: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention on a CPU. Return the output and an empty tensor in place of the normalizers, which the backward
    pass does not read."""
    if q_BHSK.dtype != torch.bfloat16:
        return fused(q_BHSK, k_BHTK, v_BHTK, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    out_SNK = torch.empty_like(q_BHSK.permute(2, 0, 1, 3), memory_format=torch.contiguous_format).flatten(1, 2)
    v_NTK = v_BHTK.flatten(0, 1).contiguous()
    for queries, keys, _, _, weights_Nqt in _attention_parts(q_BHSK, k_BHTK, attn_mask, scale, is_causal=is_causal):
        out_SNK[queries] = torch.bmm(weights_Nqt, v_NTK[:, keys]).transpose(0, 1)
    return out_SNK.unflatten(1, q_BHSK.shape[:2]).permute(1, 2, 0, 3), q_BHSK.new_empty(0, dtype=torch.float32)


def _attend_backward(
    fused: Callable[..., tuple[Tensor, Tensor, Tensor]],
    d_out_BHSK: Tensor,
    q_BHSK: Tensor,
    k_BHTK: Tensor,
    v_BHTK: Tensor,
    out_BHSK: Tensor,
    normalizers: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values of attention on a CPU; attention weights are computed again."""
    if q_BHSK.dtype != torch.bfloat16:
        arguments = (d_out_BHSK, q_BHSK, k_BHTK, v_BHTK, out_BHSK, normalizers, dropout_p, is_causal)
        return fused(*arguments, attn_mask=attn_mask, scale=scale)
    d_out_NSK, v_NTK = d_out_BHSK.flatten(0, 1).contiguous(), v_BHTK.flatten(0, 1).contiguous()
    d_q_NSK = torch.empty_like(d_out_NSK)
    d_k_NTK, d_v_NTK = (torch.zeros(v_NTK.shape) for _ in range(2))  # float32: sums of parts
    for queries, keys, q_NqK, k_NtK, weights_Nqt in _attention_parts(
        q_BHSK, k_BHTK, attn_mask, scale, is_causal=is_causal
    ):
        d_out_NqK = d_out_NSK[:, queries]
        d_v_NTK[:, keys] += torch.bmm(weights_Nqt.transpose(1, 2), d_out_NqK)
        d_weights_Nqt = torch.bmm(d_out_NqK, v_NTK[:, keys].transpose(1, 2))
        d_scores_Nqt = torch._softmax_backward_data(d_weights_Nqt, weights_Nqt, 2, weights_Nqt.dtype)
        d_q_NSK[:, queries] = torch.bmm(d_scores_Nqt, k_NtK).mul_(_scale_or_default(q_BHSK, scale))
        d_k_NTK[:, keys] += torch.bmm(d_scores_Nqt.transpose(1, 2), q_NqK)
    d_q, d_k, d_v = (
        d_NSK.to(like.dtype).view(like.shape)
        for d_NSK, like in zip((d_q_NSK, d_k_NTK, d_v_NTK), (q_BHSK, k_BHTK, v_BHTK), strict=True)
    )
    return d_q, d_k, d_v


def _scale_or_default(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _attention_parts(
    q_BHSK: Tensor, k_BHTK: Tensor, mask: Tensor | None, scale: float | None, *, is_causal: bool
) -> Iterator[tuple[slice, slice, Tensor, Tensor, Tensor]]:
    """Yield parts of attention on a CPU: some queries, the keys that they attend to, their scaled values, and attention
    weights [N, q, t]."""
    q_NSK = (q_BHSK * _scale_or_default(q_BHSK, scale)).flatten(0, 1).contiguous()
    k_NTK = k_BHTK.flatten(0, 1).contiguous()
    for start in range(0, q_NSK.shape[1], NUM_QUERIES):
        queries = slice(start, start + NUM_QUERIES)
        keys = slice(0, queries.stop if is_causal else None)
        q_NqK, k_NtK = q_NSK[:, queries], k_NTK[:, keys]
        scores_Nqt = torch.bmm(q_NqK, k_NtK.transpose(1, 2))
        if is_causal:
            later_qt = torch.ones(scores_Nqt.shape[1:], dtype=torch.bool).triu_(start + 1)
            scores_Nqt.masked_fill_(later_qt, -torch.inf)
        if mask is not None:
            mask_BHST = mask.expand(*q_BHSK.shape[:3], k_NTK.shape[1])
            scores_Nqt.unflatten(0, q_BHSK.shape[:2]).add_(mask_BHST[:, :, queries, keys])
        # A query that attends to no key gets zeros, as from torch's kernel.
        softmax = torch.softmax if mask is None else torch.ops.aten._safe_softmax
        yield queries, keys, q_NqK, k_NtK, softmax(scores_Nqt, 2)
