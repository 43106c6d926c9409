"""The time of a step moves as it should when the layout or the machine does."""

from dataclasses import replace
from pathlib import Path

import pytest

from megaptm.config import load
from megaptm.families import CATALOGUE, WORDS
from megaptm.plan import costs
from megaptm.plan.machine import load_machine
from megaptm.plan.network import collective_seconds
from megaptm.plan.plan import make_plan
from megaptm.plan.search import fastest_layout, search_layouts
from megaptm.plan.stages import chunks, stage_chunks
from megaptm.plan.step import estimate_step
from megaptm.plan.workload import Workload, make_workload
from megaptm.spec import published
from tests.models.grammar import VARIANTS
from tests.plan.pipeline_schedule import timeline

CONFIGS = Path(__file__).parents[2] / "configs"
A100 = load_machine("a100-80g")
ALL = sorted(
    path for path in CONFIGS.glob("*/*.yaml") if path.parent.name not in ("machines", "corpora", "demo", *WORDS)
)


STAGES_16 = ["layout.pipeline=16", "layout.virtual=3", "layout.microbatch=1", "layout.recompute=full"]


def work(**layout) -> Workload:
    config = load(CONFIGS / "gpt3" / "175b.yaml", STAGES_16)
    return replace(make_workload(config), layout=config.layout.model_copy(update=layout))


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_config_can_be_planned(path):
    made = make_plan(load(path), load_machine("a100-80g"))
    assert 0 < made.step.mfu < 0.9
    assert made.step.mfu <= made.step.hfu
    assert made.fits


def test_the_step_is_the_simulated_schedule_when_stages_are_alike():
    """Without embedding and head, messages and sums: micro-batches and bubble alone."""
    held = work(virtual=3)
    passes = [costs.time_stage(A100, held, stage) for stage in stage_chunks(held)]
    per_chunk = [one.total / held.layout.virtual for one in passes]
    simulated = timeline(
        stages=16,
        chunks=3,
        microbatches=held.microbatches,
        forward=[one / 3 for one in per_chunk],
        backward=[2 * one / 3 for one in per_chunk],
    )
    parts = estimate_step(A100, held).parts()
    formula = sum(parts[name] for name in ("products", "attention", "memory", "tensor", "recompute", "bubble"))
    assert max(one.stop for one in simulated) == pytest.approx(formula, rel=0.02)


@pytest.mark.parametrize(
    ("slow", "fast", "part"),
    [
        ({"virtual": 1}, {"virtual": 6}, "bubble"),
        ({"virtual": 6}, {"virtual": 1}, "pipeline"),
        ({"tensor": 8}, {"tensor": 4, "data": 16}, "tensor"),
        ({"sequence_parallel": False}, {"sequence_parallel": True}, "memory"),
    ],
)
def test_a_layout_pays_where_the_papers_say(slow, fast, part):
    assert estimate_step(A100, work(**slow)).parts()[part] > estimate_step(A100, work(**fast)).parts()[part]


def test_recomputation_costs_a_third_of_the_products():
    held = replace(work(), recompute="full")
    timed, once = estimate_step(A100, held), estimate_step(A100, replace(held, recompute="none"))
    assert 1.2 < timed.seconds / once.seconds < 1.4
    assert timed.flops == once.flops
    assert timed.hfu / timed.mfu == pytest.approx(4 / 3, rel=0.02)


def test_a_model_that_is_cut_has_all_its_layers():
    for name in ("gpt3", "t5"):
        family = CATALOGUE[name]
        spec = published(family, next(iter(family.sizes)))
        for number in (1, 2, 3, 5, 6):
            for stack in family.stacks:
                assert sum(len(chunk.layers[stack]) for chunk in chunks(spec, number)) == spec.size.layers


def test_the_best_layout_is_legal_fits_and_is_faster_than_the_shipped_one():
    config = load(CONFIGS / "gpt3" / "13b.yaml")
    found = search_layouts(config, A100, config.layout.processes)
    chosen = fastest_layout(found, config, A100, config.layout.processes)
    assert chosen.bytes <= A100.usable_bytes
    assert chosen.step.seconds <= make_plan(config, A100).step.seconds
    assert chosen.layout.processes == config.layout.processes
    assert [one.step.seconds for one in found.fitting] == sorted(one.step.seconds for one in found.fitting)


def test_encoder_and_decoder_have_their_own_lengths():
    made = make_plan(load(CONFIGS / "t5-v1.1" / "base.yaml"), A100)
    assert dict(made.work.lengths) == {"encoder": 512, "decoder": 114}
    assert made.work.tokens == 2048 * (512 + 114)


def test_a_loss_over_all_rows_costs_a_forward_pass_more():
    spec = replace(published(CATALOGUE["t5"], "base"), family=VARIANTS["two towers, compared over all rows"].family)
    lengths = {"encoder": 512, "decoder": 512}
    contrast = Workload(spec=spec, lengths=lengths, layout=work(pipeline=1, virtual=1).layout, batch=1536)
    without = estimate_step(A100, replace(contrast, trained_heads=("lm",)))
    both = estimate_step(A100, contrast)
    assert both.flops == without.flops
    assert both.hardware_flops - without.hardware_flops == pytest.approx(without.flops / 3)
    assert both.recompute > 0.2 * without.seconds


def test_gradients_are_not_sent_beside_the_pass_for_features() -> None:
    """There are none yet."""
    spec = replace(published(CATALOGUE["t5"], "base"), family=VARIANTS["two towers, compared over all rows"].family)
    layout = work(pipeline=1, virtual=1, tensor=1, data=64, microbatch=1, sequence_parallel=False).layout
    contrast = Workload(spec=spec, lengths={"encoder": 64, "decoder": 64}, layout=layout, batch=64)
    without = estimate_step(A100, replace(contrast, trained_heads=("lm",)))
    features = 4.0 * contrast.batch * sum(head.features for head in contrast.comparing)
    exchanged = 2 * collective_seconds(A100, features, ranks=64, stride=1)
    assert estimate_step(A100, contrast).data == pytest.approx(without.data + exchanged, rel=1e-3)


def test_comparing_all_rows_takes_time_that_data_ranks_divide() -> None:
    spec = replace(published(CATALOGUE["t5"], "base"), family=VARIANTS["two towers, compared over all rows"].family)
    layout = work(pipeline=1, virtual=1, tensor=1, data=8, microbatch=1, sequence_parallel=False).layout
    contrast = Workload(spec=spec, lengths={"encoder": 64, "decoder": 64}, layout=layout, batch=32768)
    without = estimate_step(A100, replace(contrast, trained_heads=("lm",)))
    took = costs.time_comparison(A100, contrast)
    assert estimate_step(A100, contrast).memory == pytest.approx(without.memory + took.memory)
    assert estimate_step(A100, contrast).products == pytest.approx(without.products + took.products)
    more = replace(contrast, layout=layout.model_copy(update={"data": 64}))
    assert costs.time_comparison(A100, more).total == pytest.approx(took.total / 8)
    assert estimate_step(A100, contrast).data > without.data
