"""A build that is killed at any moment resumes, and ends with the bytes of one that was never stopped."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.data_pipeline.corpus.test_build import files_of
from tests.processes import command_of

PROGRAM = """
import sys
import data_pipeline.corpus.parts as parts
from megaptm.__main__ import main
parts.PART_BYTES = 40 << 10
main()
"""


def start(text: Path, out: Path, workers: int) -> subprocess.Popen:
    words = [f"out={out}", f"workers={workers}", "tokenizer.vocabulary=500", "validation=0.2", "shard_bytes=65536"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, "corpus", "build", str(text), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen) -> None:
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr.decode()


def finished_jobs(out: Path) -> int:
    return len(list(out.with_name(out.name + ".building").rglob("finished/*/*.json")))


def reused_jobs(out: Path) -> int:
    return json.loads((out / "report.json").read_text())["reused_jobs"]


@pytest.fixture(scope="module")
def unbroken(text, tmp_path_factory) -> tuple[dict[str, bytes], float]:
    out = tmp_path_factory.mktemp("unbroken") / "corpus"
    first_runner = time.monotonic()
    finish(start(text, out, workers=0))
    return files_of(out), time.monotonic() - first_runner


@pytest.mark.drill
def test_killed_build_continues(unbroken, text, tmp_path):
    expected, seconds = unbroken
    chance = random.Random(5)
    taken_over = []
    for number in range(10):
        out = tmp_path / f"{number}"
        process = start(text, out, workers=0)
        time.sleep(seconds * chance.uniform(0.2, 1.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if out.exists():  # it was finished
            assert files_of(out) == expected
            continue
        finished = finished_jobs(out)
        finish(start(text, out, workers=0))
        assert reused_jobs(out) == finished
        assert files_of(out) == expected
        taken_over.append(finished)
    assert max(taken_over) > 3


@pytest.mark.drill
@pytest.mark.real
def test_killed_driver_ends_workers(unbroken, text, tmp_path):
    expected, _ = unbroken
    process = start(text, tmp_path / "corpus", workers=2)
    deadline = time.monotonic() + 120
    while finished_jobs(tmp_path / "corpus") < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    rays = psutil.Process(process.pid).children(recursive=True)
    assert any("raylet" in ray.name() for ray in rays)
    # Its agents notice late that the head is gone; they run nothing of ours.
    rays = [ray for ray in rays if "Agent" not in " ".join(command_of(ray))]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _, alive = psutil.wait_procs(rays, timeout=60)
    assert alive == []
    finish(start(text, tmp_path / "corpus", workers=0))
    assert reused_jobs(tmp_path / "corpus") >= 3
    assert files_of(tmp_path / "corpus") == expected
