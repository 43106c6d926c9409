"""Retries of failed Ray starts, within MEGAPTM_RAY_START_SECONDS; errors name the node."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from megaptm.errors import UserError
from megaptm.schedulers.ray import connection
from megaptm.schedulers.ray.connection import _start_here, connect_to_ray
from megaptm.schedulers.ray.start import VARIABLE, StartRetries, retry_seconds
from tests import ROOT
from tests.storage.server import free_port

COMMAND = [sys.executable, "-m", "megaptm.schedulers.ray.start"]


def start_ray(folder, seconds, port=None):
    """Run `ray start --head`, which fails until the folder of its object store exists."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", VARIABLE: str(seconds), "SLURMD_NODENAME": "node7"}
    options = [
        *(
            "--block",
            "--head",
            "--node-ip-address=127.0.0.1",
            f"--port={port or free_port()}",
            "--include-dashboard=false",
        ),
        *("--num-cpus=1", f"--object-store-memory={100 << 20}", f"--plasma-directory={folder / 'plasma'}"),
        f"--temp-dir={folder}",
    ]
    return subprocess.Popen(
        [*COMMAND, *options], env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def folder():
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # sockets need short names
        yield Path(folder)


@pytest.mark.real
def test_failed_start_is_retried_until_it_succeeds(folder):
    ray = start_ray(folder, 600)
    try:
        message = next(line for line in ray.stderr if "retrying" in line)
        assert message.startswith("Ray did not start on node node7 (")
        (folder / "plasma").mkdir()
        assert ray.stdout.readline() == "Ray runs on this node.\n"
        children = psutil.Process(ray.pid).children(recursive=True)
        raylet = next(child for child in children if child.name() == "raylet")
        assert raylet.environ()["RAY_worker_niceness"] == "0", "workers would starve beside other programs"
    finally:
        ray.send_signal(signal.SIGTERM)
        ray.communicate(timeout=60)
    assert not psutil.wait_procs(children, timeout=60)[1]


@pytest.mark.real
def test_start_that_fails_too_long_names_the_node(folder):
    ray = start_ray(folder, 0)
    out, err = ray.communicate(timeout=300)
    assert ray.returncode == 2
    assert out == ""
    assert "error: Ray did not start on node node7 in 0 s and 1 attempt (" in err
    assert f"set {VARIABLE} to more seconds." in err


@pytest.mark.real
def test_dead_head_is_not_tried_longer_than_the_limit(folder):
    """Ray itself tries to reach the head for a quarter of an hour."""
    address = f"127.0.0.1:{free_port()}"
    source = (
        "import sys; from megaptm.schedulers.ray import start; start.ATTEMPT_SECONDS = 3; start.start_ray(sys.argv[1:])"
    )
    environment = {**os.environ, VARIABLE: "3", "SLURMD_NODENAME": "node7"}
    words = [sys.executable, "-c", source, f"--address={address}", "--num-cpus=1", f"--temp-dir={folder}"]
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "Ray did not start on node node7 in 3 s and 1 attempt (" in done.stderr
    assert f"; if no head runs at {address}, correct --address." in done.stderr


@pytest.mark.real
def test_taken_port_is_named(folder):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        ray = start_ray(folder, 0, port=port)
        _, err = ray.communicate(timeout=300)
    assert f"in 0 s and 1 attempt (port {port} is in use)" in err


def test_local_cluster_start_is_retried_within_the_limit(monkeypatch, capsys):
    class Ray:
        job_config = pytest.importorskip("ray.job_config")
        failures = 2

        def init(self, **_):
            self.failures -= 1
            if self.failures >= 0:
                raise Exception("The current node timed out during startup.")

        def shutdown(self): ...

    monkeypatch.setattr("megaptm.schedulers.ray.start.PAUSE_SECONDS", 0.0)
    ray = Ray()
    _start_here(ray, 1)
    assert ray.failures == -1
    assert capsys.readouterr().err.count("retrying for another") == 2
    monkeypatch.setenv(VARIABLE, "0")
    with pytest.raises(UserError, match=r"in 0 s and 1 attempt \(The current node timed out"):
        _start_here(Ray(), 1)


@pytest.mark.parametrize("text", ["ten", "-1", "nan", "inf"])
def test_invalid_retry_seconds_are_refused(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UserError, match=rf"{VARIABLE} \({text}\): expected the number of seconds"):
        StartRetries()


def test_retry_seconds_default_to_ten_minutes(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert retry_seconds() == 600


def test_temporary_folder_with_a_long_path_is_reported(tmp_path, monkeypatch):
    """Clusters that set TMPDIR to a job's folder have such paths, and Ray puts its sockets there."""
    pytest.importorskip("ray")
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    with pytest.raises(UserError, match=f"{folder}, is too long .* set RAY_TMPDIR to a folder with a shorter path"):
        connect_to_ray("local", cpus=1)


def test_dashboard_address_is_refused():
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=r"^http://head:8265 is the address of a dashboard.*set HOST:PORT"):
        connect_to_ray("http://head:8265")


def test_cluster_is_reached_without_the_proxy_of_the_environment(monkeypatch):
    """Ray's issues 6662 and 14350: `http_proxy`, which clusters often set, does not apply to Ray's own connections."""
    grpc = pytest.importorskip("grpc")
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://proxy.invalid:9")
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 5.0)
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        connection._check_grpc(f"127.0.0.1:{port}")
    finally:
        server.stop(None)
