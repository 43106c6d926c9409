"""Choice of kernels for tensors on a GPU, and results of compiled FlexAttention.

Run as a program: `megaptm.parallel` replaces CUDA functions in its process if there is no GPU. python -m
tests.layers.on_a_gpu
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention

from megaptm.families.reformer.pattern import ChunkPairs
from megaptm.layers.kernel_choice import MODULES, AttentionWork, ComputeDevice, choose_kernel
from megaptm.layers.kernels import block_mask, describe_device, describe_work
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import Pattern, SlidingWindow
from tests.layers.test_sparse import HEADS, SCALE

ALL_PACKAGES = frozenset(MODULES.values())


def work_on_gpu(
    *, pattern: Pattern | None, dtype: torch.dtype = torch.bfloat16, packed: bool = False, key_width: int = 64
) -> AttentionWork:
    """Return the work of fake tensors on a GPU."""
    with FakeTensorMode():
        query = torch.empty(4096, 2, 4, key_width, dtype=dtype, device="cuda")
        documents = torch.ones(2, 4096, dtype=torch.long, device="cuda")
        both = (documents, documents) if packed else None
        mask = Mask((4096, 4096), query.device, both, causal=True, pattern=pattern)
        assert describe_device(query.device).kind == "cuda"
        return describe_work(mask, query.dtype, key_width, 0.0)


BAND = SlidingWindow(255, 0)
CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any], frozenset[str], str]] = {
    "nothing is hidden": ({"pattern": None}, {}, ALL_PACKAGES, "fused"),
    "documents alone": ({"pattern": None, "packed": True}, {"offsets": True}, ALL_PACKAGES, "varlen"),
    "documents, dropout": ({"pattern": None, "packed": True}, {"offsets": True, "dropout": 0.1}, frozenset(), "varlen"),
    "documents of a memory": (
        {"pattern": None, "packed": True},
        {"offsets": True, "reads_memory": True},
        frozenset(),
        "varlen",
    ),
    "documents, no offsets": ({"pattern": None, "packed": True}, {}, ALL_PACKAGES, "fused"),
    "documents, float32": (
        {"pattern": None, "packed": True, "dtype": torch.float32},
        {"offsets": True},
        ALL_PACKAGES,
        "fused",
    ),
    "documents, wide heads": (
        {"pattern": None, "packed": True, "key_width": 264},
        {"offsets": True},
        ALL_PACKAGES,
        "fused",
    ),
    "documents, a prefix": (
        {"pattern": None, "packed": True},
        {"offsets": True, "ordered": True},
        ALL_PACKAGES,
        "fused",
    ),
    "documents, biased scores": (
        {"pattern": None, "packed": True},
        {"offsets": True, "scored": True},
        ALL_PACKAGES,
        "fused",
    ),
    "a band": ({"pattern": BAND}, {}, ALL_PACKAGES, "flash-attn"),
    "a band, only triton": ({"pattern": BAND}, {}, frozenset({"triton"}), "flex"),
    "a band, nothing": ({"pattern": BAND}, {}, frozenset(), "tiles"),
    "a band, float32": ({"pattern": BAND, "dtype": torch.float32}, {}, ALL_PACKAGES, "flex"),
    "a band, dropout": ({"pattern": BAND}, {"dropout": 0.1}, frozenset({"triton"}), "tiles"),
    "a band, dropout and flash-attn": ({"pattern": BAND}, {"dropout": 0.1}, ALL_PACKAGES, "flash-attn"),
    "a band in documents": ({"pattern": BAND, "packed": True}, {}, ALL_PACKAGES, "flex"),
    "a band in documents, with offsets": ({"pattern": BAND, "packed": True}, {"offsets": True}, ALL_PACKAGES, "varlen"),
    "a dilated band in documents": (
        {"pattern": SlidingWindow(255, 0, dilation=2), "packed": True},
        {"offsets": True},
        ALL_PACKAGES,
        "flex",
    ),
    "a band, marks": ({"pattern": BAND}, {"marked": True}, ALL_PACKAGES, "flex"),
    "a band, wide heads": ({"pattern": BAND, "key_width": 264}, {}, ALL_PACKAGES, "flex"),
    "a band, narrow heads": ({"pattern": BAND, "key_width": 8}, {}, frozenset({"triton"}), "tiles"),
    "a dilated band": ({"pattern": SlidingWindow(255, 0, dilation=2)}, {}, ALL_PACKAGES, "flex"),
    "chunks": ({"pattern": ChunkPairs(64)}, {}, ALL_PACKAGES, "flex"),
    "a window of nearly all": ({"pattern": SlidingWindow(4000, 4000)}, {}, ALL_PACKAGES, "fused"),
}


def choose_kernels() -> dict[str, list[str]]:
    """Return case -> kernel on a GPU, reason, and kernel on a CPU."""
    result = {}
    for case, (tensors, changes, packages, _) in CHOICES.items():
        work = replace(work_on_gpu(**tensors), **changes)
        chosen = choose_kernel(work, ComputeDevice("cuda", packages))
        cpu = ComputeDevice("cpu", packages)
        result[case] = [chosen.kernel, chosen.why, choose_kernel(work, cpu).kernel]
    return result


def max_differences() -> list[float]:
    """Return the largest difference between the compiled kernel, compiled once, and the full mask, for three batches.

    On CPUs only the forward pass has a compiled form.
    """
    length, block, cpu = 256, 64, torch.device("cpu")
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    joint = torch.randn(3, 2, HEADS, length, 16, generator=torch.Generator().manual_seed(0))
    max_differences = []
    for border in (50, 100, 200):
        documents = 1 + (torch.arange(length) >= border).long().expand(2, -1)
        mask = Mask((length, length), cpu, (documents, documents), causal=True, pattern=SlidingWindow(40, 0))
        with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=1):
            mixed = compiled(*joint, block_mask=block_mask(mask, block=block), scale=SCALE)
            expected = F.scaled_dot_product_attention(*joint, attn_mask=mask.dense, scale=SCALE)
        max_differences.append(float((mixed - expected).abs().max()))
    return max_differences


if __name__ == "__main__":
    print(json.dumps({"choices": choose_kernels(), "differences": max_differences()}))
