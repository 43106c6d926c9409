"""Training loop: data, step, metrics, validation, checkpoints, and stop requests."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megaptm.config import Config
from megaptm.config.learning_rate import learning_rate_at
from megaptm.data.loader import LostWorkerError
from megaptm.errors import EXIT_CONTINUE, FailureError, UserError, storage_errors_as_user_errors
from megaptm.objectives import BaseObjective, loss_weights_at
from megaptm.parallel.collectives import all_gather_object, any_rank, any_rank_each, barrier
from megaptm.parallel.replicas import ReplicaError
from megaptm.parallel.step_result import REMEDY, DivergedError, NoLabelsError, RollBackError, StepResult
from megaptm.plugins import PluginError
from megaptm.resilience.heartbeat import Heartbeat
from megaptm.resilience.signals import GRACE_SECONDS, StopError, StopRequest
from megaptm.train.callbacks import Callbacks
from megaptm.train.checkpointer import Checkpointer
from megaptm.train.lost_loader import explain_lost_worker
from megaptm.train.metrics import SecondsSpent, StepReport
from megaptm.train.profiler import StepProfiler
from megaptm.train.stragglers import Stragglers
from megaptm.train.training_engine import TrainingEngine

SPENT_ON = {"step": "productive", "saving": "checkpoint"}
"""Fields of `SecondsSpent` by phase of the training loop, where their names differ."""


AFTER_DEVIATION = (
    "started again, the run continues from its last checkpoint, where they agreed. If the same rank deviates again, "
    "exclude its node."
)
AFTER_FAILED_SAVE = "earlier checkpoints are kept. Correct the cause and start the run again."

END_OF_BATCHES = object()
"""Marker of the end of the validation batches."""


@dataclass
class Training:
    """State of the training loop, opened by `train.run`."""

    config: Config
    objective: BaseObjective
    engine: TrainingEngine
    microbatches: Iterator[Any]
    """Micro-batches of each step on tensor rank 0, None on other ranks."""
    validation_batches: Callable[[str], Iterator[Any]]
    """Batches of a validation set by its name; an empty name is the mix."""
    checkpointer: Checkpointer
    stop: StopRequest
    seconds: SecondsSpent
    callbacks: Callbacks
    """Callbacks of the run, only on rank 0: the report of each step, and those of the user."""
    heartbeat: Heartbeat
    profiler: StepProfiler
    stragglers: Stragglers
    end: int
    """Last step of the present phase of the run."""

    @property
    def report(self) -> StepReport | None:
        """Report of each step, only on rank 0."""
        return self.callbacks.report

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Announce a phase of the loop to the watchdog and count its seconds."""
        with self.heartbeat.during(phase), self.seconds.spent_on(SPENT_ON.get(phase, phase)):
            yield


def run_training_loop(run: Training, *, start: int) -> int | None:
    """Train from step `start` to the end of the phase. Return the exit code: 0, EXIT_CONTINUE after a stop request, or
    None if another phase follows."""
    config = run.config.train
    if _stops_early(run):
        return 0
    inputs, read_error = _read_step(run, start) if start < run.end else (None, None)
    if validates := _lacks_validation(run, start):
        read_error = _make_up_for_validation(run, start, read_error)
    if any_rank(isinstance(read_error, StopError)):
        return EXIT_CONTINUE
    if error := _first_user_error(read_error or run.callbacks.take_error()):
        raise error
    if validates:
        is_complete, _ = any_rank_each(*run.callbacks.take_requests())  # the step is saved
        if is_complete or start == run.end:
            _save_checkpoint(run, start, wait=True)  # with the validation
            return 0
    for step in range(start, run.end):
        rate = learning_rate_at(run.config, step, rose=run.checkpointer.held_out.rose)
        assert inputs is not None
        batches, weights = inputs
        if weights != run.engine.losses:
            run.engine.set_loss_weights(weights)
        try:
            result = _train_step(run, batches, step, rate)
        except RollBackError as rejected:
            return _roll_back(run, step, rejected.spike)
        except NoLabelsError as no_labels:
            _finish_saving(run)  # of this step, perhaps, which may fail
            is_saved = step == run.checkpointer.step
            not_saved = None if is_saved else _save_checkpoint(run, step, wait=True)
            raise _with_saved_step(step, no_labels, not_saved) from None
        done = step + 1
        is_last, ends_phase = done == config.steps, done == run.end
        with run.during("callbacks"):
            run.callbacks.step_end(done, rate, result)
        # Read here, not at the start of the next step: one agreement per step covers all reasons to end the run.
        inputs, read_error = _read_step(run, done) if not ends_phase else (None, None)
        if ends_phase or (config.validate_every is not None and done % config.validate_every == 0):
            read_error = _validate(run, done, read_error)
        has_failed = read_error is not None or run.callbacks.error is not None
        is_due = run.checkpointer.is_due(done)
        with run.seconds.spent_on("data"):  # of the slowest rank
            stopping, is_complete, wants_save, saves = any_rank_each(
                run.stop.requested or config.stop_at == done or has_failed, *run.callbacks.take_requests(), is_due
            )
        is_last = is_last or is_complete
        if (times := run.stragglers.exchange(done)) is not None and run.report is not None:
            run.report.add_rank_times(times)
        if run.profiler.ends(done, stopping=stopping):
            _write_trace(run, done)
        not_saved = None
        waits = is_last or ends_phase or stopping
        saves = saves or waits or wants_save
        _check_replicas(run, done, saves=saves)
        if saves:
            not_saved = _save_checkpoint(run, done, wait=waits or not run.config.checkpoint.asynchronous)
        else:
            run.checkpointer.advance()
        # Read after the last save, which asks callbacks for their state.
        if waits and (error := _first_user_error(read_error or run.callbacks.take_error())):
            raise _with_saved_step(done, error, not_saved)
        if waits and not_saved is not None:
            raise UserError(f"the run ends at step {done:,}, which was not saved: {not_saved}; {AFTER_FAILED_SAVE}")
        if stopping and not is_last:
            _report_stop(run, done)
            return EXIT_CONTINUE
        if is_last:
            break
        if ends_phase:
            return None
    return 0


def _first_user_error(own: Exception | None) -> UserError | None:
    """Return the first error of any rank in a training step, so that all ranks, and the journal, end with the same exit
    code. All ranks call this.

    A bug (no UserError) is raised here on its own rank; the other ranks wait to be terminated.
    """
    if isinstance(own, PluginError):
        print(own.traceback, file=sys.stderr, flush=True)
    is_bug = own is not None and not isinstance(own, UserError | StopError)
    message = (isinstance(own, FailureError), str(own)) if isinstance(own, UserError) else None
    by_rank = all_gather_object((is_bug, message))
    if own is not None and is_bug:
        raise own
    if any(is_bug for is_bug, _ in by_rank):
        barrier()  # never passes: the rank with the bug exits, and its error should be reported first
    messages = [message for _, message in by_rank if message is not None]
    return next((FailureError(text) if is_failure else UserError(text) for is_failure, text in messages), None)


def _with_saved_step(step: int, error: UserError, not_saved: str | None = None) -> UserError:
    """Return the error of a training step, extended by the step that was saved, or by the reason why it was not
    saved."""
    if not step:
        return error
    if not_saved is None:
        outcome = f"the run is saved at step {step}."
    else:
        outcome = f"step {step} was not saved either: {not_saved}; {AFTER_FAILED_SAVE}"
    kind = FailureError if isinstance(error, FailureError) else UserError
    return kind(f"{str(error).removesuffix('.')}; {outcome}")


def _report_stop(run: Training, step: int) -> None:
    """Report a stop signal that only another rank received. Rank 0 has the journal, which must contain the reason of
    the stop."""
    signal_names = all_gather_object(run.stop.name)
    if run.stop.name is None:
        signaled = next(((rank, name) for rank, name in enumerate(signal_names) if name is not None), None)
        if signaled is not None:
            run.stop.name = signaled[1]
            if run.report is not None:
                run.report.report_stop(step, *signaled)


def _train_step(run: Training, batches: Any, step: int, rate: float) -> StepResult:
    try:
        with run.during("step"), run.profiler.profile_step(step + 1), run.stragglers.measure(step + 1):
            return run.engine.train_step(batches, step=step, lr=rate)
    except (DivergedError, RollBackError) as rejected:
        _refuse_deviation(run, f" when step {step + 1:,} was rejected")
        if isinstance(rejected, DivergedError):
            _finish_saving(run)
        raise


def _roll_back(run: Training, step: int, spike: str) -> int:
    """Let the run continue from its newest checkpoint, without the batches from there to the spike. Return the exit
    code."""
    _finish_saving(run)
    with run.during("saving"):
        message = run.checkpointer.roll_back(step + 1, spike)
    if run.report is not None:
        run.report.add_note(step + 1, message)
    return EXIT_CONTINUE


def _check_replicas(run: Training, step: int, *, saves: bool) -> None:
    """Compare the replicas of the weights if it is time, or if they are about to be saved. Raise ReplicaError on all
    ranks if they differ."""
    every = run.config.train.check_replicas_every
    if saves or (every is not None and step % every == 0):
        _refuse_deviation(run, f" after step {step:,}, which is not saved")


def _refuse_deviation(run: Training, when: str) -> None:
    """Compare the replicas of the weights, unless `train.check_replicas_every` is null. Raise ReplicaError on all ranks
    if they differ. A deviation may be the cause of a rejected step; skipping its text would then be wrong."""
    if run.config.train.check_replicas_every is None:
        return
    try:
        with run.during("step"):
            run.engine.check_replicas()
    except ReplicaError as error:
        _finish_saving(run)
        raise ReplicaError(f"{error}{when}; {AFTER_DEVIATION}") from None


def _write_trace(run: Training, step: int) -> None:
    with run.heartbeat.during("saving"):
        trace = run.profiler.finish(step)
    if run.report is not None:
        run.report.add_trace(step, trace)


def _finish_saving(run: Training) -> None:
    """Finish the checkpoint in progress after a failed step; that checkpoint is from an earlier, valid step."""
    with run.during("saving"):
        run.checkpointer.finish()


def _read_step(run: Training, step: int) -> tuple[tuple[Any, dict[str, float]] | None, Exception | None]:
    """Return the micro-batches and loss weights of a training step. Return any exception instead of raising it, so that
    earlier steps can still be saved."""
    try:
        weights = loss_weights_at(run.objective, step)
        with run.during("data"), run.stragglers.reading_data(), run.stop.interrupt_waits():
            return (next(run.microbatches), weights), None
    except LostWorkerError as error:
        return None, explain_lost_worker(error, run.config)
    except Exception as error:
        return None, error


def mean_losses(engine: TrainingEngine, batches: Iterator[Any]) -> dict[str, float]:
    """Return the mean of each validation loss over all its labels in the batches, and `loss`, their weighted sum.
    Losses without labels are absent."""
    sums = dict.fromkeys(engine.losses, 0.0)
    counts = dict.fromkeys(engine.losses, 0)
    for micro_batches in batches:
        result = engine.evaluate(micro_batches)
        for name, mean in result.losses.items():
            sums[name] += mean * result.counts[name]
            counts[name] += result.counts[name]
    means = {name: sums[name] / counts[name] for name in sums if counts[name]}
    return {"loss": sum(engine.losses[name] * mean for name, mean in means.items()), **means}


def _lacks_validation(run: Training, step: int) -> bool:
    """Whether the checkpoint from which the run continues was saved without the validation of its step: a signal or an
    error came first, or the config had another interval. The same on all ranks."""
    every = run.config.train.validate_every
    is_due = step > 0 and every is not None and step % every == 0
    return is_due and step not in run.checkpointer.held_out.losses.get("loss", {})


def _make_up_for_validation(run: Training, step: int, read_error: Exception | None) -> Exception | None:
    """Validate as `_validate` does, or use the losses of an earlier job that ended before it saved them."""
    if (losses := run.checkpointer.find_late_validation(step)) is not None:
        _use_validation(run, step, losses)
        return read_error
    run.engine.set_loss_weights(loss_weights_at(run.objective, step - 1))
    read_error = _validate(run, step, read_error)
    run.checkpointer.record_late_validation(step)
    return read_error


def _validate(run: Training, step: int, read_error: Exception | None) -> Exception | None:
    """Validate, unless some process cannot read its batches, or must stop. Return the exception of this process, if
    any."""
    may_stop = step != run.end  # else the run, or its phase, is complete, and no job makes up for the validation
    try:
        with run.during("validation"):
            of_mix = mean_losses(run.engine, _validation_batches(run, "", read_error, may_stop=may_stop))
        means = dict(of_mix)
        sets = run.config.data.validation_sets
        for name in (name for name, own in sets.items() if own.is_due(step, last=run.end)):
            with run.during("validation"):  # each set has the time that the watchdog allows for one
                own = mean_losses(run.engine, _validation_batches(run, name, read_error, may_stop=may_stop))
            means |= {f"{name}/{loss}": value for loss, value in own.items() if len(own) > 1}
    except _UnreadableError as error:
        return error.own
    _use_validation(run, step, means)
    diverged = next((value for value in of_mix.values() if not math.isfinite(value)), None)
    if any_rank(diverged is not None):
        _finish_saving(run)
        not_saved = "" if step == run.checkpointer.step else ", so it was not saved"
        raise DivergedError(f"the validation loss after step {step} is {diverged}{not_saved}; {REMEDY}")
    return None


def _use_validation(run: Training, step: int, losses: Mapping[str, float]) -> None:
    """Use validation losses for schedules, retained checkpoints, early stopping and callbacks."""
    # One odd sample of a set that is only watched does not end the run, and its loss is not compared with others.
    compared = {name: value for name, value in losses.items() if math.isfinite(value) or "/" not in name}
    run.checkpointer.held_out.add(step, compared)
    run.checkpointer.early_stop.add(compared)
    _stops_early(run)
    with run.during("callbacks"):
        run.callbacks.validation(losses)


def _stops_early(run: Training) -> bool:
    """Whether `train.stop` ends the run, which it then requests. All ranks have the same validation losses."""
    reason = run.checkpointer.early_stop.reason()
    if reason is not None:
        run.callbacks.state.request_stop(reason)
    return reason is not None


class _UnreadableError(Exception):
    """Raised on all ranks if some rank cannot read its validation batches, or must stop."""

    def __init__(self, own: Exception | None) -> None:
        self.own = own
        """Exception of this rank when it read validation batches, if any."""
        super().__init__()


def _validation_batches(
    run: Training, name: str, read_error: Exception | None, *, may_stop: bool = False
) -> Iterator[Any]:
    """Yield the batches of a validation set, equally many on all ranks, each when all have read it; only one is held in
    memory.

    Raise _UnreadableError on all ranks if one cannot read a batch, or is to stop. Without `may_stop`, only the time of
    reading counts.
    """
    batches: Iterator[Any] | None = None
    batch, waited = None, 0.0
    while True:
        start_time = time.monotonic()
        try:
            if read_error is None:
                with run.stop.interrupt_waits(), storage_errors_as_user_errors("a corpus"):
                    batches = run.validation_batches(name) if batches is None else batches
                    batch = next(batches, END_OF_BATCHES)
                # The grace period applies to each batch; this limits the sum.
                waited += time.monotonic() - start_time if run.stop.requested else 0.0
                if waited > GRACE_SECONDS or (may_stop and run.stop.seconds > GRACE_SECONDS):
                    raise StopError
        except LostWorkerError as error:
            read_error = explain_lost_worker(error, run.config)
        except Exception as error:  # whatever it is, earlier steps can still be saved
            read_error = error
        if any_rank(read_error is not None):
            raise _UnreadableError(read_error)
        if batch is END_OF_BATCHES:
            return
        yield batch


def _save_checkpoint(run: Training, step: int, *, wait: bool) -> str | None:
    """Save a checkpoint after a training step; return the reason of a failure, if it is already known."""
    before = run.seconds.checkpoint
    with run.during("saving"):
        not_saved = run.checkpointer.save(step, wait=wait)
    waited = run.seconds.checkpoint - before
    if run.checkpointer.timer is not None:
        run.checkpointer.timer.add_save(waited if not_saved is None else None)
    if run.report is not None:
        run.report.add_checkpoint_wait(step, waited)
    return not_saved
