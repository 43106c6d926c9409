"""Real services, started once for all tests that use them. Idle, they take a tenth of a core."""

import pytest

from tests.drills.program import losses
from tests.forked import megaptm
from tests.real.jobs import STEPS, small
from tests.real.ray_cluster import ray_cluster
from tests.real.slurm_cluster import slurm_cluster


@pytest.fixture(scope="package")
def slurm():
    """Slurm cluster of four nodes."""
    with slurm_cluster(nodes=4) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def ray_nodes():
    """Ray cluster of three nodes."""
    with ray_cluster(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def ray(ray_nodes):
    """The Ray cluster with all its nodes alive."""
    ray_nodes.heal()
    yield ray_nodes
    ray_nodes.stop_jobs()


@pytest.fixture(autouse=True)
def cancel_leftover_jobs(request):
    """Cancel jobs of a failed test, and restart lost nodes."""
    cluster = request.getfixturevalue("slurm") if "slurm" in request.fixturenames else None
    yield
    if cluster is not None:
        cluster.cancel_all()
        cluster.heal()


@pytest.fixture(scope="session")
def corpus(real_corpus):
    return real_corpus("byte-bpe")


@pytest.fixture(scope="session")
def undisturbed_losses(corpus, tmp_path_factory):
    """Losses of a run of STEPS steps in one process, by step."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    megaptm("train", *small("gpt2", run, corpus, f"train.steps={STEPS}"))
    return losses(run)
