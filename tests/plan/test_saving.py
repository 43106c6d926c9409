"""What checkpoints and failures cost, as the plan has it."""

import pytest

from megaptm.config import load, resolve_model
from megaptm.plan.count import count_parameters
from megaptm.plan.failures import DAY, estimate_failures
from megaptm.plan.machine import load_machine
from megaptm.plan.plan import make_plan
from megaptm.plan.saving import Saving, estimate_saving
from tests import ROOT

A100 = load_machine("a100-80g")
LARGE = ROOT / "configs/gpt3/175b.yaml"
PARAMETERS = 175 * 10**9
NODES = 128


def cost(saved: Saving, *, every: int, nodes: int = NODES):
    return estimate_failures(A100, saved, nodes=nodes, step_seconds=30, seconds=90_000 * 30, every=every)


@pytest.fixture(params=["true", "false"])
def saved(request):
    config = load(LARGE, [f"checkpoint.asynchronous={request.param}"])
    return estimate_saving(config, A100, PARAMETERS)


def test_saving_as_often_as_young_says_loses_least(saved):
    """The best interval is no worse than its neighbors; more nodes fail more and are saved more often."""
    interval = cost(saved, every=1000).best_interval_steps
    best = cost(saved, every=interval).goodput
    assert best == pytest.approx(cost(saved, every=1000).best_goodput, abs=1e-3)
    assert best > max(cost(saved, every=max(1, interval // 4)).goodput, cost(saved, every=interval * 4).goodput)
    assert cost(saved, every=1000, nodes=4 * NODES).best_interval_steps < interval


def test_an_asynchronous_checkpoint_stops_steps_for_a_copy_and_takes_memory_of_the_hosts():
    waits, copies = (
        estimate_saving(load(LARGE, [f"checkpoint.asynchronous={word}"]), A100, PARAMETERS)
        for word in ("false", "true")
    )
    assert waits.bytes == copies.bytes == PARAMETERS * 12
    assert waits.stall == waits.seconds
    assert copies.stall < waits.stall / 20
    assert copies.seconds == pytest.approx(waits.seconds + copies.stall)
    assert (waits.host_bytes, copies.host_bytes * NODES) == (0, copies.bytes)
    assert cost(copies, every=100).goodput > cost(waits, every=100).goodput


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ([], 3),
        (["optimizer.name=lamb"], 3),
        (["optimizer.name=adagrad"], 2),
        (["optimizer.name=sgd"], 1),
        (["optimizer.name=sgd", "optimizer.momentum=0.9"], 2),
        (["optimizer.name=adafactor"], 1),
        (["optimizer.name=adafactor", "optimizer.momentum=0.9"], 2),
        (["optimizer.name=adafactor", "optimizer.adafactor.min_dim_size_to_factor=null"], 2),
    ],
)
def test_a_checkpoint_holds_weights_and_what_the_rule_remembers(words, numbers):
    """Means of rows and columns are next to nothing."""
    config = load(LARGE, words)
    parameters = count_parameters(resolve_model(config))
    assert estimate_saving(config, A100, parameters).bytes / parameters == pytest.approx(4 * numbers, rel=1e-3)


def test_a_checkpoint_waits_for_the_one_before_it():
    saved = Saving(bytes=1.0, seconds=10.0, stall=1.0, host_bytes=1.0)
    assert [saved.stall_at(interval) for interval in (2.0, 9.0, 100.0)] == [8.0, 1.0, 1.0]


def test_work_that_a_failure_takes_is_half_an_interval_and_what_was_not_yet_written():
    instant = Saving(bytes=1.0, seconds=600.0, stall=0.0, host_bytes=1.0)
    found = cost(instant, every=100)
    between = A100.node_mtbf_days * DAY / NODES
    lost = 100 * 30 / 2 + 600 + (A100.restart_minutes * 60 + 600)
    assert found.goodput == pytest.approx(1 - lost / between)
    assert found.restart_seconds == A100.restart_minutes * 60 + 600


def test_steps_of_a_ramp_take_less_and_read_less():
    """All rows are read in more steps, which take longer: small steps have less to hide their bubbles behind."""
    whole = make_plan(load(LARGE), A100)
    words = ["train.ramp={start: 384, increment: 384, samples: 5859840}"]
    steps = load(LARGE, words).batch_schedule.steps_in(whole.samples)
    ramped = make_plan(load(LARGE, [*words, f"train.steps={steps}"]), A100)
    assert whole.samples - 1536 < ramped.samples <= whole.samples
    assert ramped.steps > whole.steps
    assert whole.seconds == pytest.approx(whole.steps * whole.step.seconds)
    assert whole.seconds < ramped.seconds < 1.02 * whole.seconds


def test_the_plan_says_what_is_kept_on_the_hosts():
    numbers = make_plan(load(LARGE), A100).numbers()["checkpoint"]
    assert numbers["host_bytes"] * NODES == numbers["bytes"]
    assert 0 < numbers["stall_seconds"] < numbers["seconds"]
