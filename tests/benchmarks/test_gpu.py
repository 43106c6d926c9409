"""Parts of `benchmarks/gpu.py` that need no GPU. `tests/drills/test_benchmarks.py` runs its short form."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from benchmarks.common.gpu_checks import CHECKS
from benchmarks.common.gpu_shapes import SHAPES
from benchmarks.common.kernel_classes import kernel_class, milliseconds_by_class
from megaptm.config import Layout
from megaptm.families import FAMILIES
from megaptm.train.trace import TraceSpan
from tests import ROOT
from tests.families.groups import LAYERED
from tests.layers.flash_on_cpu import flash_on_cpu
from tests.layouts.cases import KINDS, train_steps
from tests.ranks import run_ranks

RECORDED = json.loads((ROOT / "benchmarks/recorded_families.json").read_text())


def test_every_family_with_layers_has_recorded_values() -> None:
    assert RECORDED.keys() == LAYERED.keys()
    for name, values in RECORDED.items():
        assert {kind: len(numbers) for kind, numbers in values.items()} == {"losses": 3, "norms": 3}, name


def steps_of_kinds() -> dict[str, dict[str, list[float]]]:
    """Run in a rank: three steps of a family of each kind of model."""
    return {name: train_steps(name, Layout(microbatch=4), steps=3) for name in KINDS}


def test_recorded_values_are_those_of_this_cpu() -> None:
    (results,) = run_ranks(1, steps_of_kinds)
    for name, values in results.items():
        for kind in ("losses", "norms"):
            # Processors and versions of torch round differently.
            assert values[kind] == pytest.approx(RECORDED[name][kind], rel=2e-5), name


@pytest.mark.parametrize("name", ["cross-entropy", "attention in documents", "cross-attention in documents"])
def test_kernels_pass_their_checks(name: str) -> None:
    """The check itself is right: on the CPU, with a plain form of FlashAttention."""
    check, limit = CHECKS[name]
    with flash_on_cpu() as flash:
        assert 0 < check("cpu") <= limit
    assert flash.backward == len(flash.forward) == {"cross-entropy": 0, "attention in documents": 4}.get(name, 1)


def differences_of_modes() -> dict[str, float]:
    """Run in a rank: the checks of modes that a CPU has, too."""
    modes = ("off-loaded moments", "full sharding", "recomputation", "optimizers")
    return {name: CHECKS[name][0]("cpu") - CHECKS[name][1] for name in modes}


@pytest.mark.drill
def test_modes_pass_their_checks() -> None:
    (excess,) = run_ranks(1, differences_of_modes)
    assert max(excess.values()) <= 0, excess


def test_shapes_are_published_sizes() -> None:
    assert len({shape.metric for shape in SHAPES}) == len(SHAPES)
    for shape in SHAPES:
        assert shape.size in FAMILIES[shape.family].sizes, shape.name
        assert re.fullmatch("[a-z0-9_]+", shape.metric)


def test_batches_of_all_shapes_can_be_built() -> None:
    """The goals are plausible shares of the peak of an H100."""
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shares = {line.split()[0]: float(re.findall(r" ([\d.]+)%", line)[0]) for line in done.stdout.splitlines()[1:]}
    assert list(shares) == [shape.name for shape in SHAPES]
    assert 20 < min(shares.values()) <= max(shares.values()) < 60


def test_without_a_gpu_one_sentence_and_exit_code_2() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "PyTorch finds no GPU on this machine: this benchmark needs one (--short runs tiny models on the CPU).\n"
    )


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize2x1x1", "products"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "products"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention"),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<...>", "norms"),
        ("void (anonymous namespace)::softMaxForward<...>", "loss"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<...>>", "optimizer"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>", "copies"),
        ("void at::native::_scatter_gather_elementwise_kernel<...>", "gathers"),
        ("void at::native::reduce_kernel<512, 1, ...>", "sums"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluBackward...>", "elementwise"),
        ("triton_poi_fused_add_gelu_0", "compiled"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
        ("cooley_tukey", "other"),
    ],
)
def test_kernels_have_classes(name: str, label: str) -> None:
    assert kernel_class(name) == label


def test_milliseconds_by_class_are_of_one_step() -> None:
    work = [
        TraceSpan("nvjet_a", 0.0, 3000.0),
        TraceSpan("Memset (Device)", 3000.0, 4000.0),
        TraceSpan("gemm", 5000.0, 8000.0),
    ]
    assert milliseconds_by_class(work, steps=2) == {"products": 3.0, "copies": 0.5}
