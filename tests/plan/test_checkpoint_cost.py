"""Planned costs of checkpoints and failures."""

import pytest

from megaptm.config import CheckpointConfig, load_config, resolve_model
from megaptm.plan.checkpoint_cost import CheckpointCost, estimate_checkpoint_cost
from megaptm.plan.count import count_parameters
from megaptm.plan.failures import DAY, estimate_failures
from megaptm.plan.machine import load_machine
from megaptm.plan.plan import make_plan
from tests import ROOT

A100 = load_machine("a100-80g")
LARGE = ROOT / "configs/gpt3/175b.yaml"
PARAMETERS = 175 * 10**9
NODES = 128


def estimate(saved: CheckpointCost, *, every: int, nodes: int = NODES):
    return estimate_failures(
        A100, saved, nodes=nodes, step_seconds=30, seconds=90_000 * 30, config=CheckpointConfig(every=every)
    )


@pytest.fixture(params=["true", "false"])
def saved(request):
    config = load_config(LARGE, [f"checkpoint.asynchronous={request.param}"])
    return estimate_checkpoint_cost(config, A100, PARAMETERS)


def test_best_checkpoint_interval(saved):
    """The best interval is no worse than its neighbors. More nodes fail more often and need shorter intervals."""
    interval = estimate(saved, every=1000).best_interval_steps
    best = estimate(saved, every=interval).goodput
    assert best == pytest.approx(estimate(saved, every=1000).best_goodput, abs=1e-3)
    assert best > max(estimate(saved, every=max(1, interval // 4)).goodput, estimate(saved, every=interval * 4).goodput)
    assert estimate(saved, every=1000, nodes=4 * NODES).best_interval_steps < interval


def test_asynchronous_checkpoint_costs_a_copy_and_host_memory():
    waits, copies = (
        estimate_checkpoint_cost(load_config(LARGE, [f"checkpoint.asynchronous={word}"]), A100, PARAMETERS)
        for word in ("false", "true")
    )
    assert waits.bytes == copies.bytes == PARAMETERS * 12
    assert waits.stall == waits.seconds
    assert copies.stall < waits.stall / 20
    assert copies.seconds == pytest.approx(waits.seconds + copies.stall)
    assert (waits.host_bytes, copies.host_bytes * NODES) == (0, copies.bytes)
    assert estimate(copies, every=100).goodput > estimate(waits, every=100).goodput


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ([], 3),
        (["optimizer.name=lamb"], 3),
        (["optimizer.name=stable-adamw"], 3),
        (["optimizer.name=adagrad"], 2),
        (["optimizer.name=sgd"], 1),
        (["optimizer.name=sgd", "optimizer.momentum=0.9"], 2),
        (["optimizer.name=adafactor"], 1),
        (["optimizer.name=adafactor", "optimizer.momentum=0.9"], 2),
        (["optimizer.name=adafactor", "optimizer.adafactor.min_dim_size_to_factor=null"], 2),
    ],
)
def test_checkpoint_bytes_by_update_rule(words, numbers):
    """Row and column means are negligible."""
    config = load_config(LARGE, words)
    parameters = count_parameters(resolve_model(config))
    assert estimate_checkpoint_cost(config, A100, parameters).bytes / parameters == pytest.approx(4 * numbers, rel=1e-3)


def test_checkpoint_waits_for_the_previous_one():
    saved = CheckpointCost(bytes=1.0, seconds=10.0, stall=1.0, host_bytes=1.0)
    assert [saved.stall_at(interval) for interval in (2.0, 9.0, 100.0)] == [8.0, 1.0, 1.0]


def test_time_lost_by_a_failure():
    instant = CheckpointCost(bytes=1.0, seconds=600.0, stall=0.0, host_bytes=1.0)
    costs = estimate(instant, every=100)
    between = A100.node_mtbf_days * DAY / NODES
    lost = 100 * 30 / 2 + 600 + (A100.restart_minutes * 60 + 600)
    assert costs.goodput == pytest.approx(1 - lost / between)
    assert costs.restart_seconds == A100.restart_minutes * 60 + 600


def test_plan_of_a_batch_ramp():
    """The same samples need more steps and more time, because small steps have a larger pipeline bubble."""
    constant = make_plan(load_config(LARGE), A100)
    words = ["train.ramp={start: 384, increment: 384, samples: 5859840}"]
    steps = load_config(LARGE, words).batch_schedule.steps_in(constant.samples)
    ramped = make_plan(load_config(LARGE, [*words, f"train.steps={steps}"]), A100)
    assert constant.samples - 1536 < ramped.samples <= constant.samples
    assert ramped.steps > constant.steps
    assert constant.seconds == pytest.approx(constant.steps * constant.step.seconds)
    assert constant.seconds < ramped.seconds < 1.02 * constant.seconds


def test_plan_shows_host_memory_of_checkpoints():
    numbers = make_plan(load_config(LARGE), A100).to_json()["checkpoint"]
    assert numbers["host_bytes"] * NODES == numbers["bytes"]
    assert 0 < numbers["stall_seconds"] < numbers["seconds"]
