"""Planned time of a step, by layout and machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from megaptm.config import load_config
from megaptm.families import CATALOGUE, LAYERLESS
from megaptm.plan import costs
from megaptm.plan.machine import load_machine
from megaptm.plan.network import collective_seconds
from megaptm.plan.plan import make_plan
from megaptm.plan.search import fastest_layout, search_layouts
from megaptm.plan.stages import model_chunks, stage_chunks
from megaptm.plan.step import estimate_step
from megaptm.plan.workload import Workload, make_workload
from megaptm.spec import published_spec
from tests.models.grammar import VARIANTS
from tests.plan.pipeline_schedule import timeline

CONFIGS = Path(__file__).parents[2] / "configs"
A100 = load_machine("a100-80g")
ALL = sorted(
    path for path in CONFIGS.glob("*/*.yaml") if path.parent.name not in ("machines", "corpora", "demo", *LAYERLESS)
)


STAGES_16 = ["layout.pipeline=16", "layout.virtual=3", "layout.microbatch=1", "layout.recompute=full"]


def work(**layout) -> Workload:
    config = load_config(CONFIGS / "gpt3" / "175b.yaml", STAGES_16)
    return replace(make_workload(config), layout=config.layout.model_copy(update=layout))


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_plan_of_every_config(path):
    made = make_plan(load_config(path), load_machine("a100-80g"))
    assert 0 < made.step.mfu < 0.9
    assert made.step.mfu <= made.step.hfu
    assert made.fits


def test_step_time_equals_the_simulated_schedule():
    """Micro-batches and bubble, without messages and gradient reduction, if stages take equal time."""
    equal = A100.model_copy(update={"efficiency": A100.efficiency.model_copy(update={"device_spread": 0.0})})
    workload = work(virtual=3)
    passes = [costs.time_stage(equal, workload, stage) for stage in stage_chunks(workload)]
    per_chunk = [stage_passes.total / workload.layout.virtual for stage_passes in passes]
    simulated = timeline(
        stages=16,
        chunks=3,
        microbatches=workload.microbatches,
        forward=[stage_passes / 3 for stage_passes in per_chunk],
        backward=[2 * stage_passes / 3 for stage_passes in per_chunk],
    )
    parts = estimate_step(equal, workload).parts()
    formula = sum(parts[name] for name in ("products", "attention", "memory", "tensor", "recompute", "bubble"))
    assert max(stage_passes.stop for stage_passes in simulated) == pytest.approx(formula, rel=0.02)


@pytest.mark.parametrize(
    ("slow", "fast", "part"),
    [
        ({"virtual": 1}, {"virtual": 6}, "bubble"),
        ({"virtual": 6}, {"virtual": 1}, "pipeline"),
        ({"tensor": 8}, {"tensor": 4, "data": 16}, "tensor"),
        ({"sequence_parallel": False}, {"sequence_parallel": True}, "memory"),
    ],
)
def test_layout_reduces_one_part_of_the_step(slow, fast, part):
    assert estimate_step(A100, work(**slow)).parts()[part] > estimate_step(A100, work(**fast)).parts()[part]


def test_recomputation_costs_a_third():
    workload = replace(work(), recompute="full")
    timed, without = estimate_step(A100, workload), estimate_step(A100, replace(workload, recompute="none"))
    assert 1.2 < timed.seconds / without.seconds < 1.4
    assert timed.flops == without.flops
    assert timed.hfu / timed.mfu == pytest.approx(4 / 3, rel=0.02)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 6])
@pytest.mark.parametrize(("name", "stack"), [("gpt3", "decoder"), ("t5", "encoder"), ("t5", "decoder")])
def test_chunks_have_all_layers(name, stack, number):
    spec = published_spec(CATALOGUE[name], next(iter(CATALOGUE[name].sizes)))
    assert sum(len(chunk.layers[stack]) for chunk in model_chunks(spec, number)) == spec.size.layers


def test_fastest_layout():
    config = load_config(CONFIGS / "gpt3" / "13b.yaml")
    result = search_layouts(config, A100, config.layout.processes)
    chosen = fastest_layout(result, config, A100, config.layout.processes)
    assert chosen.bytes <= A100.usable_bytes
    assert chosen.step.seconds <= make_plan(config, A100).step.seconds
    assert chosen.layout.processes == config.layout.processes
    assert [candidate.step.seconds for candidate in result.fitting] == sorted(
        candidate.step.seconds for candidate in result.fitting
    )


def test_lengths_of_encoder_and_decoder():
    made = make_plan(load_config(CONFIGS / "t5-v1.1" / "base.yaml"), A100)
    assert dict(made.work.lengths) == {"encoder": 512, "decoder": 114}
    assert made.work.tokens == 2048 * (512 + 114)


def test_contrastive_loss_needs_another_forward_pass():
    spec = replace(published_spec(CATALOGUE["t5"], "base"), family=VARIANTS["two-towers-contrast"].family)
    lengths = {"encoder": 512, "decoder": 512}
    contrast = Workload(spec=spec, lengths=lengths, layout=work(pipeline=1, virtual=1).layout, batch=1536)
    without = estimate_step(A100, replace(contrast, trained_heads=("lm",)))
    both = estimate_step(A100, contrast)
    assert both.flops == without.flops
    assert both.hardware_flops - without.hardware_flops == pytest.approx(without.flops / 3)
    assert both.recompute > 0.2 * without.seconds


def test_one_micro_batch_per_data_rank_needs_no_features_pass() -> None:
    spec = replace(published_spec(CATALOGUE["t5"], "base"), family=VARIANTS["two-towers-contrast"].family)
    layout = work(pipeline=1, virtual=1, tensor=1, data=64, microbatch=2, sequence_parallel=False).layout
    contrast = Workload(spec=spec, lengths={"encoder": 64, "decoder": 64}, layout=layout, batch=128)
    assert not contrast.needs_features_pass
    assert estimate_step(A100, contrast).recompute == 0


def test_gradient_reduction_does_not_overlap_with_the_features_pass() -> None:
    """Gradients exist only after it."""
    spec = replace(published_spec(CATALOGUE["t5"], "base"), family=VARIANTS["two-towers-contrast"].family)
    layout = work(pipeline=1, virtual=1, tensor=1, data=64, microbatch=1, sequence_parallel=False).layout
    contrast = Workload(spec=spec, lengths={"encoder": 64, "decoder": 64}, layout=layout, batch=128)
    without = estimate_step(A100, replace(contrast, trained_heads=("lm",)))
    features = 4.0 * contrast.batch * sum(head.features for head in contrast.contrastive_heads)
    exchanged = 2 * collective_seconds(A100, features, ranks=64, stride=1)
    assert estimate_step(A100, contrast).data == pytest.approx(without.data + exchanged, rel=1e-3)


def test_data_ranks_divide_the_contrastive_comparison() -> None:
    spec = replace(published_spec(CATALOGUE["t5"], "base"), family=VARIANTS["two-towers-contrast"].family)
    layout = work(pipeline=1, virtual=1, tensor=1, data=8, microbatch=1, sequence_parallel=False).layout
    contrast = Workload(spec=spec, lengths={"encoder": 64, "decoder": 64}, layout=layout, batch=32768)
    without = estimate_step(A100, replace(contrast, trained_heads=("lm",)))
    comparison = costs.time_comparison(A100, contrast)
    assert estimate_step(A100, contrast).memory == pytest.approx(without.memory + comparison.memory)
    assert estimate_step(A100, contrast).products == pytest.approx(without.products + comparison.products)
    more = replace(contrast, layout=layout.model_copy(update={"data": 64}))
    assert costs.time_comparison(A100, more).total == pytest.approx(comparison.total / 8)
    assert estimate_step(A100, contrast).data > without.data
