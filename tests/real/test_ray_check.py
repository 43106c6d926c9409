"""`megaptm check` checks the nodes of a Ray cluster, each with its own task."""

import json
import subprocess
import sys

import pytest

from tests import ROOT
from tests.real.jobs import small

pytestmark = pytest.mark.real


def test_all_nodes_are_checked(ray, corpus, tmp_path):
    words = small("gpt2", tmp_path / "run", corpus, "layout.data=3", "layout.microbatch=2")
    done = subprocess.run(
        [sys.executable, "-m", "megaptm", "check", *words, "--json"],
        env={**ray.environment, "RAY_ADDRESS": ray.address},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout)["findings"]
    [nodes_message] = [finding["message"] for finding in findings if finding["topic"] == "nodes"]
    assert nodes_message.startswith("3 nodes (")
