"""Runs of tiny configs that are killed, and their cost."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from megaptm.config import load_config
from tests.drills.conftest import COSTS, TrainingCost
from tests.drills.program import TIMEOUT_SECONDS, checkpoints, family_of, last_step, start, wait_for
from tests.drills.tiny_corpora import tiny_config
from tests.processes import survivors

# One thread per process: on a busy core, two threads mostly wait for each other.
THREADS = "train.threads=1"


@contextmanager
def measure_cost(config: pytest.Config, family: str) -> Iterator[TrainingCost]:
    """Measure the cost of a training for the table at the end. The test adds the CPU seconds of killed processes."""
    before, start_time, spent = children_seconds(), time.monotonic(), TrainingCost(family)
    yield spent
    spent.cpu += children_seconds() - before
    spent.wall = time.monotonic() - start_time
    config.stash.setdefault(COSTS, []).append(spent)


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def kill_half_way(family: str, run: Path, *overrides: str, seconds: float = TIMEOUT_SECONDS) -> float:
    """Start a run; kill all its processes when it has a checkpoint and half of its steps.

    Return their CPU seconds, which `children_seconds` does not include.
    """
    steps = load_config(tiny_config(family), overrides).train.steps
    job = start("train", str(tiny_config(family)), *overrides, THREADS)
    wait_for(
        lambda: run.is_dir() and checkpoints(run) and last_step(run) >= steps // 2, job, every=0.1, seconds=seconds
    )
    ranks = family_of(job)
    cpu_seconds = sum(sum(process.cpu_times()[:2]) for process in ranks)
    job.kill()
    for process in ranks:
        process.kill()
    job.communicate(timeout=60)
    assert not survivors(ranks)
    assert checkpoints(run)[-1] < steps
    return cpu_seconds


def command(click_command: object, *words: str) -> str:
    result = CliRunner().invoke(click_command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
