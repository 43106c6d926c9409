"""Attention kernels: equal to the dense mask with gradients, choice per device, and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from megaptm.errors import UserError
from megaptm.families.reformer.pattern import ChunkPairs
from megaptm.layers import attention, kernel_choice, kernels
from megaptm.layers.attention import PatternAttend
from megaptm.layers.kernel_choice import KERNELS, AttentionWork, ComputeDevice, choose_kernel
from megaptm.layers.kernels import attend_capped, attend_with_kernel, block_mask, describe_device, kernel_window
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import Pattern
from megaptm.layers.sparse import GlobalPositions
from megaptm.layers.stack import Stack
from megaptm.models.model import Model
from megaptm.parallel.global_tokens import GlobalTokensHook
from tests import ROOT
from tests.layers.on_a_gpu import ALL_PACKAGES, CHOICES
from tests.layers.test_sparse import HEADS, LENGTHS, PATTERNS, SCALE, dense_attention, document_ids_of, random_qkv
from tests.layers.test_varlen import losses_and_gradients
from tests.layouts.cases import batch, tiny
from tests.models.tiny import tiny_batch, tiny_model

ALL_PATTERNS: dict[str, tuple[Pattern | None, bool]] = {
    **PATTERNS,
    "chunks": (ChunkPairs(8), False),
    "causal chunks": (ChunkPairs(8), True),
    "full": (None, False),
    "causal": (None, True),
}
CASES = [
    (name, content)
    for name, (pattern, causal) in ALL_PATTERNS.items()
    for content in ("", "packed", "ordered", "marking", "packed marking")
    # No causal model has an order, and global tokens need a pattern.
    if not (content == "ordered" and causal) and not ("marking" in content and pattern is None)
]
"""Pattern, and what the batch has besides."""
CPU = torch.device("cpu")


def mask_of(name: str, length: int, *, packed: bool = False, ordered: bool = False, marking: bool = False) -> Mask:
    pattern, causal = ALL_PATTERNS[name]
    documents = document_ids_of("packed" if packed else "one document", length)
    order = (torch.arange(length) - 20).clamp(min=0).expand(2, -1) if ordered else None
    marks = None
    if marking:
        marks = torch.zeros(2, length, dtype=torch.long)
        marks[0, [0, 7]] = marks[1, 30] = 1
    both = None if documents is None else (documents, documents)
    return Mask((length, length), CPU, both, causal=causal, order=order, pattern=pattern, marks=marks)


@pytest.fixture
def flex_backward_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lift FlexAttention's refusal to compute its backward pass on CPUs."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda query, key, value: None)
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.usefixtures("flex_backward_on_cpu")
@pytest.mark.parametrize(
    ("kernel", "name", "content"),
    [
        (kernel, *case)
        for kernel in ("flex", "tiles")
        for case in CASES
        # Tiles with the other patterns: test_sparse.py.
        if kernel == "flex" or case[0] not in PATTERNS
    ],
)
def test_kernel_equals_dense_mask(kernel: str, name: str, content: str) -> None:
    length = LENGTHS[1]
    mask = mask_of(name, length, **dict.fromkeys(content.split(), True))
    marked, x = None if mask.marks is None else GlobalPositions.from_marks(mask.marks), random_qkv(length)
    mixed, expected = attend_with_kernel(kernel, *x, mask, marked, scale=SCALE, dropout=0.0), dense_attention(x, mask)
    read = torch.ones(length, 2) if mask.documents is None else (mask.documents[0].t() > 0).double()
    if mask.marks is not None:  # global tokens have an attention of their own
        read = read * (mask.marks.t() == 0)
    assert ((mixed - expected).abs().amax((2, 3)) * read).max() < 1e-12
    back = torch.randn(mixed.shape, dtype=mixed.dtype) * read[:, :, None, None]
    gradients = (torch.autograd.grad(result, x, back) for result in (mixed, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        assert (gradient - expected_gradient).abs().max() < 1e-12


@pytest.mark.usefixtures("flex_backward_on_cpu")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["causal", "causal window"])
def test_flex_with_a_soft_cap_equals_all_scores(name: str, packed: bool) -> None:
    mask, x, cap = mask_of(name, LENGTHS[1], packed=packed), random_qkv(LENGTHS[1]), 0.5
    mixed = attend_with_kernel("flex", *x, mask, None, scale=SCALE, dropout=0.0, cap=cap)
    expected = attend_capped(*x, mask.for_kernel(None), causal=mask.causal, scale=SCALE, cap=cap)
    assert (mixed - attend_with_kernel("flex", *x, mask, None, scale=SCALE, dropout=0.0)).abs().max() > 1e-3
    real = torch.ones(LENGTHS[1], 2) if mask.documents is None else (mask.documents[0].t() > 0).double()
    assert ((mixed - expected).abs().amax((2, 3)) * real).max() < 1e-12
    back = torch.randn(mixed.shape, dtype=mixed.dtype) * real[:, :, None, None]
    gradients = (torch.autograd.grad(result, x, back) for result in (mixed, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        assert (gradient - expected_gradient).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("device", "dropout", "kernel"),
    [
        (ComputeDevice("cpu"), 0.0, "fused"),
        (ComputeDevice("cuda", frozenset({"triton"})), 0.0, "flex"),
        (ComputeDevice("cuda", frozenset({"triton"})), 0.1, "fused"),
        (ComputeDevice("cuda", ALL_PACKAGES), 0.0, "flex"),
    ],
)
def test_kernel_of_a_soft_cap(device: ComputeDevice, dropout: float, kernel: str) -> None:
    """With documents flash-attn cannot be used, and varlen and tiles have no soft cap."""
    work = AttentionWork(
        queries=8192,
        key_width=64,
        precision="bf16",
        causal=True,
        documents=True,
        offsets=True,
        capped=True,
        dropout=dropout,
    )
    assert choose_kernel(work, device).kernel == kernel
    with pytest.raises(UserError, match="does not support a soft cap of attention scores"):
        choose_kernel(work, device, "varlen")


@pytest.mark.parametrize("block", [4, 16])
@pytest.mark.parametrize("name", ALL_PATTERNS)
def test_block_mask_equals_torch(name: str, block: int) -> None:
    """Torch compares all positions; our block mask comes from tiles."""
    for length in LENGTHS:
        mask = mask_of(name, length)
        blocks = block_mask(mask, block=block).to_dense()
        expected = create_block_mask(
            block_mask(mask).mask_mod, 1, HEADS, length, length, device="cpu", BLOCK_SIZE=block
        ).to_dense()
        assert (blocks == expected).all()


@pytest.mark.parametrize(("name", "content"), CASES)
def test_blocks_of_keys_are_those_of_queries(name: str, content: str) -> None:
    """The backward pass reads them."""
    mask = mask_of(name, LENGTHS[1], **dict.fromkeys(content.split(), True))
    blocks = block_mask(mask, None if mask.marks is None else GlobalPositions.from_marks(mask.marks), block=8)
    by_torch = BlockMask.from_kv_blocks(blocks.kv_num_blocks, blocks.kv_indices, BLOCK_SIZE=8)
    assert torch.equal(blocks.q_num_blocks, by_torch.q_num_blocks)
    used = torch.arange(blocks.q_indices.shape[-1]) < blocks.q_num_blocks[..., None]
    assert torch.equal(blocks.q_indices[used], by_torch.q_indices[used])


@pytest.mark.usefixtures("flex_backward_on_cpu")
@pytest.mark.parametrize(("family", "patterns"), [("gpt2", 1), ("longformer", 2), ("bigbird", 4)])
def test_layers_of_a_pattern_share_blocks(family: str, patterns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are compared once for all layers. Longformer has two windows here, each layer of BigBird its blocks."""
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(kernels, name)

        def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*args, **options)

        return call

    fields = GlobalTokensHook().prepare_batch(batch(family, 0))
    model = Model(tiny(family))
    torch.manual_seed(0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    expected = losses_and_gradients(model, fields)
    with_kernel(model, "flex")
    monkeypatch.setattr(attention, "describe_device", lambda device: ComputeDevice("cuda", frozenset({"triton"})))
    monkeypatch.setattr(kernel_choice, "NARROWEST_HEAD", 1)
    for name in ("pack_blocks", "content_blocks"):
        monkeypatch.setattr(kernels, name, counted(name))
    choose_kernel.cache_clear()
    by_flex = losses_and_gradients(model, fields)
    choose_kernel.cache_clear()
    assert calls == {"pack_blocks": patterns, "content_blocks": 1}
    for result, expected_result in zip(by_flex, expected, strict=True):
        assert (result - expected_result).abs().max() < 1e-5


@pytest.mark.parametrize(("name", "content"), [case for case in CASES if case[1]])
def test_block_mask_covers_packed_and_ordered_batches(name: str, content: str) -> None:
    length, block = LENGTHS[1], 8
    mask = mask_of(name, length, **dict.fromkeys(content.split(), True))
    marked = None if mask.marks is None else GlobalPositions.from_marks(mask.marks)
    blocks = block_mask(mask, marked, block=block)
    keys = length + (0 if marked is None else marked.positions.shape[1])
    expected = create_block_mask(blocks.mask_mod, 2, HEADS, length, keys, device="cpu", BLOCK_SIZE=block).to_dense()
    assert (blocks.to_dense() >= expected).all()
    if name == "full" and content == "packed":  # blocks of different documents are skipped
        assert blocks.to_dense()[0].sum() == expected[0, 0].sum() < expected[0, 0].numel()


@pytest.mark.parametrize("name", ["window", "uneven window", "window of itself", "causal window", "full", "causal"])
def test_window_arguments_of_libraries(name: str) -> None:
    """The libraries count positions before and after, inclusive; -1 is unlimited."""
    mask = mask_of(name, 20)
    before, after = (20 if side < 0 else side for side in kernel_window(mask.pattern, mask.causal))
    step = torch.arange(20) - torch.arange(20)[:, None]
    assert (mask.dense[0, 0] == ((step >= -before) & (step <= after))).all()


@cache
def run_on_gpu() -> dict[str, Any]:
    """Return the output of a process that has not imported `megaptm.parallel`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.layers.on_a_gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CHOICES)
def test_gpu_takes_the_first_suitable_kernel(case: str) -> None:
    kernel, why, on_cpu = run_on_gpu()["choices"][case]
    assert kernel == CHOICES[case][-1]
    assert why
    assert on_cpu == ("fused" if kernel == "fused" or case.startswith("documents") else "tiles")


def test_compiled_flex_is_compiled_once() -> None:
    """It skips the blocks that our block mask leaves out."""
    assert max(run_on_gpu()["differences"]) < 1e-6


REFUSALS: dict[str, tuple[str, dict[str, Any], ComputeDevice, str]] = {
    "no GPU": ("flex", {}, ComputeDevice("cpu", ALL_PACKAGES), "it trains on GPUs only"),
    "not installed": ("flash-attn", {}, ComputeDevice("cuda", frozenset()), "flash_attn is not installed"),
    "dropout": ("flex", {"dropout": 0.1}, ComputeDevice("cuda", ALL_PACKAGES), "it has no dropout"),
    "documents": ("flash-attn", {"documents": True}, ComputeDevice("cuda", ALL_PACKAGES), "it does not support doc"),
    "whole sequences": ("varlen", {}, ComputeDevice("cuda", ALL_PACKAGES), "a sequence is one document without padd"),
    "interrupted documents": (
        *("varlen", {"documents": True}, ComputeDevice("cuda", ALL_PACKAGES)),
        "the offsets of documents are not known",
    ),
    "no FlashAttention": (
        *("varlen", {"documents": True}, ComputeDevice("cuda", ALL_PACKAGES, flash=False)),
        "this GPU, or this build of torch, has no FlashAttention",
    ),
    "order": ("flash-attn", {"ordered": True}, ComputeDevice("cuda", ALL_PACKAGES), "it does not support an"),
    "any length": (
        "flex",
        {},
        ComputeDevice("cuda", ALL_PACKAGES, any_length=True),
        "it is compiled for each sequence",
    ),
    "scores": ("tiles", {"scored": True}, ComputeDevice("cuda", ALL_PACKAGES), "it does not support terms added"),
    "cross": ("tiles", {"reads_memory": True}, ComputeDevice("cpu"), "it does not support keys from another stack"),
    "hashes": ("fused", {"hashed": True}, ComputeDevice("cpu"), "it does not support pairs defined by hashes"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_unsuitable_kernel_is_rejected_with_a_reason(case: str) -> None:
    kernel, options, device, reason = REFUSALS[case]
    work = AttentionWork(**{"name": "dot attention", "queries": 64, "key_width": 64, "precision": "bf16", **options})
    with pytest.raises(
        UserError, match=rf"train\.attention_kernel \({kernel}\) cannot compute the dot attention: {reason}"
    ):
        choose_kernel(work, device, kernel)


def test_inference_uses_no_compiled_kernel() -> None:
    """Generation changes the length with each token, and would compile each time."""
    assert not describe_device(CPU).any_length
    with torch.inference_mode():
        assert describe_device(CPU).any_length


def test_tiles_replace_flex_at_the_recompile_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch compiles a limited number of forms per process."""
    compiled = torch.compile(flex_module.flex_attention, backend="eager", dynamic=False, fullgraph=True)
    monkeypatch.setattr(kernels, "_flex_attention", lambda: compiled)
    mask, x = mask_of("window", 64, packed=True, marking=True), [tensor.detach() for tensor in random_qkv(64)]
    marked = GlobalPositions.from_marks(mask.marks)
    with torch._dynamo.config.patch(recompile_limit=1):
        attend_with_kernel("flex", *x, mask_of("window", 64), None, scale=SCALE, dropout=0.0)
        mixed = attend_with_kernel("flex", *x, mask, marked, scale=SCALE, dropout=0.0)
    assert torch.equal(mixed, attend_with_kernel("tiles", *x, mask, marked, scale=SCALE, dropout=0.0))


def with_kernel(model: Model, kernel: str) -> Model:
    for module in model.modules():
        if isinstance(module, (Stack, PatternAttend)):
            module.kernel = kernel
    return model


@pytest.mark.parametrize("family", ["gpt2", "palm", "gpt3", "longformer", "bigbird", "unilm"])
def test_kernels_give_the_same_loss_and_gradients(family: str) -> None:
    """Compare losses and gradients on packed sequences."""
    batch = tiny_batch(family, sequence=24)
    batch["document_ids"] = torch.ones_like(batch["tokens"])
    batch["document_ids"][:, 10:] = 2
    losses = {}
    for kernel in ("fused", "tiles"):
        model = with_kernel(tiny_model(family), kernel)
        loss = torch.stack([total / count for total, count in model(batch).losses.values()]).sum()
        loss.backward()
        losses[kernel] = [loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]
    for fused, tiles in zip(*losses.values(), strict=True):
        assert (fused - tiles).abs().max() < 1e-5


def test_flex_is_rejected_on_cpus() -> None:
    with pytest.raises(UserError, match="it trains on GPUs only"):
        with_kernel(tiny_model("gpt2"), "flex")(tiny_batch("gpt2"))


def test_each_kernel_has_a_case() -> None:
    taken = {expected for *_, expected in CHOICES.values()}
    assert taken == {*KERNELS}
