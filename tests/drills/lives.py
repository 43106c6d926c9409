"""Runs of tiny configs that are killed, and what they cost."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from megaptm.config import load
from tests.drills.conftest import SPENT, Spent
from tests.drills.program import TIMEOUT_SECONDS, checkpoints, family_of, last_step, start, wait_for
from tests.drills.tiny_corpora import tiny_config
from tests.processes import survivors

# One thread a process: two that share a busy core wait for each other more than they compute.
THREADS = "train.threads=1"


@contextmanager
def spending(config: pytest.Config, family: str) -> Iterator[Spent]:
    """What a training costs, for the table at the end; of who is killed, the test must add it."""
    before, begun, spent = children_seconds(), time.monotonic(), Spent(family)
    yield spent
    spent.cpu += children_seconds() - before
    spent.wall = time.monotonic() - begun
    config.stash.setdefault(SPENT, []).append(spent)


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def killed_half_way(family: str, run: Path, *overrides: str, seconds: float = TIMEOUT_SECONDS) -> float:
    """Start a run, and kill all its processes when it has a checkpoint and has made half of its steps.

    CPU seconds that nobody waited for, and that are not in `children_seconds` therefore.
    """
    steps = load(tiny_config(family), overrides).train.steps
    job = start("train", str(tiny_config(family)), *overrides, THREADS)
    wait_for(
        lambda: run.is_dir() and checkpoints(run) and last_step(run) >= steps // 2, job, every=0.1, seconds=seconds
    )
    ranks = family_of(job)
    used = sum(sum(process.cpu_times()[:2]) for process in ranks)
    job.kill()
    for process in ranks:
        process.kill()
    job.communicate(timeout=60)
    assert not survivors(ranks)
    assert checkpoints(run)[-1] < steps
    return used


def command(one: object, *words: str) -> str:
    done = CliRunner().invoke(one, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout
