"""Training loop: data, step, metrics, validation, checkpoints, and stop requests."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megaptm.config import Config
from megaptm.config.learning_rate import learning_rate_at
from megaptm.data.loader import LostWorkerError
from megaptm.errors import EXIT_CONTINUE, FailureError, UserError, storage_errors_as_user_errors
from megaptm.objectives import BaseObjective, weights_at
from megaptm.parallel.collectives import all_gather_object, any_rank, barrier
from megaptm.parallel.step_result import REMEDY, DivergedError, NothingAskedError, StepResult
from megaptm.plugins import PluginError
from megaptm.resilience.heartbeat import Heartbeat
from megaptm.resilience.signals import GRACE_SECONDS, StopError, StopRequest
from megaptm.train.checkpointer import Checkpointer
from megaptm.train.lost_loader import explained_loss
from megaptm.train.metrics import SecondsSpent, StepReport
from megaptm.train.training_engine import TrainingEngine

SPENT_ON = {"step": "productive", "saving": "checkpoint"}
"""Phase -> field of `SecondsSpent`, if the names differ."""


EARLIER_STANDS = "what was saved earlier stands: mend that, and start the run again."

LAST = object()
"""Marker of the end of the batches."""


@dataclass
class Training:
    """State of the loop, opened by `train.run`."""

    config: Config
    objective: BaseObjective
    engine: TrainingEngine
    microbatches: Iterator[Any]
    """Each step's micro-batches on tensor rank 0, None on other ranks."""
    held_out: Callable[[], Iterator[Any]]
    checkpointer: Checkpointer
    stop: StopRequest
    seconds: SecondsSpent
    report: StepReport | None
    """Only on rank 0."""
    heartbeat: Heartbeat

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Announce a phase of the loop to the watchdog and count its seconds."""
        with self.heartbeat.during(phase), self.seconds.spent_on(SPENT_ON.get(phase, phase)):
            yield


def train(run: Training, *, start: int) -> int:
    """Train from step `start` to the configured end. Return the exit code: 0, or EXIT_CONTINUE after a stop request."""
    config = run.config.train
    given, unreadable = _try_to_read(run, start) if start < config.steps else (None, None)
    if any_rank(isinstance(unreadable, StopError)):
        return EXIT_CONTINUE
    if mistake := _first_mistake(unreadable):
        raise mistake
    for step in range(start, config.steps):
        rate = learning_rate_at(run.config, step, rose=run.checkpointer.held_out.rose)
        assert given is not None
        batches, weights = given
        if weights != run.engine.losses:
            run.engine.weigh(weights)
        try:
            result = _step(run, batches, step, rate)
        except NothingAskedError as error:
            not_saved = None
            if step > start and step % run.config.checkpoint.every:
                not_saved = _save(run, step, wait=True)
            else:
                _finish_saving(run)
            raise _saved_at(step, error, not_saved) from None
        done = step + 1
        last = done == config.steps
        if run.report is not None:
            run.report.step(done, result, rate)
        # Read here, not at the start of the next step: one agreement per step covers all reasons to end the run.
        given, unreadable = _try_to_read(run, done) if not last else (None, None)
        if last or (config.validate_every is not None and done % config.validate_every == 0):
            unreadable = _validate(run, done, unreadable)
        stopping = any_rank(run.stop.requested or config.stop_at == done or unreadable is not None)
        not_saved = None
        if last or stopping or done % run.config.checkpoint.every == 0:
            not_saved = _save(run, done, wait=last or stopping or not run.config.checkpoint.asynchronous)
        else:
            run.checkpointer.advance()
        if (last or stopping) and (mistake := _first_mistake(unreadable)):
            raise _saved_at(done, mistake, not_saved)
        if (last or stopping) and not_saved is not None:
            raise UserError(f"the run ends at step {done:,}, which is not saved: {not_saved}; {EARLIER_STANDS}")
        if stopping and not last:
            _tell_who_was_asked(run, done)
            return EXIT_CONTINUE
    return 0


def _first_mistake(mine: Exception | None) -> UserError | None:
    """Return the first error of any rank, so that all ranks, and the journal, end with the same exit code. All ranks
    call this.

    A bug (no UserError) is raised here on its own rank; the other ranks wait to be terminated.
    """
    if isinstance(mine, PluginError):
        print(mine.traceback, file=sys.stderr, flush=True)
    ours = mine is not None and not isinstance(mine, UserError | StopError)
    told = all_gather_object(
        (ours, (isinstance(mine, FailureError), str(mine)) if isinstance(mine, UserError) else None)
    )
    if mine is not None and ours:
        raise mine
    if any(failed for failed, _ in told):
        barrier()  # never passes: the rank with the bug exits, and its error should be reported first
    mistakes = [mistake for _, mistake in told if mistake is not None]
    return next((FailureError(sentence) if failed else UserError(sentence) for failed, sentence in mistakes), None)


def _saved_at(step: int, mistake: UserError, not_saved: str | None = None) -> UserError:
    """Return the error with the step that was saved, or with the reason why that step was not saved."""
    if not step:
        return mistake
    saved = f"the run is saved at step {step}." if not_saved is None else f"nor is step {step} saved: {not_saved}"
    earlier = f"; {EARLIER_STANDS}" if not_saved else ""
    kind = FailureError if isinstance(mistake, FailureError) else UserError
    return kind(f"{str(mistake).removesuffix('.')}; {saved}{earlier}")


def _tell_who_was_asked(run: Training, step: int) -> None:
    """Report a signal that only another rank received. Rank 0 has the journal, which must contain the reason of the
    stop."""
    names = all_gather_object(run.stop.name)
    if run.stop.name is None:
        asked = next(((rank, name) for rank, name in enumerate(names) if name is not None), None)
        if asked is not None:
            run.stop.name = asked[1]
            if run.report is not None:
                run.report.asked_to_stop(step, *asked)


def _step(run: Training, batches: Any, step: int, rate: float) -> StepResult:
    try:
        with run.during("step"):
            return run.engine.step(batches, step=step, lr=rate)
    except DivergedError:
        _finish_saving(run)
        raise


def _finish_saving(run: Training) -> None:
    """Finish the checkpoint in progress after a failed step; it is from an earlier, valid step."""
    with run.during("saving"):
        run.checkpointer.finish()


def _try_to_read(run: Training, step: int) -> tuple[tuple[Any, dict[str, float]] | None, Exception | None]:
    """Return the micro-batches and weights of a step, or the exception: whatever it is, earlier steps can still be
    saved."""
    try:
        weights = weights_at(run.objective, step)
        with run.during("data"), run.stop.ends_waiting():
            return (next(run.microbatches), weights), None
    except LostWorkerError as error:
        return None, explained_loss(error, run.config)
    except Exception as error:
        return None, error


def mean_losses(engine: TrainingEngine, batches: Iterator[Any]) -> dict[str, float]:
    """Return the mean of each loss over all its labels in the batches, and `loss`, their weighted sum. Losses without
    labels are absent."""
    sums = dict.fromkeys(engine.losses, 0.0)
    counts = dict.fromkeys(engine.losses, 0)
    for micro_batches in batches:
        result = engine.evaluate(micro_batches)
        for name, mean in result.losses.items():
            sums[name] += mean * result.counts[name]
            counts[name] += result.counts[name]
    means = {name: sums[name] / counts[name] for name in sums if counts[name]}
    return {"loss": sum(engine.losses[name] * mean for name, mean in means.items()), **means}


def _validate(run: Training, step: int, unreadable: Exception | None) -> Exception | None:
    """Validate, unless some process cannot read its batches. Return the exception of this process, if any."""
    try:
        with run.during("validation"):
            means = mean_losses(run.engine, _read_together(run, unreadable))
    except _UnreadableError as error:
        return error.mine
    run.checkpointer.held_out.add(step, means["loss"])
    if run.report is not None:
        run.report.validation(step, means)
    if any_rank(not math.isfinite(means["loss"])):
        _finish_saving(run)
        raise DivergedError(f"the validation loss after step {step} is {means['loss']}, so it was not saved; {REMEDY}")
    return None


class _UnreadableError(Exception):
    """Some process cannot read its batches."""

    def __init__(self, mine: Exception | None) -> None:
        self.mine = mine
        """Exception of this process, if any."""
        super().__init__()


def _read_together(run: Training, unreadable: Exception | None) -> Iterator[Any]:
    """Yield the validation batches, equally many on all processes, each when all have read it; only one is held in
    memory.

    Raise _UnreadableError on all processes if one cannot read a batch.
    """
    batches: Iterator[Any] | None = None
    batch, waited = None, 0.0
    while True:
        begun = time.monotonic()
        try:
            if unreadable is None:
                with run.stop.ends_waiting(), storage_errors_as_user_errors("a corpus"):
                    batches = run.held_out() if batches is None else batches
                    batch = next(batches, LAST)
                # The grace period applies to each batch; this limits the sum.
                waited += time.monotonic() - begun if run.stop.requested else 0.0
                if waited > GRACE_SECONDS:
                    raise StopError
        except LostWorkerError as error:
            unreadable = explained_loss(error, run.config)
        except Exception as error:  # whatever it is, earlier steps can still be saved
            unreadable = error
        if any_rank(unreadable is not None):
            raise _UnreadableError(unreadable)
        if batch is LAST:
            return
        yield batch


def _save(run: Training, step: int, *, wait: bool) -> str | None:
    """Save a checkpoint; return the reason of a failure, if it is already known."""
    before = run.seconds.checkpoint
    with run.during("saving"):
        not_saved = run.checkpointer.save(step, wait=wait)
    if run.report is not None:
        run.report.stalled(step, run.seconds.checkpoint - before)
    return not_saved
