"""Tuned kernels for CPUs give the results of torch's kernels, and training works without the module."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from megaptm.train import cpu_tuning
from tests import ROOT
from tests.drills.program import losses

Tune = Callable[[str], None]

PROCESSORS = {
    "AuthenticAMD avx2 avx512f avx512_bf16": (True, False, True),  # Zen 4 and 5
    "AuthenticAMD avx2": (False, False, False),  # Zen 3
    "GenuineIntel avx2 avx512f avx512_bf16 amx_bf16": (False, False, False),  # Sapphire Rapids
    "GenuineIntel avx2 avx512f": (False, True, False),  # Skylake
    "asimd bf16": (False, False, False),  # Linux on ARM names no vendor
    "AuthenticAMD avx512": (False, False, False),  # names of instructions match exactly
}
ZEN_5, SKYLAKE = "AuthenticAMD avx512f avx512_bf16", "GenuineIntel avx2 avx512f"


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Set the words of the processor's description."""

    def describe(words: str) -> None:
        path = tmp_path / "cpuinfo"
        path.write_bytes(f"flags : {words}\nmodel name : ".encode() + b"\xff\n")
        monkeypatch.setattr(cpu_tuning, "PROCESSOR", path)

    return describe


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, processor: Callable[[str], None]) -> Iterator[Tune]:
    """Install the tuning for a processor, for products of any size."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(cpu_tuning, "MIN_MULTIPLIED", 1)
    monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
    restores = []

    def install(words: str) -> None:
        processor(words)
        restores.append(cpu_tuning.tune_for_cpu())

    yield install
    for restore in restores:
        restore()


@pytest.mark.parametrize("words", PROCESSORS)
def test_vendor_and_instructions_choose_the_kernels(
    monkeypatch: pytest.MonkeyPatch, processor: Callable[[str], None], words: str
) -> None:
    processor(words)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    chosen = (cpu_tuning.prefers_onednn(), cpu_tuning.prefers_float32(), cpu_tuning.prefers_products())
    assert chosen == PROCESSORS[words]


def test_unknown_processor_is_not_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_tuning, "PROCESSOR", tmp_path)  # reading a folder fails for all users
    assert not cpu_tuning.prefers_onednn()


def results(dtype: torch.dtype, bias: str) -> list[Tensor]:
    """Return the output and gradients of a linear layer, and the sum of two products, in float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 33, 48), (40, 48), (5, 33, 40), (80,), (48, 40))
    x, weight, d_out, wide, total = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    biases = {"no bias": [], "bias": [wide[:40]], "strided bias": [wide[::2]]}[bias]
    inputs = [tensor.requires_grad_() for tensor in (x, weight, *biases)]
    output = F.linear(*inputs)
    gradients = torch.autograd.grad(output, inputs, d_out)
    total.addmm_(x.detach().flatten(0, 1).t(), d_out.flatten(0, 1))
    return [tensor.detach().double() for tensor in (output, *gradients, total)]


@pytest.mark.parametrize("bias", ["no bias", "bias", "strided bias"])
def test_float32_products_by_onednn(tune: Tune, bias: str) -> None:
    expected = results(torch.float64, bias)
    tune(ZEN_5)
    with torch.profiler.profile() as profiled:
        tuned = results(torch.float32, bias)
    # The output, two gradients, and the product that is added.
    assert sum("_linear_pointwise" in event.name for event in profiled.events()) == 4
    for result, reference in zip(tuned, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-5, atol=2e-5)


def test_bfloat16_products_in_float32(tune: Tune) -> None:
    plain = results(torch.bfloat16, "bias")
    tune(SKYLAKE)
    for result, reference in zip(results(torch.bfloat16, "bias"), plain, strict=True):
        torch.testing.assert_close(result, reference, rtol=2.0**-7, atol=2e-2)
    few, many = (torch.ones(rows, 8, dtype=torch.bfloat16) for rows in (63, 64))
    assert not cpu_tuning._is_widened(few)
    assert cpu_tuning._is_widened(many)


def test_small_products_are_left_to_torch(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = results(torch.float32, "bias")
    tune(ZEN_5)
    monkeypatch.setattr(cpu_tuning, "MIN_MULTIPLIED", 2**22)
    assert all(
        torch.equal(result, reference)
        for result, reference in zip(results(torch.float32, "bias"), expected, strict=True)
    )


def test_flops_are_counted(tune: Tune) -> None:
    tune(ZEN_5)
    x, weight = torch.randn(8, 16, requires_grad=True), torch.randn(4, 16, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        F.linear(x, weight).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 8 * 16 * 4


def test_second_derivatives_are_those_of_torch(tune: Tune) -> None:
    def second_derivative() -> Tensor:
        x, weight = torch.ones(5, 48, requires_grad=True), torch.full((40, 48), 0.5)
        (gradient,) = torch.autograd.grad(F.linear(x, weight).square().sum(), x, create_graph=True)
        (second_gradient,) = torch.autograd.grad(gradient.square().sum(), x)
        return second_gradient

    expected = second_derivative()
    tune(ZEN_5)
    torch.testing.assert_close(second_derivative(), expected)


MASKS = ("full", "causal", "documents", "scores")


def attention(mask: str, dtype: torch.dtype, *, queries: int = 20, keys: int = 20) -> list[Tensor]:
    """Return attention output and gradients in float64."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, d_out = (
        torch.randn(length, 3, 2, 8, generator=generator).to(dtype).permute(1, 2, 0, 3)
        for length in (queries, keys, keys, queries)
    )
    visible = torch.rand(3, 1, queries, keys, generator=generator) > 0.3
    visible[:, :, 4] = False  # a query that attends to no key
    scores = torch.randn(1, 2, queries, keys, generator=generator).to(dtype)
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    output = F.scaled_dot_product_attention(
        *inputs, is_causal=mask == "causal", attn_mask={"documents": visible, "scores": scores}.get(mask), scale=0.3
    )
    return [tensor.detach().double() for tensor in (output, *torch.autograd.grad(output, inputs, d_out))]


@pytest.mark.parametrize("num_queries", [8, 64])
@pytest.mark.parametrize("mask", MASKS)
def test_bfloat16_attention_by_products(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, mask: str, num_queries: int
) -> None:
    monkeypatch.setattr(cpu_tuning, "NUM_QUERIES", num_queries)
    expected = attention(mask, torch.float64)
    tune(ZEN_5)
    with torch.profiler.profile() as profiled:
        tuned = attention(mask, torch.bfloat16)
    assert any(event.name == "aten::bmm" for event in profiled.events())
    for result, reference in zip(tuned, expected, strict=True):
        assert (result - reference).norm() < 0.01 * reference.norm()


def test_bfloat16_attention_to_another_length(tune: Tune) -> None:
    expected = attention("full", torch.float64, keys=13)
    tune(ZEN_5)
    for result, reference in zip(attention("full", torch.bfloat16, keys=13), expected, strict=True):
        assert (result - reference).norm() < 0.01 * reference.norm()


@pytest.mark.parametrize("mask", MASKS)
def test_float32_attention_is_left_to_torch(tune: Tune, mask: str) -> None:
    expected = attention(mask, torch.float32)
    tune(ZEN_5)
    assert all(
        torch.equal(result, reference)
        for result, reference in zip(attention(mask, torch.float32), expected, strict=True)
    )


FAULTS = """
import ctypes, resource
from megaptm.train import cpu_tuning

class Older:
    def __init__(self, found):
        self.found = found
    def mallopt(self, option, value):
        if option == cpu_tuning.M_MMAP_THRESHOLD and value > 32 << 20:
            return 0
        return self.found.mallopt(option, value)

library, libc = ctypes.CDLL, ctypes.CDLL(None)
if {older}:
    cpu_tuning.ctypes.CDLL = lambda name: Older(library(name))
cpu_tuning.keep_freed_memory()
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = libc.malloc(64 << 20)
    ctypes.memset(memory, 1, 64 << 20)
    libc.free(memory)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
@pytest.mark.parametrize("older", [False, True])
def test_freed_memory_is_retained(older: bool) -> None:
    """Page faults for 64 MiB that is allocated again: 16,384 if the memory was returned to Linux."""
    command = [sys.executable, "-c", FAULTS.format(older=older)]
    assert int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) < 10


def trained_losses(package: Path, run: Path, corpus: Path) -> list[float]:
    """Train `gpt2/tiny`, whose products are large enough to be tuned, for three steps with the code in a folder."""
    settings = ("train.steps=3", "train.log_every=1", "train.validate_every=3", "track.enabled=false")
    shape = ("model.vocabulary=512", "train.threads=1", f"run={run}", f"data.mix={{{corpus}: 1}}")
    command = [sys.executable, "-m", "megaptm", "train", str(ROOT / "configs/gpt2/tiny.yaml"), *settings, *shape]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    subprocess.run(command, check=True, cwd=run.parent, env=environment, timeout=240)
    return [loss for step in losses(run).values() for loss in step]


def test_training_without_the_module(real_corpus: Callable[[str], Path], tmp_path: Path) -> None:
    """Only `train.run` mentions the module. Without both, losses differ by less than 1e-6."""
    for name in ("megaptm", "configs", "slurm"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name, symlinks=True)
    copy = tmp_path / "copy/megaptm"
    (copy / "train/cpu_tuning.py").unlink()
    run = copy / "train/run.py"
    text = run.read_text().replace("    from megaptm.train import cpu_tuning\n", "")
    run.write_text(text.replace("cpu_tuning.tune_for_cpu()", "pass"))
    assert not [path for path in copy.rglob("*.py") if "cpu_tuning" in path.read_text()]
    corpus = real_corpus("byte-bpe")
    without = trained_losses(tmp_path / "copy", tmp_path / "without", corpus)
    assert len(without) == 3
    assert trained_losses(ROOT, tmp_path / "with", corpus) == pytest.approx(without, rel=1e-6)
