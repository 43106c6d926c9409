"""A run that loses nodes continues on other nodes, or on fewer, without losing saved steps."""

import re
import sqlite3

import pytest

from megaptm.resilience.events import read_events
from megaptm.run.time_spent import job_times, time_spent
from megaptm.track import read_metrics
from tests.drills.program import checkpoints, losses
from tests.forked import megaptm
from tests.real.jobs import small
from tests.real.ray_cluster import wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]

STEPS = 60
SPREAD = ("layout.data=2", "layout.tensor=2", "layout.microbatch=2")
SAVED_OFTEN = (f"train.steps={STEPS}", "checkpoint.every=10", "train.log_every=10")


@pytest.fixture(scope="module")
def undisturbed_run(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("unbroken") / "run"
    megaptm("train", *small("gpt2", run, corpus, *SPREAD, *SAVED_OFTEN, "layout.data=1", "layout.tensor=1"))
    return run


def lose_a_node(ray, number, run) -> str:
    """Kill a node with ranks that is not the head, after a checkpoint; return its address."""
    [placed] = wait_for(lambda: re.findall("^Start 1: .*", ray.log(number), re.MULTILINE))
    lost = next(node for node in re.findall(r" on ([\d.]+)", placed) if not node.endswith(".101"))
    wait_for(lambda: checkpoints(run), describe=lambda: ray.log(number))
    ray.kill(lost)
    return lost


def check_run(run, undisturbed_run, lost, restarts):
    """Check that each repeated step has the loss of the undisturbed run, and that the journal records the restarts."""
    assert losses(run).keys() == losses(undisturbed_run).keys()
    for step, [loss] in losses(undisturbed_run).items():
        assert losses(run)[step] == [pytest.approx(loss, rel=1e-5)] * len(losses(run)[step])
    events = read_events(run)
    assert [event["node"] for event in events if event["kind"] == "node-lost"] == lost
    layouts = [event["layout"] for event in events if event["kind"] == "restart"]
    assert [(layout["tensor"], layout["data"]) for layout in layouts] == restarts
    resumed = [event["step"] for event in events if event["kind"] == "resume"]
    assert len(resumed) == len(restarts)
    assert min(resumed) >= 10
    total = time_spent(job_times(events, read_metrics(run)))
    assert total.wall == pytest.approx(events[-1]["time"] - events[0]["time"], abs=0.1)


def test_run_continues_on_other_nodes(ray, corpus, undisturbed_run, tmp_path):
    run, mlflow = tmp_path / "run", tmp_path / "mlflow.db"
    tracked = ("track.enabled=true", f"track.uri=sqlite:///{mlflow}")
    number = ray.submit(*small("gpt2", run, corpus, *SPREAD, *SAVED_OFTEN, *tracked))
    lost = lose_a_node(ray, number, run)
    job = ray.finish(number)
    assert (job.status, job.code) == ("SUCCEEDED", 0), job.log
    assert f"Lost node {lost}" in job.log
    check_run(run, undisturbed_run, [lost], [(2, 2)])
    assert megaptm("report", run).count("in 2 jobs") == 1
    with sqlite3.connect(mlflow) as database:
        assert database.execute("select status from runs").fetchall() == [("FINISHED",)]


@pytest.mark.drill
def test_run_continues_on_fewer_nodes(ray, corpus, undisturbed_run, tmp_path):
    run = tmp_path / "run"
    number = ray.submit(*small("gpt2", run, corpus, *SPREAD, *SAVED_OFTEN, "layout.data=3"), "--wait", "3")
    lost = lose_a_node(ray, number, run)
    job = ray.finish(number)
    assert (job.status, job.code) == ("SUCCEEDED", 0), job.log
    check_run(run, undisturbed_run, [lost], [(2, 2)])


def kill_a_rank(ray, number, run, before: list[str]) -> str:
    """Kill a rank of the newest start, if possible on a node where one was killed before; return the node."""
    start = len(before) + 1
    started = wait_for(
        lambda: [event for event in read_events(run) if event["kind"] == "first-step"][start - 1 :],
        describe=lambda: ray.log(number),
    )
    assert started
    wait_for(lambda: saved_since(run, started[0]["time"]), describe=lambda: ray.log(number))
    used = placed_nodes(ray.log(number))[-1]
    node = next((node for node in used if node in before), used[0])
    ray.ranks(node)[0].kill()
    return node


def saved_since(run, moment: float) -> bool:
    """Whether a checkpoint was saved since a start, so that the failures of the run are not in a row."""
    return any(event["kind"] == "checkpoint" and event["time"] > moment for event in read_events(run))


def placed_nodes(log: str) -> list[list[str]]:
    """Return the nodes of each start of a run."""
    return [re.findall(r" on ([\d.]+)", line) for line in re.findall("^Start .*", log, re.MULTILINE)]


@pytest.mark.drill
def test_node_where_ranks_crashed_twice_is_excluded(ray, corpus, tmp_path):
    """Each start uses two of three nodes, so the third kill is the second on some node at the latest."""
    run = tmp_path / "run"
    words = small("gpt2", run, corpus, *SPREAD, "train.steps=100000", "checkpoint.every=10", "train.restarts=3")
    number = ray.submit(*words, "--wait", "3")
    killed: list[str] = []
    for _ in range(3):
        killed.append(kill_a_rank(ray, number, run, killed))
    wait_for(lambda: len(placed_nodes(ray.log(number))) == 4, describe=lambda: ray.log(number))
    log, events = ray.log(number), read_events(run)
    assert [event["node"] for event in events if event["kind"] == "worker-lost"] == killed
    excluded = [event["node"] for event in events if event["kind"] == "node-excluded"]
    assert excluded == [node for node in dict.fromkeys(killed) if killed.count(node) > 1]
    assert not {*excluded} & {*placed_nodes(log)[-1]}
    assert f"Node {excluded[0]} was lost, or ranks on it crashed or hung, at least twice" in log
    assert "(restart 1 of 3 without a new checkpoint)" in log


@pytest.mark.drill
def test_run_waits_for_lost_node(ray, corpus, undisturbed_run, tmp_path):
    run = tmp_path / "run"
    number = ray.submit(*small("gpt2", run, corpus, *SPREAD, *SAVED_OFTEN, "layout.data=3"), "--wait", "900")
    lost = lose_a_node(ray, number, run)
    wait_for(lambda: f"Lost node {lost}" in ray.log(number))
    ray.heal()
    job = ray.finish(number)
    assert (job.status, job.code) == ("SUCCEEDED", 0), job.log
    check_run(run, undisturbed_run, [lost], [(2, 3)])
