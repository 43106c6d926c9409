"""A start of Ray that fails is repeated, for as long as a setting says; the node is named."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from megaptm.errors import UserError
from megaptm.schedulers.ray.connection import _start_here, connect
from megaptm.schedulers.ray.start import VARIABLE, Attempts, start_seconds
from tests import ROOT
from tests.storage.server import free_port

COMMAND = [sys.executable, "-m", "megaptm.schedulers.ray.start"]


def started(folder, seconds):
    """`ray start --head`, which fails as long as the folder of its object store is not there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", VARIABLE: str(seconds), "SLURMD_NODENAME": "node7"}
    options = [
        *("--block", "--head", "--node-ip-address=127.0.0.1", f"--port={free_port()}", "--include-dashboard=false"),
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
def test_a_start_that_fails_is_repeated_until_it_succeeds(folder):
    ray = started(folder, 600)
    try:
        told = next(line for line in ray.stderr if "trying again" in line)
        assert told.startswith("Ray did not start on node node7 (")
        (folder / "plasma").mkdir()
        assert ray.stdout.readline() == "Ray runs on this node.\n"
        children = psutil.Process(ray.pid).children(recursive=True)
        assert "raylet" in {child.name() for child in children}
    finally:
        ray.send_signal(signal.SIGTERM)
        ray.communicate(timeout=60)
    assert not psutil.wait_procs(children, timeout=60)[1]


@pytest.mark.real
def test_a_start_that_fails_for_too_long_is_an_error_that_names_the_node(folder):
    ray = started(folder, 0)
    out, err = ray.communicate(timeout=300)
    assert (ray.returncode, out) == (2, "")
    assert "error: Ray did not start on node node7 in 0 s and 1 attempt (" in err
    assert f"set {VARIABLE} to more seconds." in err


def test_a_ray_of_this_process_is_started_again_within_the_same_limit(monkeypatch, capsys):
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
    assert capsys.readouterr().err.count("trying again for another") == 2
    monkeypatch.setenv(VARIABLE, "0")
    with pytest.raises(UserError, match=r"in 0 s and 1 attempt \(The current node timed out"):
        _start_here(Ray(), 1)


@pytest.mark.parametrize("text", ["ten", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UserError, match=rf"{VARIABLE} \({text}\): expected the seconds"):
        Attempts()


def test_the_limit_is_ten_minutes_unless_told(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert start_seconds() == 600


def test_a_temporary_folder_with_a_long_path_is_named(tmp_path, monkeypatch):
    """Clusters that set TMPDIR to a folder of a job have such paths; Ray puts its sockets below it."""
    pytest.importorskip("ray")
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    with pytest.raises(UserError, match=f"{folder}, is too long .* set RAY_TMPDIR to a folder with a shorter path"):
        connect("local", cpus=1)


def test_the_address_of_a_dashboard_is_no_address_of_a_cluster():
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=r"^http://head:8265 is the address of a dashboard.*give HOST:PORT"):
        connect("http://head:8265")
