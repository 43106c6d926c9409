"""FlashAttention's operations of torch on a CPU, for tests: a dense form of each document. Gradients are by torch's own
formula, so that arguments and offsets are those that a GPU gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import Tensor

from megaptm.layers import kernels, stack
from megaptm.layers.kernel_choice import ComputeDevice
from megaptm.parallel import document_offsets

GPU = ComputeDevice("cuda", frozenset())


@dataclass
class Flash:
    """Calls of the operations."""

    forward: list[tuple[int, ...]] = field(default_factory=list)
    """Numbers of queries, keys, documents, and bounds of their lengths."""
    backward: int = 0


def _documents(queries: Tensor, keys: Tensor) -> Iterator[tuple[slice, slice]]:
    assert queries.dtype == keys.dtype == torch.int32
    assert queries.is_contiguous()
    assert keys.is_contiguous()
    assert len(queries) == len(keys)
    for ends in zip(queries[:-1], queries[1:], keys[:-1], keys[1:], strict=True):
        first, last, first_key, last_key = map(int, ends)
        yield slice(first, last), slice(first_key, last_key)


def _weights(q: Tensor, k: Tensor, scale: float, causal: bool, before: int, after: int) -> Tensor:
    """Return the attention weights [H, q, k] of one document. `before`, `after`: the window; -1: unlimited."""
    scores = torch.einsum("qhk,mhk->hqm", q, k.repeat_interleave(q.shape[1] // k.shape[1], 1)) * scale
    if causal:
        after = 0
    # Aligned to the last query and key, as the kernels do.
    step = torch.arange(len(k)) - torch.arange(len(q))[:, None] - (len(k) - len(q))
    is_far = (before >= 0) & (step < -before) | (after >= 0) & (step > after)
    scores = scores.masked_fill(is_far, -torch.inf)
    return scores.softmax(-1)


def _dropout_factors(weights: Tensor, rate: float, state: Tensor, document: int) -> Tensor:
    """Return the factors of dropout: a function of the random state that the forward pass saved."""
    generator = torch.Generator().manual_seed(int(state[0]) + document)
    return (torch.rand(weights.shape, generator=generator, dtype=weights.dtype) >= rate) / (1 - rate)


@contextmanager
def flash_on_cpu() -> Iterator[Flash]:
    """Let kernels be chosen as on a GPU in bf16, and compute FlashAttention on the CPU in any precision."""
    calls, library = Flash(), torch.library.Library("aten", "IMPL")

    def forward(  # type: ignore[no-untyped-def]
        query,
        key,
        value,
        cum_seq_q,
        cum_seq_k,
        max_q,
        max_k,
        dropout_p,
        is_causal,
        return_debug_mask,
        *,
        scale=None,
        window_size_left=None,
        window_size_right=None,
        **unused,
    ):
        assert not return_debug_mask
        assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        assert cum_seq_q[0] == cum_seq_k[0] == 0
        assert (cum_seq_q[-1], cum_seq_k[-1]) == (len(query), len(key))
        assert int(cum_seq_q.diff().max()) <= max_q
        assert int(cum_seq_k.diff().max()) <= max_k
        calls.forward.append((len(query), len(key), len(cum_seq_q) - 1, max_q, max_k))
        out, state = torch.zeros_like(query), torch.randint(2**40, (2,))
        repeated = value.repeat_interleave(query.shape[1] // key.shape[1], 1)
        for at, (queries, keys) in enumerate(_documents(cum_seq_q, cum_seq_k)):
            weights = _weights(query[queries], key[keys], scale, is_causal, window_size_left, window_size_right)
            if dropout_p:
                weights = weights * _dropout_factors(weights, dropout_p, state, at)
            out[queries] = torch.einsum("hqm,mhk->qhk", weights, repeated[keys])
        nothing = query.new_zeros(())
        return out, query.new_zeros(query.shape[1], len(query)), state, nothing, nothing

    def backward(  # type: ignore[no-untyped-def]
        grad_out,
        query,
        key,
        value,
        out,
        logsumexp,
        cum_seq_q,
        cum_seq_k,
        max_q,
        max_k,
        dropout_p,
        is_causal,
        state,
        unused,
        *,
        scale=None,
        window_size_left=None,
        window_size_right=None,
    ):
        calls.backward += 1
        # As of a kernel that writes the gradients of its documents only.
        gradients = [torch.full_like(x, torch.nan) for x in (query, key, value)]
        groups = query.shape[1] // key.shape[1]
        for at, (queries, keys) in enumerate(_documents(cum_seq_q, cum_seq_k)):
            weights = _weights(query[queries], key[keys], scale, is_causal, window_size_left, window_size_right)
            grad = grad_out[queries]
            factors = _dropout_factors(weights, dropout_p, state, at) if dropout_p else 1.0
            repeated_k, repeated_v = (x[keys].repeat_interleave(groups, 1) for x in (key, value))
            grad_v = torch.einsum("hqm,qhk->mhk", weights * factors, grad)
            grad_weights = torch.einsum("qhk,mhk->hqm", grad, repeated_v) * factors
            grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True)) * scale
            gradients[0][queries] = torch.einsum("hqm,mhk->qhk", grad_scores, repeated_k)
            grad_k = torch.einsum("hqm,qhk->mhk", grad_scores, query[queries])
            for gradient, of_heads in ((gradients[1], grad_k), (gradients[2], grad_v)):
                gradient[keys] = of_heads.unflatten(1, (-1, groups)).sum(2)
        return tuple(gradients)

    library.impl("_flash_attention_forward", forward, "CPU")
    library.impl("_flash_attention_backward", backward, "CPU")
    as_bf16 = dict.fromkeys((torch.float32, torch.float64, torch.bfloat16), "bf16")
    try:
        with (
            patch.object(stack, "describe_device", lambda device: GPU),
            patch.object(document_offsets, "describe_device", lambda device: GPU),
            patch.object(stack, "PRECISIONS", as_bf16),
            patch.object(kernels, "PRECISIONS", as_bf16),
        ):
            yield calls
    finally:
        library._destroy()
