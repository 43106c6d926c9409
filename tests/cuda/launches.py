"""`python -m tests.cuda.launches [NAME ...]`: kernels of a training step of published models on one simulated GPU, the
bytes that they read and write, and the times that the host waits for it. Prints the table of `launches.yaml`.

Attention and RMSNorm count as one kernel in each pass, as the fused kernels that a GPU has.
"""

# ruff: noqa: E402, I001

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cuda import pretend

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

pretend.install()

from megaptm.config import Layout
from megaptm.families import CATALOGUE
from megaptm.losses import cross_entropy
from megaptm.spec import ModelSpec
from tests.cuda import steps
from tests.cuda.cases import Case
from tests.layouts.cases import batch

BUDGETS = Path(__file__).with_name("launches.yaml")
MODELS = {
    "gpt2": ("small", 32 * 64, 16),
    "bert": ("large", 48 * 32, 16),
    "t5": ("large", 24, 512),
    "electra": ("base", 48 * 32, 16),
    "bart": ("large", 8 * 64, 16),
    "deberta": ("base", 32, 512),
    "deberta-v3": ("base", 32, 512),
    "xlnet": ("base", 16, 512),
    "transformer-xl": ("base", 16, 512),
    "albert": ("base", 32 * 32, 16),
}
"""Family -> its size, and the sequences of a micro-batch and their length. Bytes depend on the length where attention
has a bias; the number of kernels depends on positions only."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """Return the output of a fused attention kernel. Without a GPU, torch would choose plain products."""
    aten = torch.ops.aten
    if attn_mask is None:
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]  # type: ignore
    bias = attn_mask if attn_mask.is_floating_point() else torch.zeros_like(attn_mask, dtype=q.dtype)
    bias = bias.expand(*q.shape[:3], k.shape[2])
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, dropout_p, is_causal, scale=scale)[0]  # type: ignore


class FusedNorm(torch.autograd.Function):
    """RMSNorm of which torch for CPUs computes the parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Sequence[int], weight: Tensor, eps: float | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        pretend.kernels["rms_norm"] += 1
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        pretend.kernels["rms_norm_backward"] += 1
        return torch.empty_like(x), None, torch.empty_like(weight), None


class Published(Case):
    """A published size with dropout, on one GPU."""

    @property
    def spec(self) -> ModelSpec:
        table = CATALOGUE[self.family]
        size = next(size for name, size in table.sizes.items() if name == MODELS[self.family][0])
        return ModelSpec(
            family=table, size=size, vocabulary=table.tokenizer.vocabulary, context=512, dropout=table.dropout
        )


def fields_of(case: Case) -> dict[str, Tensor]:
    """Return a micro-batch: a tiny one, repeated."""
    fields, (_, rows, length) = batch(case.family, 0), MODELS[case.family]
    times = (rows // len(fields["tokens"]), length // fields["tokens"].shape[1])
    return {name: field.repeat(times[: field.dim()]) for name, field in fields.items()}


def count(family: str) -> dict[str, Counter[str]]:
    """Return the counters of a step."""
    case = Published(family, Layout(microbatch=MODELS[family][1]))
    return {name: Counter(counts) for name, counts in steps.second_step(case).items()}


def patch() -> None:
    steps.patch_models()
    replaced: Any = steps
    replaced.fields_of = fields_of
    functional: Any = F
    functional.scaled_dot_product_attention, functional.rms_norm = attend, FusedNorm.apply
    loss: Any = cross_entropy
    loss._has_triton = lambda: True


if __name__ == "__main__":
    patch()
    for family in sys.argv[1:] or MODELS:
        counts = count(family)
        totals = {name: counts[name].total() for name in ("kernels", "waits")}
        totals["megabytes"] = counts["traffic"].total() // 10**6
        print(yaml.safe_dump({family: totals}), end="", flush=True)
        if os.environ.get("DETAILS"):
            print(family, counts["kernels"].most_common(), counts["traffic"].most_common(), file=sys.stderr, flush=True)
