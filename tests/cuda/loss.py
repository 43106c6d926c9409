"""`python -m tests.cuda.loss`: kernels of the cross-entropy, compiled for an A100 and an H100 without a GPU; with
`TRITON_INTERPRET=1` their largest errors against float64 on the CPU. Prints JSON.

Needs the package triton, which torch for CPUs does not include.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from megaptm.batch import IGNORED
from megaptm.losses import cross_entropy_kernels as kernels

TARGETS = {"A100": GPUTarget("cuda", 80, 32), "H100": GPUTarget("cuda", 90, 32)}
WIDTH = 50_304
ROWS = {"logits": "*bf16", "labels": "*i64"}
OPTIONS = {"z_loss": "fp32", "smoothing": "fp32"}
SIGNATURES: dict[str, dict[str, str]] = {
    "cross_entropy_kernel": {**ROWS, "terms": "*fp32", "width": "i32", "vocabulary": "i32", **OPTIONS},
    "statistics_kernel": {
        **ROWS,
        "statistics": "*fp32",
        **dict.fromkeys(("samples", "width", "real", "first"), "i32"),
    },
    "gradient_kernel": {
        **ROWS,
        "normalizers": "*fp32",
        **dict.fromkeys(("width", "real", "first", "vocabulary"), "i32"),
        **OPTIONS,
    },
}


def compiled() -> dict[str, dict[str, int]]:
    """Return kernel and GPU -> bytes of machine code, and loads and stores after the last barrier."""
    options = kernels.launch_options(WIDTH)
    counts = {}
    for name, signature in SIGNATURES.items():
        constants: dict[str, Any] = {"BLOCK": options["BLOCK"]}
        if name == "cross_entropy_kernel":
            constants["GRADIENT"] = True
        source = ASTSource(
            fn=getattr(kernels, name),
            signature={**signature, **dict.fromkeys(constants, "constexpr")},
            constexprs=constants,
        )
        for gpu, target in TARGETS.items():
            made: Any = triton.compile(source, target=target, options={"num_warps": options["num_warps"]})
            last = made.asm["ptx"].rpartition("bar.sync")[2]
            counts[f"{name} on {gpu}"] = {
                "bytes": len(made.asm["cubin"]),
                "loads": last.count("ld.global"),
                "stores": last.count("st.global"),
            }
    return counts


def exact(logits: Tensor, labels: Tensor, z_loss: float, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return losses and gradient of logits without padding, in float64."""
    logits = logits.double().requires_grad_()
    terms = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED, label_smoothing=smoothing)
    terms = terms + z_loss * (logits.logsumexp(-1) * (labels != IGNORED)).square()
    (gradient,) = torch.autograd.grad(terms.sum(), logits)
    return terms.detach(), gradient


def errors() -> Iterator[tuple[str, float]]:
    """Yield case and largest error, in units of the format of the logits."""
    torch.manual_seed(0)
    kernels.MAX_BLOCK = 64
    vocabulary, width, samples = 189, 200, 5
    for dtype in (torch.float32, torch.bfloat16):
        for z_loss, smoothing in ((0.0, 0.0), (0.1, 0.2)):
            logits = (4 * torch.randn(samples, width)).to(dtype)
            labels = torch.tensor([0, 188, IGNORED, 70, 101])
            terms, gradient = exact(logits[:, :vocabulary], labels, z_loss, smoothing)
            gradient = F.pad(gradient, (0, width - vocabulary))
            case = f"{dtype} {z_loss} {smoothing}"

            own = logits.clone()
            result = kernels.cross_entropy_(own, labels, vocabulary, z_loss, smoothing, True)
            yield f"{case} loss", error(result, terms, torch.float32)
            yield f"{case} gradient", error(own, gradient, dtype)
            own = logits.clone()
            result = kernels.cross_entropy_(own, labels, vocabulary, z_loss, smoothing, False)
            yield f"{case} loss alone", error(result, terms, torch.float32)
            yield f"{case} logits", float((own != logits).sum())

            # Two tensor ranks, then one that holds padding only.
            parts = [part.contiguous() for part in F.pad(logits, (0, 100)).split(100, dim=1)]
            reals = (100, 89, 0)
            statistics = torch.stack(
                [
                    kernels.row_statistics(part, labels, real, 100 * at)
                    for at, (part, real) in enumerate(zip(parts, reals, strict=True))
                ]
            )
            largest = statistics[:, 0].amax(0)
            totals = (statistics[:, 1] * (statistics[:, 0] - largest).exp()).sum(0)
            normalizer = largest + totals.log()
            counted = labels != IGNORED
            sums = statistics[:, 2:].sum(0)
            result = normalizer - (1 - smoothing) * sums[0] - smoothing / vocabulary * sums[1]
            result += z_loss * normalizer.square()
            yield f"{case} loss of ranks", error(result * counted, terms, torch.float32)
            for at, (part, real) in enumerate(zip(parts, reals, strict=True)):
                kernels.cross_entropy_gradient_(part, labels, normalizer, real, 100 * at, vocabulary, z_loss, smoothing)
            yield f"{case} gradient of ranks", error(torch.cat(parts, 1)[:, :width], gradient, dtype)


def error(result: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    return float((result.double() - expected).abs().max() / expected.abs().max()) / torch.finfo(dtype).eps


if __name__ == "__main__":
    print(json.dumps(dict(errors()) if os.environ.get("TRITON_INTERPRET") else compiled()))
