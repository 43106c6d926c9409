"""A Ray cluster of several simulated machines, of which some die while a corpus is built on it."""

import random
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pytest

from data_pipeline.clean import STEPS
from data_pipeline.corpus.build import build_corpus
from data_pipeline.document import Document, DropCounts
from tests.data_pipeline.corpus.test_build import files_of
from tests.processes import command_of, everybody

NOTICE_SOON = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


@dataclass(frozen=True)
class Dawdle:
    """Sleeps, so that a build lasts as long as a test takes to break it."""

    def __call__(self, documents: Iterable[Document], dropped: DropCounts) -> Iterator[Document]:
        for document in documents:
            time.sleep(0.3)
            yield document


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": NOTICE_SOON})
    for _ in range(2):
        made.add_node(num_cpus=1)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def slow(recipe, monkeypatch):
    monkeypatch.setattr("data_pipeline.corpus.parts.PART_BYTES", 20 << 10)
    monkeypatch.setitem(STEPS, "dawdle", Dawdle)
    return replace(recipe, steps=(Dawdle(), *recipe.steps))


class Building(threading.Thread):
    """A build on the cluster, and the steps that were slowed down."""

    def __init__(self, recipe, out):
        super().__init__()
        self.recipe, self.out = recipe, out
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.report = build_corpus(self.recipe, self.out, workers=4)
        except BaseException as error:
            self.error = error

    def wait_for(self, jobs: int) -> None:
        """Until this many jobs are finished."""
        while self.is_alive() and len(list(self.out.parent.rglob("finished/*/*.json"))) < jobs:
            time.sleep(0.02)
        assert self.is_alive(), "the build was too quick to be broken"


@pytest.fixture
def expected(slow, tmp_path):
    recipe = replace(slow, steps=tuple(step for step in slow.steps if not isinstance(step, Dawdle)))
    build_corpus(recipe, tmp_path / "alone" / "corpus", workers=0)
    return content(tmp_path / "alone" / "corpus")


def content(out) -> dict[str, bytes]:
    """Everything except what names the sleeping step."""
    return {name: data for name, data in files_of(out).items() if name != "manifest.json"}


@pytest.mark.real
@pytest.mark.drill
def test_killed_workers_are_replaced(cluster, slow, expected, tmp_path):
    building = Building(slow, tmp_path / "shared" / "corpus")
    building.start()
    building.wait_for(1)
    chance = random.Random(3)
    for _ in range(3):
        workers = [process for process in everybody() if "ray::_run_single_threaded" in "".join(command_of(process))]
        if workers:
            chance.choice(workers).send_signal(signal.SIGKILL)
        time.sleep(chance.uniform(0.1, 0.8))
    building.join(timeout=300)
    assert building.error is None
    assert content(tmp_path / "shared" / "corpus") == expected


@pytest.mark.real
@pytest.mark.drill
def test_build_survives_lost_machine(cluster, slow, expected, tmp_path):
    building = Building(slow, tmp_path / "shared" / "corpus")
    building.start()
    building.wait_for(2)
    cluster.remove_node(sorted(cluster.worker_nodes, key=lambda node: node.unique_id)[0], allow_graceful=False)
    building.join(timeout=300)
    assert building.error is None
    assert content(tmp_path / "shared" / "corpus") == expected
