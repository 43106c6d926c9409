"""The nodes of a Ray cluster are asked, each by a task of its own."""

import json
import os
import subprocess
import sys

import pytest

from tests.drills.program import ROOT
from tests.real.jobs import small

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def address():
    """Of three raylets on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


def test_every_node_is_asked_and_measured(address, real_corpus, tmp_path):
    words = small("gpt2", tmp_path / "run", real_corpus("byte-bpe"), "layout.data=3")
    done = subprocess.run(
        [sys.executable, "-m", "megaptm", "check", *words, "--speed", "--json"],
        env={**os.environ, "RAY_ADDRESS": address},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout)["findings"]
    [alike] = [finding["says"] for finding in findings if finding["topic"] == "nodes"]
    assert alike.startswith("3 nodes (")
    measured = [finding["says"].partition(":")[0] for finding in findings if finding["topic"] == "speed"]
    assert {"Matrix products", "Writing to the run's disk", "All-reduce over 3 nodes", "Links"} <= {*measured}
