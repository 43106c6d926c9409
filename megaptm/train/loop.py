"""The loop: data, step, what is said about it, validation, checkpoints, and stopping when asked."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megaptm.config import Config
from megaptm.config.learning_rate import rate_of
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
"""Phase -> the field of `SecondsSpent` that it counts in, where that has another name."""


EARLIER_STANDS = "what was saved earlier stands: mend that, and start the run again."

LAST = object()
"""Where no batch comes any more."""


@dataclass
class Training:
    """What the loop works on, opened by `train.run`."""

    config: Config
    objective: BaseObjective
    engine: TrainingEngine
    microbatches: Iterator[Any]
    """Each step's micro-batches on tensor rank 0, `None` elsewhere."""
    held_out: Callable[[], Iterator[Any]]
    checkpointer: Checkpointer
    stop: StopRequest
    seconds: SecondsSpent
    report: StepReport | None
    """On rank 0."""
    heartbeat: Heartbeat

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase of the loop, told to who watches the run, its seconds counted."""
        with self.heartbeat.during(phase), self.seconds.spent_on(SPENT_ON.get(phase, phase)):
            yield


def train(run: Training, *, start: int) -> int:
    """Train from step `start` to the configured end; returns the exit code: 0, or "continue me" when asked to stop."""
    config = run.config.train
    given, unreadable = _try_to_read(run, start) if start < config.steps else (None, None)
    if any_rank(isinstance(unreadable, StopError)):
        return EXIT_CONTINUE
    if mistake := _first_mistake(unreadable):
        raise mistake
    for step in range(start, config.steps):
        rate = rate_of(run.config, step, rose=run.checkpointer.held_out.rose)
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
        # Here, and not where the next step begins, so that one agreement a step covers all that may end the run.
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
    """All ranks ask: all end by one rank's mistake, and the journal with the code that the command ends with.

    What is no mistake of a user's is raised here, on the rank where it is; the others wait to be ended.
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
        barrier()  # in vain: the rank where the program failed ends, and should be the first to be heard
    mistakes = [mistake for _, mistake in told if mistake is not None]
    return next((FailureError(sentence) if failed else UserError(sentence) for failed, sentence in mistakes), None)


def _saved_at(step: int, mistake: UserError, not_saved: str | None = None) -> UserError:
    """The mistake with the step that is saved, or why that step is not."""
    if not step:
        return mistake
    saved = f"the run is saved at step {step}." if not_saved is None else f"nor is step {step} saved: {not_saved}"
    earlier = f"; {EARLIER_STANDS}" if not_saved else ""
    kind = FailureError if isinstance(mistake, FailureError) else UserError
    return kind(f"{str(mistake).removesuffix('.')}; {saved}{earlier}")


def _tell_who_was_asked(run: Training, step: int) -> None:
    """A signal to another rank than rank 0, which has the journal: a run must not end for no reason that is told."""
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
    """Where the numbers are no longer good: the checkpoint under way is of a step when they were."""
    with run.during("saving"):
        run.checkpointer.finish()


def _try_to_read(run: Training, step: int) -> tuple[tuple[Any, dict[str, float]] | None, Exception | None]:
    """A step's micro-batches and weights, or why there are none: whatever it is, the steps before can be saved."""
    try:
        weights = weights_at(run.objective, step)
        with run.during("data"), run.stop.ends_waiting():
            return (next(run.microbatches), weights), None
    except LostWorkerError as error:
        return None, explained_loss(error, run.config)
    except Exception as error:
        return None, error


def mean_losses(engine: TrainingEngine, batches: Iterator[Any]) -> dict[str, float]:
    """Each loss's mean over what all batches ask, where they do, and `loss`, their weighted sum."""
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
    """Measure, unless some process cannot read what it needs; why, if it is this one."""
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
    """Some process cannot read what it needs."""

    def __init__(self, mine: Exception | None) -> None:
        self.mine = mine
        """Why, if it is this one."""
        super().__init__()


def _read_together(run: Training, unreadable: Exception | None) -> Iterator[Any]:
    """The held-out batches, of which all processes have as many, each when all have read it: one is held, however many
    there are. `_UnreadableError` in all of them where one cannot."""
    batches: Iterator[Any] | None = None
    batch, waited = None, 0.0
    while True:
        begun = time.monotonic()
        try:
            if unreadable is None:
                with run.stop.ends_waiting(), storage_errors_as_user_errors("a corpus"):
                    batches = run.held_out() if batches is None else batches
                    batch = next(batches, LAST)
                # Of each batch it is told anew how long it may wait.
                waited += time.monotonic() - begun if run.stop.requested else 0.0
                if waited > GRACE_SECONDS:
                    raise StopError
        except LostWorkerError as error:
            unreadable = explained_loss(error, run.config)
        except Exception as error:  # whatever it is, the steps before can be saved
            unreadable = error
        if any_rank(unreadable is not None):
            raise _UnreadableError(unreadable)
        if batch is LAST:
            return
        yield batch


def _save(run: Training, step: int, *, wait: bool) -> str | None:
    """Save; returns why that was given up, where that is known already."""
    before = run.seconds.checkpoint
    with run.during("saving"):
        not_saved = run.checkpointer.save(step, wait=wait)
    if run.report is not None:
        run.report.stalled(step, run.seconds.checkpoint - before)
    return not_saved
