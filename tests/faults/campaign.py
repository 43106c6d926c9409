"""Make faults on a run: one after the other, each after the run has recovered from the last, or one a minute."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from tests.faults.history import SAVE_EVERY
from tests.faults.job import Job
from tests.faults.kinds import Kind
from tests.faults.outcomes import Outcome

STEPS_AFTER = 5
"""Number of steps after a fault that the run absorbs, in which a consequence would be visible."""
UNDISTURBED_SECONDS = 60.0
"""Seconds before and after the minutes with faults, in which the speed of the run is measured."""
TOLERANCE = 0.02
"""Share of steps by which a run may fall behind the theory."""


def hit(job: Job, kind: Kind, outcome: Outcome, rng: random.Random, *, when_ready: bool = True) -> Outcome:
    """Make a fault, and wait until the run has recovered from it. `when_ready`: first wait for new checkpoints.

    Any error becomes the problem of the outcome, and the run is started again.
    """
    try:
        if when_ready:
            job.wait_for(lambda: job.history.is_ready, "not two new checkpoints")
            job.run_for(rng.uniform(0.0, 1.0))
        job.history.fault = outcome
        job.history.signs.clear()
        _hit(job, kind, outcome, rng)
    except Exception as error:  # also of a fault that could not be made: the other faults are still of interest
        job.history.fault = outcome
        outcome.problem = str(error) or repr(error)
        job.restart()
    return outcome


def _hit(job: Job, kind: Kind, outcome: Outcome, rng: random.Random) -> None:
    history, fault, since = job.history, kind.make(job, rng), time.monotonic()
    outcome.detail = fault.detail

    def is_detected() -> bool:
        return kind.sign is None or history.seconds_until(kind.sign, since) is not None

    try:
        if fault.is_awaited:
            job.wait_for(fault.happened, "the fault did not happen")
            since = time.monotonic()
        outcome.step, history.is_ready = history.furthest, False
        job.wait_for(
            lambda: fault.happened() and (is_detected() or not fault.lasts_until_detected), "the fault had no effect"
        )
        job.run_for(since + fault.seconds - time.monotonic())
    finally:
        fault.undo()
    undone, saved = history.furthest, history.saved
    job.wait_for(is_detected, f"no {kind.sign}")
    outcome.detected = None if kind.sign is None else history.seconds_until(kind.sign, since)
    if kind.until == "restart":
        job.wait_for(lambda: history.seconds_until("resume", since) is not None)
        reached = history.furthest
        job.wait_for(lambda: history.furthest > reached)
        outcome.restarted = history.seconds_until("first-step", since)
    elif kind.until == "checkpoint":
        job.wait_for(lambda: history.saved > saved)
    else:
        job.wait_for(lambda: history.furthest > undone + 1)
    outcome.recovered = time.monotonic() - since
    if kind.until != "restart":
        job.wait_for(lambda: history.furthest > undone + STEPS_AFTER)


def hit_per_minute(
    job: Job, kind: Kind, minutes: int, rng: random.Random, record: Callable[[Outcome], None]
) -> tuple[str, bool]:
    """Make one fault a minute; return a summary, and whether the run made the share of steps that theory allows.

    Theory (docs/faults.md): a fault costs the seconds to the first step after the restart and, because it comes at a
    random time between two checkpoints, those of half of the steps between them and of a save.
    """
    history, outcomes = job.history, list[Outcome]()
    job.wait_for(lambda: history.is_ready, "not two new checkpoints")
    steps_before = _steps_in(job, UNDISTURBED_SECONDS)
    before, start = history.furthest, time.monotonic()
    for minute in range(minutes):
        job.run_for(start + 60 * minute + rng.uniform(0, 30) - time.monotonic())
        outcomes.append(hit(job, kind, Outcome(minute + 1, kind.name), rng, when_ready=False))
        record(outcomes[-1])
        job.run_for(start + 60 * (minute + 1) - time.monotonic())
    steps, elapsed = history.furthest - before, time.monotonic() - start
    rate = (steps_before + _steps_in(job, UNDISTURBED_SECONDS)) / (2 * UNDISTURBED_SECONDS)
    restart = statistics.median([outcome.restarted for outcome in outcomes if outcome.restarted is not None] or [60.0])
    save = statistics.mean(history.save_seconds)
    lost = (SAVE_EVERY / 2 - 1) / rate + save  # without the first step after the restart
    share, theory = steps / (rate * elapsed), 1 - minutes * (restart + lost) / elapsed
    return (
        f"one fault a minute ({kind.name}) for {minutes} minutes: {share:.1%} of the steps of an undisturbed run "
        f"({rate:.2f} a second); theory: {theory:.1%}, with {restart:.1f} s to the first step after a fault and "
        f"{lost:.1f} s of lost work ({save:.1f} s of it while a checkpoint is saved)"
    ), share >= theory - TOLERANCE


def _steps_in(job: Job, seconds: float) -> int:
    before = job.history.furthest
    job.run_for(seconds)
    return job.history.furthest - before
