"""Checkpoints of a run: restored at the start, saved by all ranks together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from megaptm import __version__
from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.checkpoint.committed import FOLDER
from megaptm.checkpoint.files import NotSavedError
from megaptm.checkpoint.host_staging import HostStaging
from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.parallel.background import Background, run_on_all_ranks
from megaptm.parallel.collectives import all_gather_object, broadcast_object
from megaptm.plan.count import count_parameters
from megaptm.resilience.events import (
    AbandonedCheckpointEvent,
    CheckpointEvent,
    DamagedCheckpointEvent,
    Events,
    LateValidationEvent,
    NotSavedEvent,
    ResumeEvent,
    StartEvent,
    last_saved_step,
)
from megaptm.resilience.lock import RunLock
from megaptm.run.back import roll_back
from megaptm.run.compatibility import (
    compatibility_record,
    continues_with_other_data,
    find_abandoned,
    objective_files,
    read_checkpoint_state,
    recorded_layout,
    refuse_earlier_phase,
    refuse_other_files,
    refuse_other_model,
    refuse_other_text,
)
from megaptm.run.held_out import FIELD as HELD_OUT
from megaptm.run.held_out import HeldOutLoss, find_late_validation, held_out_recipes, refuse_unknown_metric
from megaptm.run.hooks import run_hooks
from megaptm.run.rank import RankEnvironment
from megaptm.spec import LayerlessSpec, ModelSpec
from megaptm.train.batch_source import StepSource
from megaptm.train.callbacks import STATE as CALLBACKS
from megaptm.train.callbacks import Callbacks
from megaptm.train.copy_thread import CopyThread
from megaptm.train.early_stop import FIELD as EARLY_STOP
from megaptm.train.early_stop import build_early_stop
from megaptm.train.save_timer import SaveTimer
from megaptm.train.token_count import FIELD as TOKENS
from megaptm.train.token_count import TokenCount
from megaptm.train.training_engine import TrainingEngine

log = logging.getLogger(__name__)


class Checkpointer:
    """Writer and reader of a run's checkpoints on one rank; rank 0 holds the lock and the journal."""

    def __init__(
        self,
        run: Path,
        config: Config,
        engine: TrainingEngine,
        spec: ModelSpec | LayerlessSpec,
        source: StepSource,
        rank_env: RankEnvironment,
        *,
        lock: RunLock | None,
        events: Events | None,
        callbacks: Callbacks,
        copies: Sequence[CopyThread] = (),
    ) -> None:
        self.config, self.engine, self.spec, self.source = config, engine, spec, source
        self.rank_env, self.events = rank_env, events
        self.compatibility = compatibility_record(spec, source.tokenizer.fingerprint)
        self.extensions = [(hook, hook.state(config)) for hook in run_hooks(config)]
        """Hooks of extensions, whose state checkpoints contain."""
        self.files: dict[str, str] = broadcast_object(objective_files(config) if lock else {})
        self.store = CheckpointStore(
            run,
            keep=config.checkpoint.keep.last,
            fence=lock.is_held if lock else None,
            token=broadcast_object(lock.token if lock else ""),
            on_damaged=self._report_damaged,
            retained=self._retained_steps,
        )
        self.copies = copies
        self.callbacks = callbacks
        self.callback_state: Mapping[str, Any] = {}
        """State of the callbacks in the restored checkpoint."""
        self.layout_before: Mapping[str, Any] = {}
        """Layout that wrote the restored checkpoint."""
        self.has_restored = False
        """Whether there was a checkpoint to restore; the checkpoint of an imported model has step 0."""
        self.held_out = HeldOutLoss(held_out_recipes(config))
        """Validation losses of the run, which checkpoints contain; the training loop updates them."""
        self.token_count = TokenCount.from_batch(source.train.batch_spec, config, spec)
        nodes = all_gather_object(rank_env.local_rank).count(0)
        self.timer = SaveTimer(config.checkpoint, nodes) if lock else None
        """Times of checkpoints by `checkpoint.every`, only on rank 0."""
        self.step = 0
        """Step of the last checkpoint: restored, saved or in progress."""
        self._earlier_step = 0
        """Step of the checkpoint before the one in progress."""
        self._failed_saves = 0
        """Number of checkpoints that could not be written since the last one, only on rank 0."""
        self.early_stop = build_early_stop(config, engine.losses)
        refuse_unknown_metric("checkpoint.keep.best.metric", config.checkpoint.keep.best.metric, config, engine.losses)
        self._background, self._copies = Background(), HostStaging()

    def restore(self, *, starts_job: bool = True) -> int:
        """Restore the run from the newest undamaged checkpoint, or start it; return the index of the next step.

        `starts_job`: record that in the journal; False where a phase follows another in the same job.
        """
        start_time = time.monotonic()
        if self.events:
            self.store.take_over()
            self._abandon_skipped(self.events)
        checkpoint = newest_checkpoint(self.store, self.rank_env)
        self.has_restored = checkpoint is not None
        if checkpoint is not None:
            refuse_other_model(checkpoint, self.compatibility)
            refuse_earlier_phase(checkpoint, self.config)
            may_change = continues_with_other_data(self.config, checkpoint)
            refuse_other_text(checkpoint, self.source.train.corpora, may_change=may_change)
            refuse_other_files(checkpoint, self.files, may_change=may_change)
            for hook, extension in self.extensions:
                hook.refuse_changes(checkpoint, extension)
            self.layout_before = recorded_layout(checkpoint)
            self.held_out.restore(read_checkpoint_state(checkpoint, HELD_OUT))
            self.early_stop.restore(read_checkpoint_state(checkpoint, EARLY_STOP))
            self.callback_state = read_checkpoint_state(checkpoint, CALLBACKS)
            self.token_count.restore(checkpoint.step, checkpoint.state.get(TOKENS))
        self.source.count_text()
        if checkpoint is not None:
            run_on_all_ranks(lambda: self.engine.restore(checkpoint.reader, step=checkpoint.step))
        else:
            self.engine.init_weights()
        if self.events and starts_job:
            layout, processes = self.config.layout.model_dump(), self.rank_env.world
            if checkpoint is None:
                self.events.write(
                    StartEvent(parameters=count_parameters(self.spec), layout=layout, processes=processes)
                )
            else:
                step, folder = checkpoint.step, checkpoint.folder.name
                seconds = round(time.monotonic() - start_time, 3)
                self.events.write(
                    ResumeEvent(step=step, checkpoint=folder, seconds=seconds, layout=layout, processes=processes)
                )
        self.step = checkpoint.step if checkpoint else 0
        return self.step

    def _abandon_skipped(self, events: Events) -> None:
        """Set aside checkpoints whose training included steps that `train.skip_batches` now skips."""
        for step, skip in find_abandoned(self.store, self.config.train.skip_batches).items():
            new_path = self.store.abandon(step)
            events.write(AbandonedCheckpointEvent(step=step, path=str(new_path)))
            log.warning(
                "the checkpoint of step %d was trained on steps that train.skip_batches.%d skips: moved to %s",
                step,
                skip,
                new_path,
            )

    def find_late_validation(self, step: int) -> dict[str, float] | None:
        """Return the validation losses that an earlier job measured at the checkpoint of a step, if it did. All ranks
        call this."""
        run, recipes = self.store.run, self.held_out.recipe
        return broadcast_object(find_late_validation(run, step, recipes) if self.events else None)

    def record_late_validation(self, step: int) -> None:
        """Record the validation losses of a checkpoint that was saved without them, so that a later job has them."""
        losses = {name: values[step] for name, values in self.held_out.losses.items() if step in values}
        if self.events and losses:
            self.events.write(LateValidationEvent(step=step, losses=losses, recipes=self.held_out.recipe))

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after a step. Only rank 0 knows the time, so that the ranks must agree."""
        return self.config.checkpoint.is_step(step) or (self.timer is not None and self.timer.is_due())

    def save(self, step: int, *, wait: bool) -> str | None:
        """Write a checkpoint: rank 0 prepares, all ranks write, some write indexes, rank 0 commits. With `wait`, it is
        committed on return.

        Without `wait`, training only waits for a copy to host memory, and the commit follows some steps later. If
        storage keeps failing, all ranks abandon the checkpoint and rank 0 logs it. Return the reason of the failure, if
        it is known on return.
        """
        self.finish()
        due = [copies for copies in self.copies if copies.is_due(self.step, step)]
        self._earlier_step, self.step = self.step, step
        start_time = time.monotonic()
        pieces = list(self.engine.pieces()) if wait else self._copies.copy_pieces(self.engine.pieces())
        self._background.begin(
            lambda: self.store.prepare(step) if self.events else None,
            partial(self.store.write, step, self.rank_env.rank, pieces),
            partial(self.store.write_index, step, self.rank_env.rank, self.rank_env.world),
            partial(self._commit_checkpoint, step, self._build_state(step), start_time, due),
        )
        return self._report_storage_failure(self._background.finish) if wait else None

    def advance(self) -> None:
        """Start the next phase of writing a checkpoint if all ranks have finished the last; raise errors of the
        background work.

        All ranks call this at the end of a step.
        """
        self._report_storage_failure(self._background.advance)

    def finish(self) -> None:
        """Wait until the checkpoint in progress is committed. All ranks call this."""
        self._report_storage_failure(self._background.finish)

    def roll_back(self, from_step: int, spike: str) -> str:
        """Let the run continue from its newest checkpoint because step `from_step` is a spike (`run.back.roll_back`);
        return a message. All ranks call this."""
        return run_on_all_ranks(lambda: self._roll_back(from_step, spike, self.events) if self.events else "")

    def _roll_back(self, from_step: int, spike: str, events: Events) -> str:
        step = max(self.store.steps(), default=0)
        samples = self.config.batch_schedule.samples_of(step, from_step - 1)
        return roll_back(
            self.store.run,
            step=step,
            from_step=from_step,
            spike=spike,
            samples=samples,
            failed_saves=self._failed_saves,
            events=events,
        )

    def _report_storage_failure(self, work: Callable[[], object]) -> str | None:
        """Call `work`, a part of saving a checkpoint. If it raises that the checkpoint could not be written, report
        that and return the reason."""
        try:
            work()
        except NotSavedError as error:
            problem = str(error).removesuffix(".")
            if self.events:
                log.warning("step %d was not saved: %s; earlier checkpoints are kept", self.step, problem)
                self.events.write(NotSavedEvent(step=self.step, problem=problem))
                self._failed_saves += 1
            self.step = self._earlier_step
            return problem
        return None

    def _commit_checkpoint(
        self, step: int, state: dict[str, Any], start_time: float, due: Sequence[CopyThread]
    ) -> None:
        if self.events:
            committed = self.store.commit(step, state, ranks=self.rank_env.world)
            seconds = round(time.monotonic() - start_time, 3)
            self._failed_saves = 0
            self.events.write(CheckpointEvent(step=step, bytes=committed.size, seconds=seconds))
            self.callbacks.committed.append((step, seconds))
            if self.timer is not None:
                self.timer.writing = seconds
            for copies in due:
                copies.start(step)

    def _retained_steps(self, steps: list[int]) -> set[int]:
        """Return the steps whose checkpoints are retained besides the newest: by the config, or being copied."""
        copied = (copies.steps for copies in self.copies)
        return self.held_out.retained_steps(steps, self.config.checkpoint.keep).union(*copied)

    def _report_damaged(self, step: int, problem: str, new_path: Path) -> None:
        if self.events:
            self.events.write(DamagedCheckpointEvent(step=step, problem=problem, path=str(new_path)))

    def _build_state(self, step: int) -> dict[str, Any]:
        samples = self.config.batch_schedule.first_sample(step)
        return {
            **self.compatibility,
            **dict(chain.from_iterable(extension.items() for _, extension in self.extensions)),
            "samples": samples,
            TOKENS: self.token_count.before(step),
            "cursors": dict(self.source.train.cursors(samples)),
            "read": dict(self.source.train.samples_read(samples)),
            "corpora": dict(self.source.train.corpora),
            "files": self.files,
            HELD_OUT: asdict(self.held_out),
            EARLY_STOP: self.early_stop.state_dict(),
            CALLBACKS: self.callbacks.state_dict(),
            "config": self.config.model_dump(),
            "version": __version__,
        }


def newest_checkpoint(store: CheckpointStore, rank_env: RankEnvironment) -> Checkpoint | None:
    """Return the newest undamaged checkpoint of a run; None if the run has saved no checkpoint. Each rank verifies its
    share of the files.

    Verifying terabytes may take any time: see `Background.finish`. Rank 0 sets aside only damaged checkpoints; a
    checkpoint that one rank cannot read is an error on all.
    """

    def inspect(step: int) -> Checkpoint | str | None:
        # No other job removes files of this one: a checkpoint that disappears on any rank ends the run.
        result = run_on_all_ranks(partial(store.inspect, step, part=rank_env.rank, parts=rank_env.world))
        damages = [
            damage for damage in all_gather_object(result if isinstance(result, str) else None) if damage is not None
        ]
        if isinstance(result, Checkpoint) and not damages:
            return result
        return damages[0] if rank_env.rank == 0 else None

    checkpoint = store.first_undamaged(broadcast_object(store.steps() if rank_env.rank == 0 else []), inspect)
    if checkpoint is None and rank_env.rank == 0:
        store.refuse_fresh_start()
        _refuse_missing_checkpoints(store.run)
    return checkpoint


def _refuse_missing_checkpoints(run: Path) -> None:
    """Raise UserError if the journal mentions checkpoints but the run folder is empty."""
    if saved := last_saved_step(run):
        raise UserError(
            f"the journal of {run} has a checkpoint of step {saved:,}, but {run / FOLDER} is empty. Check that its "
            "disk is mounted; no data was deleted. To start again at step 0, choose another run=FOLDER."
        )
