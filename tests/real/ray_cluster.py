"""Real Ray cluster of several nodes on this machine. Each node is a `ray start` in the foreground."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import ROOT
from tests.processes import RAY_BESIDE_OTHERS, command_of, environment_of, everybody, parents_alone
from tests.storage.server import free_port

CPUS = 2
"""CPUs of each node, independent of the machine."""
TIMEOUT_SECONDS = 500.0
POLL_SECONDS = 0.5
"""Seconds between polls. Each makes the dashboard compute."""
STARTS = 6
STARTED = "Ray runtime started"
NODE_VARIABLE = "MEGAPTM_TEST_NODE"
"""Variable that identifies the processes of a node."""
PR_SET_PDEATHSIG = 1
# A killed node refuses connections at once and is declared dead at the third failed check, in seconds; a slow node has
# time. Workers are not started in advance, because idle ones cost seconds each.
SYSTEM_CONFIG = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 30000,
    "health_check_failure_threshold": 3,
    "prestart_worker_first_driver": False,
}


@dataclass(frozen=True)
class Job:
    """End of a submitted job."""

    status: str
    """SUCCEEDED, FAILED or STOPPED."""
    code: int | None
    """Exit code of its command."""
    log: str


class RayCluster:
    """Head with a dashboard that accepts jobs, and more nodes, each with its own address."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.address = f"{_address(0)}:{free_port()}"
        self.dashboard = f"http://127.0.0.1:{free_port()}"
        # Programs of this Python; `ray job stop` leaves a job time to save.
        token, path = secrets.token_hex(16), f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            **RAY_BESIDE_OTHERS,
            "PATH": path,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_JOB_STOP_WAIT_TIME_S": "300",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
        }
        self._headers = {"Authorization": f"Bearer {token}"}
        self._nodes: dict[str, subprocess.Popen[bytes] | None] = {_address(number): None for number in range(nodes)}
        self._killed: set[str] = set()
        self._client: Any = None

    def start(self) -> None:
        port, dashboard = self.address.rpartition(":")[2], self.dashboard.rpartition(":")[2]
        head = [
            *("--head", f"--port={port}", f"--dashboard-port={dashboard}"),
            f"--system-config={json.dumps(SYSTEM_CONFIG)}",
        ]
        self._start(_address(0), head, self._accepts_jobs)
        self.heal()

    def heal(self) -> None:
        """Start the nodes that do not run."""
        for address in [address for address, node in self._nodes.items() if node is None or address in self._killed]:
            self._end(address)
            self._killed.discard(address)
            self._start(address, [f"--address={self.address}"], lambda address=address: address in self.alive())

    def stop(self) -> None:
        """End all nodes, the head last, and their processes."""
        for address in reversed(list(self._nodes)):
            self._end(address)

    def kill(self, address: str) -> None:
        """Kill the raylet of a node. Its processes live until they notice; ranks are suspended."""
        self._killed.add(address)
        for process in self._processes(address):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "raylet":
                    process.kill()
                elif _is_rank(process):
                    process.suspend()

    def ranks(self, *addresses: str) -> list[psutil.Process]:
        """Return the ranks on these nodes, by default on all."""
        processes = [process for address in addresses or self._nodes for process in self._processes(address)]
        return parents_alone(process for process in processes if _is_rank(process))

    def alive(self) -> set[str]:
        """Return the addresses of the nodes that the cluster considers alive; empty if it does not respond."""
        request = urllib.request.Request(f"{self.dashboard}/api/v0/nodes", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                nodes = json.load(reply)["data"]["result"]["result"]
        except OSError:
            return set()
        return {node["node_ip"] for node in nodes if node["state"] == "ALIVE"}

    def submit(self, *words: str) -> str:
        """Run `ray job submit --working-dir . -- python -m megaptm launch ray WORDS` in the checkout; return the job
        id."""
        command = shlex.join(["python", "-m", "megaptm", "launch", "ray", *words])
        return wait_for(lambda: self._submit(command))

    def _submit(self, command: str) -> str | None:
        """Return None while the agents of the nodes, which start after the nodes, are missing."""
        try:
            return self._client.submit_job(entrypoint=command, runtime_env={"working_dir": str(ROOT)})
        except RuntimeError as error:
            if "No available agent" not in str(error):
                raise
            return None

    def run_job_command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `ray job WORDS`."""
        return subprocess.run(
            ["ray", "job", words[0], "--address", self.dashboard, *words[1:]],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

    def log(self, job: str) -> str:
        return self._client.get_job_logs(job)

    def is_over(self, job: str) -> bool:
        return self._client.get_job_status(job).is_terminal()

    def stop_job(self, job: str) -> None:
        self._client.stop_job(job)

    def stop_jobs(self) -> None:
        """Stop all jobs that have not ended."""
        for job in self._client.list_jobs():
            if not job.status.is_terminal():
                self.stop_job(job.submission_id)

    def finish(self, job: str) -> Job:
        """Wait until the job has ended; return it."""
        wait_for(lambda: self.is_over(job), describe=lambda: self.log(job))
        info = self._client.get_job_info(job)
        return Job(str(info.status), info.driver_exit_code, self.log(job))

    def _start(self, address: str, options: list[str], ready: Callable[[], bool]) -> None:
        """Start a node. Ray allows 30 seconds, which a busy machine may exceed, so it is repeated."""
        command = [
            *("ray", "start", "--block", "--disable-usage-stats", f"--node-ip-address={address}"),
            f"--temp-dir={self.folder / address.rpartition('.')[2]}",  # each with its own copies of job folders
            *(f"--num-cpus={CPUS}", "--num-gpus=0", f"--object-store-memory={100 << 20}", *options),
        ]
        log = self.folder / f"node-{address}.log"
        for _ in range(STARTS):
            log.unlink(missing_ok=True)
            # Ray's own choice may be taken by another program, and without its agent a head accepts no jobs.
            agent = f"--dashboard-agent-listen-port={free_port()}"
            with log.open("ab") as file:
                node = subprocess.Popen(
                    [*command, agent],
                    env={**self.environment, NODE_VARIABLE: f"{self.folder} {address}"},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    preexec_fn=_end_with_parent,
                )
            self._nodes[address] = node
            wait_for(
                lambda node=node: node.poll() is not None or (STARTED in log.read_text() and ready()),
                describe=log.read_text,
            )
            if node.poll() is None:
                return
            self._end(address)
        raise AssertionError(log.read_text())

    def _end(self, address: str) -> None:
        if (node := self._nodes[address]) is None:
            return
        node.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(timeout=30)
        for process in self._processes(address):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()
        self._nodes[address] = None

    def _processes(self, address: str) -> list[psutil.Process]:
        """Return all processes that a node has started, directly or not."""
        mark = f"{self.folder} {address}"
        return [process for process in everybody() if environment_of(process).get(NODE_VARIABLE) == mark]

    def _accepts_jobs(self) -> bool:
        from ray.job_submission import JobSubmissionClient

        try:
            self._client = JobSubmissionClient(self.dashboard, headers=self._headers)
            self._client.list_jobs()
        except (OSError, RuntimeError):  # a broken connection is an OSError of requests
            return False
        return True


def wait_for(condition: Callable[[], Any], *, describe: Callable[[], str] = str) -> Any:
    """Return the first truthy result of `condition`."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, f"nothing in {TIMEOUT_SECONDS:.0f} s: {describe()}"
        time.sleep(POLL_SECONDS)
    return result


def _is_rank(process: psutil.Process) -> bool:
    return "megaptm.train.worker" in command_of(process)


# Ray's agents listen at the same port in every cluster, so each cluster has its own addresses.
NETWORK = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}"


def _address(index: int) -> str:
    return f"{NETWORK}.{101 + index}"


def _end_with_parent() -> None:
    """End a node with the tests, however they end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def ray_cluster(nodes: int) -> Iterator[RayCluster]:
    """Context of a running cluster. The test is skipped if Ray is not installed."""
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # paths of sockets must be short
        cluster = RayCluster(Path(folder), nodes)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
