"""Terms of the planned time: tiles, launches, scores by distance, software, collectives of sharding, slowest device."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from megaptm.config import Layout
from megaptm.families import CATALOGUE
from megaptm.plan import costs
from megaptm.plan.machine import load_machine
from megaptm.plan.software import MEGAPTM, Software
from megaptm.plan.stages import stage_chunks
from megaptm.plan.step import StepTime, estimate_step, expected_maximum
from megaptm.plan.workload import Workload
from megaptm.spec import published_spec

A100, CPU = load_machine("a100-80g"), load_machine("this-cpu")


def work(family: str, size: str, length: int, *, batch: int, software: Software = MEGAPTM, **layout) -> Workload:
    spec = published_spec(CATALOGUE[family], size)
    lengths = dict.fromkeys(spec.family.stacks, length)
    return Workload(spec=spec, lengths=lengths, layout=Layout(**layout), batch=batch, software=software)


def step(*args, **values) -> StepTime:
    return estimate_step(A100, work(*args, **values))


def test_last_wave_of_tiles_is_partly_idle():
    # 2,048 x 13,824 is 8 x 108 tiles of 256 x 128: eight full waves of an A100; half a column more starts a ninth.
    assert costs.tile_efficiency(2048, 13824, 108) == pytest.approx(1.0)
    assert costs.tile_efficiency(2048, 13888, 108) < 0.95


def test_narrow_products_of_tensor_ranks_are_slower():
    undivided, divided = costs.tile_efficiency(2048, 15360, 108), costs.tile_efficiency(2048, 15360 / 8, 108)
    assert divided < 0.8 < 0.95 < undivided


def test_a_cpu_has_no_tiles():
    assert costs.tile_efficiency(100, 100, CPU.multiprocessors) == 1.0


def test_small_micro_batches_wait_for_the_host():
    small, large = (step("t5", "base", 128, batch=64, microbatch=rows) for rows in (1, 64))
    assert small.host > 0.3 * small.seconds
    assert large.host < 0.2 * large.seconds


BUDGETS = yaml.safe_load((Path(__file__).parents[1] / "cuda" / "launches.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("family", "size"),
    [("gpt2", "small"), ("bert", "large"), ("t5", "large"), ("bart", "large"), ("electra", "base"), ("xlnet", "base")],
)
def test_launches_are_those_of_the_budget(family, size):
    """Kernels of a step that tests/cuda counts."""
    workload = work(family, size, 128, batch=8, microbatch=8)
    (chunks,) = stage_chunks(workload)
    assert costs.count_launches(workload, chunks) == pytest.approx(BUDGETS[family]["kernels"], rel=0.12)


def test_scores_by_distance_cost_time_and_gathered_ones_more():
    bert, deberta, gathered = (
        step(name, "base", 512, batch=32, microbatch=32, software=replace(MEGAPTM, gathered_scores=gathers))
        for name, gathers in (("bert", False), ("deberta", False), ("deberta", True))
    )
    assert gathered.memory > 1.5 * deberta.memory > 2 * bert.memory


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        ({"compiled": False}, {"compiled": True}),
        ({"compiled": False, "autocast": True}, {"compiled": False}),
        ({"compiled": False, "fused_activation": False}, {"compiled": False}),
    ],
)
def test_software_that_reads_and_writes_more_is_slower(slow, fast):
    slower, faster = (
        step("gpt2", "small", 1024, batch=32, microbatch=32, software=replace(MEGAPTM, **changes))
        for changes in (slow, fast)
    )
    assert slower.memory > 1.05 * faster.memory


def test_single_operations_of_an_rms_norm_are_slower():
    """T5 has RMSNorm."""
    slower, faster = (
        step("t5", "base", 512, batch=8, microbatch=8, software=Software(fused_norm=fused)) for fused in (False, True)
    )
    assert slower.memory > 1.5 * faster.memory


def test_collectives_of_each_parameter_are_slow_on_many_ranks():
    layout = {"data": 1024, "full_sharding": True, "batch": 1024}
    layers, parameters = (
        step("gpt3", "13b", 2048, software=Software(layer_gathers=number), **layout).data for number in (1, 12)
    )
    assert parameters > 3 * layers


def test_sharding_within_nodes_gathers_faster():
    layout = {"data": 256, "full_sharding": True, "batch": 256}
    everywhere, node = (
        step("gpt3", "13b", 2048, software=Software(sharding_group=group, gather_overlap=False), **layout).data
        for group in ("all", "node")
    )
    assert node < everywhere


def test_blocking_messages_between_stages_take_twice_as_long():
    layout = {"pipeline": 4, "data": 8, "batch": 256}
    blocking, both_ways = (
        step("gpt3", "13b", 2048, software=Software(blocking_boundaries=blocks), **layout) for blocks in (True, False)
    )
    assert blocking.pipeline == pytest.approx(2 * both_ways.pipeline)


def test_saved_inputs_are_gathered_once_more():
    layout = {"tensor": 8, "sequence_parallel": True, "batch": 4, "microbatch": 4}
    with_gather, without = (
        step("gpt3", "13b", 2048, software=Software(tensor_overlap="none"), **{**layout, "sequence_parallel": parts})
        for parts in (True, False)
    )
    assert with_gather.tensor == pytest.approx(1.25 * without.tensor, rel=0.05)


@pytest.mark.parametrize(("number", "expected"), [(1, 0.0), (2, 0.564), (8, 1.424), (1000, 3.241)])
def test_expected_maximum_of_normal_values(number, expected):
    """Exact values (Harter, 1961)."""
    assert expected_maximum(number) == pytest.approx(expected, abs=0.03)


def test_more_devices_wait_for_a_slower_one():
    few, many = (step("gpt3", "13b", 2048, data=ranks, batch=ranks, software=MEGAPTM) for ranks in (8, 4096))
    assert 1.02 < many.products / few.products < 1.05
