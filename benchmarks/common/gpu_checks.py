"""Kernels and modes that only a GPU runs, compared with plain ones. `gpu.py` runs them before it measures speed.

Each check returns the largest relative difference. They run in one process, and one that fails does not end the others.
"""

# S sequence, B batch, H heads, G heads of keys, K head width, C samples, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS, LENGTH, HEADS, WIDTH = 4, 512, 8, 64
SCALE = WIDTH**-0.5
BF16 = 3e-2
"""Limit of the relative difference of results in bf16, of a kernel or of the loss of a tiny model."""
COMPILED_BF16 = 0.1
"""Limit of the relative difference of losses and norms of compiled layers, which round fewer intermediate results."""
FP32 = 1e-5


def largest_difference(results: Any, expected: Any) -> float:
    """Return the largest difference of tensors, each relative to its largest element."""
    pairs = zip(results, expected, strict=True)
    return max(float((own.double() - other.double()).abs().max() / other.double().abs().max()) for own, other in pairs)


def document_ids(device: str) -> Tensor:
    """Return ids of documents of unequal lengths, with padding at the end of some sequences, [B, S]."""
    ids = 1 + torch.arange(LENGTH) // torch.tensor([[70], [100], [LENGTH], [33]])
    ids[::2, -20:] = 0
    return ids.to(device)


def random_qkv(device: str, key_heads: int, length: int = LENGTH) -> list[Tensor]:
    """Return queries, keys and values in bf16, as slices of one projection."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((LENGTH, HEADS), (length, key_heads), (length, key_heads))
    joint = (torch.randn(rows, ROWS, heads, 3, WIDTH, generator=generator) for rows, heads in shapes)
    return [each.to(device, torch.bfloat16)[:, :, :, 1].requires_grad_() for each in joint]


def attend_densely(x: list[Tensor], attended: Tensor, cap: float | None = None) -> Tensor:
    """Attend with a dense mask in float32, by plain operations."""
    q, k, v = (side.float().permute(1, 2, 0, 3) for side in x)
    k, v = (side.repeat_interleave(q.shape[1] // side.shape[1], 1) for side in (k, v))
    scores = q @ k.transpose(2, 3) * SCALE
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    return (scores.masked_fill(~attended, -torch.inf).softmax(-1) @ v).permute(2, 0, 1, 3)


def difference_of_attention(x: list[Tensor], mixed: Tensor, expected: Tensor, ids: Tensor) -> float:
    """Return the difference of attention outputs and gradients, without the outputs of padding."""
    is_read = (ids.t() > 0)[:, :, None, None]
    back = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(1)).to(mixed.device) * is_read
    gradients = [torch.autograd.grad((output.float() * back).sum(), x) for output in (mixed, expected)]
    return largest_difference([mixed * is_read, *gradients[0]], [expected * is_read, *gradients[1]])


def document_attention(device: str) -> float:
    """FlashAttention with offsets of documents: causal, full, in a window, with few heads of keys."""
    from megaptm.layers.kernels import kernel_window
    from megaptm.layers.mask import Mask
    from megaptm.layers.pattern import SlidingWindow
    from megaptm.layers.varlen import attend_by_document, document_offsets

    ids, differences = document_ids(device), []
    offsets = document_offsets(ids.cpu())
    assert offsets is not None
    for causal, pattern, heads in (
        *((True, None, HEADS), (False, None, 2)),
        *((True, SlidingWindow(40, 0), 1), (False, SlidingWindow(25, 25), HEADS)),
    ):
        x, mask = random_qkv(device, heads), Mask((LENGTH, LENGTH), ids.device, (ids, ids), causal, None, pattern)
        window = kernel_window(pattern, causal)
        mixed = attend_by_document(*x, offsets.to(device), causal=causal, scale=SCALE, dropout=0.0, window=window)
        differences.append(difference_of_attention(x, mixed, attend_densely(x, mask.dense), ids))
    return max(differences)


def cross_attention(device: str) -> float:
    """FlashAttention between documents of two inputs; padding of one may have no partner in the other."""
    from megaptm.layers.mask import Mask
    from megaptm.layers.varlen import attend_by_document, cross_offsets

    ids = document_ids(device)
    memory = ids[:, ::2].contiguous()
    memory[1, -30:] = 0
    offsets = cross_offsets(ids.cpu(), memory.cpu())
    assert offsets is not None
    x, mask = random_qkv(device, HEADS, memory.shape[1]), Mask((LENGTH, memory.shape[1]), ids.device, (ids, memory))
    mixed = attend_by_document(*x, offsets.to(device), causal=False, scale=SCALE, dropout=0.0)
    # A document without keys has the output 0.
    attended = mask.dense
    expected = (
        attend_densely(x, attended | ~attended.any(-1, keepdim=True)) * attended.any(-1).permute(2, 0, 1)[..., None]
    )
    return difference_of_attention(x, mixed, expected, ids)


def flex_attention(device: str) -> float:
    """FlexAttention in documents, with a window, with a soft cap of scores."""
    from megaptm.layers.kernels import attend_with_kernel
    from megaptm.layers.mask import Mask
    from megaptm.layers.pattern import SlidingWindow

    ids, differences = document_ids(device), []
    for causal, pattern, heads, cap in (
        *((True, None, 2, 20.0), (False, SlidingWindow(60, 60), HEADS, None)),
        (True, SlidingWindow(60, 0, dilation=2), HEADS, None),
    ):
        x, mask = random_qkv(device, heads), Mask((LENGTH, LENGTH), ids.device, (ids, ids), causal, None, pattern)
        mixed = attend_with_kernel("flex", *x, mask, None, scale=SCALE, dropout=0.0, cap=cap)
        differences.append(difference_of_attention(x, mixed, attend_densely(x, mask.dense, cap), ids))
    return max(differences)


def cross_entropy(device: str) -> float:
    """Kernels of the token loss, with padding of the vocabulary and positions without a label."""
    from megaptm.batch import IGNORED
    from megaptm.losses.cross_entropy import CrossEntropy

    vocabulary, generator = 50_257, torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(64, 50_304, generator=generator)).to(device, torch.bfloat16)
    labels = torch.randint(vocabulary, (64,), generator=generator).to(device)
    labels[::7] = IGNORED
    x = logits[:, :vocabulary].double().requires_grad_()
    expected = F.cross_entropy(x, labels, reduction="none", ignore_index=IGNORED, label_smoothing=0.1)
    expected = expected + 1e-3 * (x.logsumexp(-1) * (labels != IGNORED)).square()
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    terms, own = CrossEntropy(vocabulary, 1e-3, 0.1)(logits, labels, gradient=True)
    assert own is not None
    return largest_difference([terms, own[:, :vocabulary]], [expected.detach(), gradient])


def weight_gradient(device: str) -> float:
    """Product in bf16 that is added to a float32 sum."""
    from megaptm.layers.accumulate import add_product

    a, b = (torch.randn(4096, width, device=device, dtype=torch.bfloat16) for width in (256, 384))
    total = torch.full((256, 384), 3.0, device=device)
    expected = total.double() + a.double().t() @ b.double()
    add_product(total, a.t(), b)
    return largest_difference([total], [expected])


def train(
    family: str, *, layout: dict[str, Any] | None = None, optimizer: dict[str, Any] | None = None, **options: Any
) -> list[float]:
    """Return losses and gradient norms of three steps of a tiny model."""
    from megaptm.config import Layout
    from tests.layouts.cases import ADAM, train_steps

    changed = ADAM.model_copy(update=optimizer or {})
    steps = train_steps(family, Layout(microbatch=4, **(layout or {})), steps=3, optimizer=changed, **options)
    return [*steps["losses"], *steps["norms"]]


def difference_of_steps(results: list[float], expected: list[float]) -> float:
    return max(abs(own - other) / abs(other) for own, other in zip(results, expected, strict=True))


def offloaded_moments(device: str) -> float:
    """AdamW with moments in host memory, in batches of one tensor each."""
    from unittest.mock import patch

    from megaptm.parallel.optimizers import part

    expected = train("gpt2")
    with patch.object(part, "UPDATE_BATCH", 1):
        return difference_of_steps(train("gpt2", optimizer={"offload": True}), expected)


def in_layout(device: str, **layout: Any) -> float:
    return difference_of_steps(train("gpt2", layout=layout), train("gpt2"))


def half_precision(device: str) -> float:
    """Losses in fp16, with a loss scale."""
    return difference_of_steps(train("gpt2", precision="fp16")[:3], train("gpt2")[:3])


def other_optimizers(device: str) -> float:
    """Infinity if the norm of a gradient is not finite with one of the update rules; else 0."""
    rules = ("stable-adamw", "lamb", "adafactor", "sgd", "adagrad", "muon")
    numbers = torch.tensor([train("gpt2", precision="bf16", optimizer={"name": rule}) for rule in rules])
    return 0.0 if bool(numbers.isfinite().all()) else torch.inf


def compiled_layers(device: str, *, family: str, precision: str) -> float:
    """Losses and norms of compiled layers, and whether a layer stayed eager."""
    from megaptm.config import Layout
    from tests.layouts.compiled import steps_of

    results = [steps_of(family, Layout(microbatch=4), backend, 0.0, precision) for backend in ("inductor", None)]
    if results[0]["log"]:
        raise RuntimeError("; ".join(results[0]["log"]))
    own, expected = ([*result["losses"], *result["norms"]] for result in results)
    return difference_of_steps(own, expected)


CHECKS: dict[str, tuple[Callable[[str], float], float]] = {
    "weight gradients added in float32": (weight_gradient, FP32),
    "cross-entropy": (cross_entropy, 1e-2),
    "attention in documents": (document_attention, BF16),
    "cross-attention in documents": (cross_attention, BF16),
    "FlexAttention": (flex_attention, BF16),
    "off-loaded moments": (offloaded_moments, FP32),
    "full sharding": (partial(in_layout, full_sharding=True), FP32),
    "recomputation": (partial(in_layout, recompute="full"), FP32),
    "fp16": (half_precision, BF16),
    "optimizers": (other_optimizers, 0.0),
    "compiled layers": (partial(compiled_layers, family="gpt2", precision="fp32"), FP32),
    "compiled layers in documents": (partial(compiled_layers, family="modernbert", precision="bf16"), COMPILED_BF16),
    "compiled layers with a soft cap": (partial(compiled_layers, family="gemma2", precision="bf16"), COMPILED_BF16),
}
"""Check -> function of the device, and the limit of its result."""


def run_checks(device: str = "cuda") -> Iterator[tuple[str, str]]:
    """Run all checks; yield the name of each, and what is wrong, empty if nothing is."""
    from common.alone import join_alone

    join_alone()
    for name, (check, limit) in CHECKS.items():
        try:
            difference = check(device)
            yield name, "" if difference <= limit else f"relative difference {difference:.1e}, at most {limit:.0e}"
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"[:500]
