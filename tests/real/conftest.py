"""Real services, started once for all tests that use them."""

import pytest

from tests.real.slurm_cluster import slurm_cluster


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Four nodes of a real Slurm."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=4) as cluster:
        yield cluster
