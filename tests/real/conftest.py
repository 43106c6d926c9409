"""Real services, started once for all tests that use them, and stopped when these are done: idle they cost a tenth of
a core."""

import pytest

from tests.drills.program import losses
from tests.forked import megaptm
from tests.real.jobs import STEPS, small
from tests.real.ray_cluster import ray_cluster
from tests.real.slurm_cluster import slurm_cluster


@pytest.fixture(scope="package")
def slurm():
    """Four nodes of a real Slurm."""
    with slurm_cluster(nodes=4) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def ray_nodes():
    """Three nodes of a real Ray."""
    with ray_cluster(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def ray(ray_nodes):
    """The same, with all its nodes, whatever the test before did to them."""
    ray_nodes.heal()
    yield ray_nodes
    ray_nodes.stop_jobs()


@pytest.fixture(autouse=True)
def no_job_is_left(request):
    """What a test that failed has submitted, or a node that it lost, would be missed by those after it."""
    cluster = request.getfixturevalue("slurm") if "slurm" in request.fixturenames else None
    yield
    if cluster is not None:
        cluster.cancel_all()
        cluster.heal()


@pytest.fixture(scope="session")
def corpus(real_corpus):
    return real_corpus("byte-bpe")


@pytest.fixture(scope="session")
def unbroken(corpus, tmp_path_factory):
    """The losses of a run of STEPS in one process, by step."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    megaptm("train", *small("gpt2", run, corpus, f"train.steps={STEPS}"))
    return losses(run)
