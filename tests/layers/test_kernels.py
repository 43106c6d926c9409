"""What a pattern is, is the same to every kernel, gradients too; and which is taken where."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import create_block_mask

from megaptm.bricks.kernels import KERNELS, AttentionWork, ComputeDevice, choose
from megaptm.bricks.pattern import Pattern
from megaptm.errors import UserError
from megaptm.families.reformer.pattern import ChunkPairs
from megaptm.layers import kernels
from megaptm.layers.attention import PatternAttend
from megaptm.layers.kernels import attend_by, block_mask, device_of, window_of
from megaptm.layers.layer import Stack
from megaptm.layers.mask import Mask
from megaptm.layers.sparse import Marked
from megaptm.models import Model
from tests import ROOT
from tests.layers.on_a_gpu import ALL_PACKAGES, CHOICES
from tests.layers.test_sparse import HEADS, LENGTHS, PATTERNS, SCALE, documents_of, given, whole
from tests.models.tiny import tiny_batch, tiny_model

ALL: dict[str, tuple[Pattern | None, bool]] = {
    **PATTERNS,
    "chunks": (ChunkPairs(8), False),
    "causal chunks": (ChunkPairs(8), True),
    "full": (None, False),
    "causal": (None, True),
}
CASES = [
    (name, content)
    for name, (pattern, causal) in ALL.items()
    for content in ("", "packed", "ordered", "marking", "packed marking")
    # No model has an order and looks back alone; who sees all is told where a pattern hides something.
    if not (content == "ordered" and causal) and not ("marking" in content and pattern is None)
]
"""Pattern, and what a batch says besides."""
CPU = torch.device("cpu")


def mask_of(name: str, length: int, *, packed: bool = False, ordered: bool = False, marking: bool = False) -> Mask:
    pattern, causal = ALL[name]
    documents = documents_of("packed" if packed else "one document", length)
    order = (torch.arange(length) - 20).clamp(min=0).expand(2, -1) if ordered else None
    marks = None
    if marking:
        marks = torch.zeros(2, length, dtype=torch.long)
        marks[0, [0, 7]] = marks[1, 30] = 1
    both = None if documents is None else (documents, documents)
    return Mask((length, length), CPU, both, causal=causal, order=order, pattern=pattern, marks=marks)


@pytest.fixture
def trained_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention has the formula of its backward pass on CPUs, too, and refuses to be asked for it."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda query, key, value: None)
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.usefixtures("trained_on_a_cpu")
@pytest.mark.parametrize(
    ("kernel", "name", "content"),
    [
        (kernel, *case)
        for kernel in ("flex", "tiles")
        for case in CASES
        # The other patterns by tiles: test_sparse.py.
        if kernel == "flex" or case[0] not in PATTERNS
    ],
)
def test_a_kernel_gives_what_the_whole_mask_gives(kernel: str, name: str, content: str) -> None:
    length = LENGTHS[1]
    mask = mask_of(name, length, **dict.fromkeys(content.split(), True))
    marked, x = None if mask.marks is None else Marked.of(mask.marks), given(length)
    mixed, expected = attend_by(kernel, *x, mask, marked, scale=SCALE, dropout=0.0), whole(x, mask)
    read = torch.ones(length, 2) if mask.documents is None else (mask.documents[0].t() > 0).double()
    if mask.marks is not None:  # what they see is another attention's work
        read = read * (mask.marks.t() == 0)
    assert ((mixed - expected).abs().amax((2, 3)) * read).max() < 1e-12
    back = torch.randn(mixed.shape, dtype=mixed.dtype) * read[:, :, None, None]
    for ours, theirs in zip(torch.autograd.grad(mixed, x, back), torch.autograd.grad(expected, x, back), strict=True):
        assert (ours - theirs).abs().max() < 1e-12


@pytest.mark.parametrize("block", [4, 16])
@pytest.mark.parametrize("name", ALL)
def test_blocks_of_a_pattern_are_those_that_torch_finds(name: str, block: int) -> None:
    """Torch compares all places; ours come from tiles."""
    for length in LENGTHS:
        mask = mask_of(name, length)
        ours = block_mask(mask, block=block).to_dense()
        theirs = create_block_mask(
            block_mask(mask).mask_mod, 1, HEADS, length, length, device="cpu", BLOCK_SIZE=block
        ).to_dense()
        assert (ours == theirs).all()


@pytest.mark.parametrize(("name", "content"), [case for case in CASES if case[1]])
def test_no_block_is_left_out_in_which_something_is_seen(name: str, content: str) -> None:
    length, block = LENGTHS[1], 8
    mask = mask_of(name, length, **dict.fromkeys(content.split(), True))
    marked = None if mask.marks is None else Marked.of(mask.marks)
    ours = block_mask(mask, marked, block=block)
    keys = length + (0 if marked is None else marked.places.shape[1])
    theirs = create_block_mask(ours.mask_mod, 2, HEADS, length, keys, device="cpu", BLOCK_SIZE=block).to_dense()
    assert (ours.to_dense() >= theirs).all()
    if name == "full" and content == "packed":  # and where documents are apart, blocks are
        assert ours.to_dense()[0].sum() == theirs[0, 0].sum() < theirs[0, 0].numel()


@pytest.mark.parametrize("name", ["window", "uneven window", "window of itself", "causal window", "full", "causal"])
def test_a_window_is_told_to_libraries_as_they_take_it(name: str) -> None:
    """Of places before and after, inclusive, as both say in their documentation; -1 is all."""
    mask = mask_of(name, 20)
    before, after = (20 if side < 0 else side for side in window_of(mask))
    step = torch.arange(20) - torch.arange(20)[:, None]
    assert (mask.dense[0, 0] == ((step >= -before) & (step <= after))).all()


@cache
def seen_on_a_gpu() -> dict[str, Any]:
    """What a process says that has not loaded `megaptm.parallel`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.layers.on_a_gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CHOICES)
def test_a_gpu_takes_the_first_kernel_that_can(case: str) -> None:
    kernel, why, on_cpu = seen_on_a_gpu()["choices"][case]
    assert kernel == CHOICES[case][-1]
    assert why
    assert on_cpu == ("fused" if kernel == "fused" else "tiles")


def test_compiled_flex_leaves_out_blocks_and_is_compiled_once_for_all_batches() -> None:
    """Its compiled form skips the blocks that ours leave out."""
    assert max(seen_on_a_gpu()["differences"]) < 1e-6


REFUSALS: dict[str, tuple[str, dict[str, Any], ComputeDevice, str]] = {
    "no GPU": ("flex", {}, ComputeDevice("cpu", ALL_PACKAGES), "it trains on GPUs alone"),
    "not installed": ("flash-attn", {}, ComputeDevice("cuda", frozenset()), "flash_attn is not installed"),
    "dropout": ("flex", {"dropout": 0.1}, ComputeDevice("cuda", ALL_PACKAGES), "it has no dropout"),
    "documents": ("flash-attn", {"documents": True}, ComputeDevice("cuda", ALL_PACKAGES), "it cannot keep documents"),
    "order": ("transformer-engine", {"ordered": True}, ComputeDevice("cuda", ALL_PACKAGES), "it knows no order"),
    "any length": ("flex", {}, ComputeDevice("cuda", ALL_PACKAGES, any_length=True), "it is compiled for each length"),
    "scores": ("tiles", {"scored": True}, ComputeDevice("cuda", ALL_PACKAGES), "something is added to its scores"),
    "cross": ("tiles", {"of_memory": True}, ComputeDevice("cpu"), "its keys are another stream's"),
    "hashes": ("fused", {"hashed": True}, ComputeDevice("cpu"), "its places are sorted by hashes"),
    "bits": (
        *("transformer-engine", {}, ComputeDevice("cuda", ALL_PACKAGES, deterministic=True)),
        "it adds in any order, and train.deterministic is set",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_kernel_that_cannot_is_refused_with_the_reason(case: str) -> None:
    kernel, words, device, why = REFUSALS[case]
    work = AttentionWork(**{"name": "dot attention", "queries": 64, "key_width": 64, "precision": "bf16", **words})
    with pytest.raises(
        UserError, match=rf"train\.attention_kernel \({kernel}\) cannot compute the dot attention: {why}"
    ):
        choose(work, device, kernel)


def test_texts_of_any_length_are_read_by_what_is_not_compiled() -> None:
    """A decoder that reads its text again for each token would wait for a compiler each time."""
    assert not device_of(CPU).any_length
    with torch.inference_mode():
        assert device_of(CPU).any_length


def test_what_is_compiled_no_more_goes_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many forms as torch compiles in a process are there, and another is asked for."""
    compiled = torch.compile(flex_module.flex_attention, backend="eager", dynamic=False, fullgraph=True)
    monkeypatch.setattr(kernels, "_flex_attention", lambda: compiled)
    mask, x = mask_of("window", 64, packed=True, marking=True), [one.detach() for one in given(64)]
    marked = Marked.of(mask.marks)
    with torch._dynamo.config.patch(recompile_limit=1):
        attend_by("flex", *x, mask_of("window", 64), None, scale=SCALE, dropout=0.0)
        mixed = attend_by("flex", *x, mask, marked, scale=SCALE, dropout=0.0)
    assert torch.equal(mixed, attend_by("tiles", *x, mask, marked, scale=SCALE, dropout=0.0))


def wanting(model: Model, kernel: str) -> Model:
    for module in model.modules():
        if isinstance(module, (Stack, PatternAttend)):
            module.kernel = kernel
    return model


@pytest.mark.parametrize("family", ["gpt2", "palm", "gpt3", "longformer", "bigbird", "unilm"])
def test_a_model_says_the_same_by_the_kernel_that_is_wanted(family: str) -> None:
    """Rows of several documents, and a prefix, where the family has them; gradients, too."""
    batch = tiny_batch(family, sequence=24)
    batch["document_ids"] = torch.ones_like(batch["tokens"])
    batch["document_ids"][:, 10:] = 2
    losses = {}
    for kernel in ("fused", "tiles"):
        model = wanting(tiny_model(family), kernel)
        loss = torch.stack([one / count for one, count in model(batch).losses.values()]).sum()
        loss.backward()
        losses[kernel] = [loss.detach(), *(one.grad for one in model.parameters() if one.grad is not None)]
    for one, other in zip(*losses.values(), strict=True):
        assert (one - other).abs().max() < 1e-5


def test_a_model_on_a_cpu_refuses_flex() -> None:
    with pytest.raises(UserError, match="it trains on GPUs alone"):
        wanting(tiny_model("gpt2"), "flex")(tiny_batch("gpt2"))


def test_every_kernel_but_torchs_is_in_some_choice() -> None:
    taken = {expected for *_, expected in CHOICES.values()}
    assert taken == {*KERNELS}
