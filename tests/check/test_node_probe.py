"""Collection of the output of processes on nodes."""

import socket

import pytest

from megaptm.check.node_probe import probe_nodes
from megaptm.errors import UserError
from megaptm.schedulers.node_process import ProcessOutput, parse_facts, run_module
from megaptm.schedulers.slurm.nodes import split_by_node


def test_facts_are_read_from_json_lines():
    assert parse_facts('Welcome to the cluster\n{"cpus": 2}\n{"node": "n1"}\n{broken\n') == {"cpus": 2, "node": "n1"}


def test_hanging_process_is_ended_and_reported():
    assert run_module("timeit", ["-n1", "-r1", "import time; time.sleep(600)"], seconds=2).stderr.endswith(
        "no answer in 2 s"
    )


def test_srun_output_is_split_by_node():
    stdout = ' 0: {"cpus": 2}\n10: {"cpus": 3}\n 0: {"node": "node1"}\n'
    stderr = (
        " 0: a warning\n 1: Traceback\n 1: ImportError: no\nsrun: error: node3: task 2: Exited with exit code 127\n"
    )
    outputs = split_by_node(ProcessOutput(stdout, stderr), [f"node{number}" for number in range(1, 12)])
    assert parse_facts(outputs[0].stdout) == {"cpus": 2, "node": "node1"}
    assert parse_facts(outputs[10].stdout) == {"cpus": 3}
    assert outputs[1].stderr.endswith("ImportError: no")
    assert outputs[2].stderr == "srun: error: node3: task 2: Exited with exit code 127"


def test_unreachable_ray_is_reported_at_once(monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setattr("megaptm.schedulers.ray.connection.ANSWER_SECONDS", 2.0)
        with pytest.raises(UserError, match=f"no Ray cluster answers at {address}"):
            probe_nodes("megaptm.check.node_facts", seconds=60)
