"""Phases of a run in one process: each is opened at the newest checkpoint, and trained to its end."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from megaptm.checkpoint.committed import find_committed
from megaptm.config import Config, resolve_spec
from megaptm.config.objective_fit import sequence_lengths
from megaptm.config.phases import phase_end
from megaptm.errors import EXIT_CONTINUE
from megaptm.parallel.background import run_on_all_ranks
from megaptm.parallel.collectives import broadcast_object
from megaptm.parallel.compiled import release_graphs
from megaptm.parallel.custom_patterns import refuse_other_patterns
from megaptm.parallel.groups import rank_device
from megaptm.plan.kernels import attention_kernels
from megaptm.report.terminal import describe_resume, describe_start, device_title
from megaptm.resilience.events import Events
from megaptm.resilience.heartbeat import Heartbeat
from megaptm.resilience.lock import RunLock
from megaptm.resilience.signals import StopRequest
from megaptm.run.back import return_to_phase
from megaptm.run.branch import describe_new_branch
from megaptm.run.compatibility import EarlierPhaseError
from megaptm.run.corpora import RunCorpora
from megaptm.run.folder import enter_due_phases
from megaptm.run.rank import RankEnvironment
from megaptm.spec import LayerlessSpec, ModelSpec
from megaptm.train.batch_source import StepSource
from megaptm.train.callbacks import Callbacks
from megaptm.train.checkpointer import Checkpointer
from megaptm.train.copies import refuse_other_copies, start_copies
from megaptm.train.copy_thread import CopyThread
from megaptm.train.device_use import peak_flops
from megaptm.train.divided_checks import divide_checks
from megaptm.train.engines import build_step_source, build_training_engine
from megaptm.train.loop import Training
from megaptm.train.metrics import SecondsSpent, StepReport
from megaptm.train.profiler import StepProfiler
from megaptm.train.stragglers import Stragglers
from megaptm.train.token_count import TokenCount

STOP_SECONDS = 120.0
"""Maximum seconds for which a job that was stopped waits for copies: its scheduler may end it."""
WAIT_SECONDS = 60.0
"""Seconds after which the end of a job tells the watchdog that it still waits for copies."""


@dataclass
class TrainingJob:
    """State that the phases of a run share in one process of a job."""

    run: Path
    config: Config
    """Config of the present phase."""
    rank_env: RankEnvironment
    lock: RunLock | None
    events: Events | None
    stop: StopRequest
    heartbeat: Heartbeat
    callbacks: Callbacks
    log: Callable[[str], None]
    timeout_minutes: float
    report: StepReport | None = None
    seconds: SecondsSpent = field(default_factory=SecondsSpent)
    source: StepSource | None = None
    copies: Sequence[CopyThread] = ()
    """Threads that copy committed checkpoints, only on rank 0."""

    def start_copies(self) -> None:
        """Start the threads that copy the checkpoints saved from now on, if the config has copies. All ranks call
        this."""
        events = self.events
        if self.config.checkpoint.upload_to is not None:
            with self.heartbeat.during("loading"), self.stop.interrupt_waits():
                run_on_all_ranks(lambda: refuse_other_copies(self.run, self.config) if events else None)
        if events is not None:
            self.copies = start_copies(self.run, self.config, events)

    def finish_copies(self, code: int) -> None:
        """Wait for the copies of checkpoints that are needed at this exit code of the run; discard other copies. A job
        that was stopped waits at most `STOP_SECONDS`. All ranks call this."""
        needed = [copies for copies in self.copies if code in copies.awaited_codes]
        newest = max(find_committed(self.run), default=0) if self.copies and code == 0 else 0
        for copies in needed:
            if newest and copies.is_missing(newest):  # the run ended before train.steps
                copies.start(newest)
            if copies.steps:
                self.log(f"waiting for the {copies.name} of step {max(copies.steps):,}")
        deadline = time.monotonic() + (STOP_SECONDS if code == EXIT_CONTINUE else math.inf)

        def wait_for_copies() -> bool:
            return all(copies.wait(WAIT_SECONDS) for copies in needed) or time.monotonic() > deadline

        if self.config.hub.export_every is not None or self.config.checkpoint.upload_to is not None:
            is_done = False
            while not is_done:
                with self.heartbeat.during("saving"):  # again and again: an upload may take hours
                    is_done = broadcast_object(run_on_all_ranks(wait_for_copies))
            for copies in needed:
                for step in copies.steps:
                    self.log(f"the {copies.name} of step {step:,} is not complete: the job ends")

    def enter_due_phases(self) -> None:
        """Set the config of the phase that begins at the newest checkpoint, if one does. All ranks call this."""
        events = self.events
        entered = run_on_all_ranks(lambda: enter_due_phases(self.run, self.config, events) if events else self.config)
        self.config = self.callbacks.state.config = broadcast_object(entered)

    def open_phase(self, *, starts_job: bool) -> tuple[Training, int]:
        """Return the training of the present phase, restored from the newest undamaged checkpoint, and its first step.
        If that is of an earlier phase, the run returns to it."""
        try:
            return self._open_phase(starts_job=starts_job)
        except EarlierPhaseError as error:
            step, is_owner = error.step, self.events is not None
            returned = run_on_all_ranks(lambda: return_to_phase(self.run, self.config, step) if is_owner else None)
            if (returned := broadcast_object(returned)) is None:
                raise
            self.config = self.callbacks.state.config = returned
            self.log(f"returns to the phase of step {step:,}")
        self._release()
        return self._open_phase(starts_job=starts_job)

    def _open_phase(self, *, starts_job: bool) -> tuple[Training, int]:
        config, spec, log = self.config, resolve_spec(self.config), self.log
        log("opening the corpora")
        with self.stop.interrupt_waits():
            corpora = RunCorpora(config, divide_checks(self.run, self.rank_env))
        log(f"building the model ({device_title()})")
        for attention, choice in attention_kernels(config, rank_device().type):
            log(f"{attention}: {choice.kernel}, {choice.why}")
        engine = build_training_engine(
            config, spec, corpora, self.rank_env, timeout_minutes=self.timeout_minutes, log=log
        )
        if isinstance(spec, ModelSpec):
            batch = config.batch_spec
            refuse_other_patterns(spec, sequence_lengths(batch, spec.family))
        with self.stop.interrupt_waits():
            self.source = source = build_step_source(config, engine, corpora)
        checkpointer = Checkpointer(
            *(self.run, config, engine, spec, source, self.rank_env),
            lock=self.lock,
            events=self.events,
            callbacks=self.callbacks,
            copies=self.copies,
        )
        counts_pairs = config.built_objective.unit == "pairs"
        log(f"looking for a checkpoint{', then counting the word pairs of the corpus' if counts_pairs else ''}")
        with self.stop.interrupt_waits(), self.heartbeat.during("loading"):
            start = checkpointer.restore(starts_job=starts_job)
        self.heartbeat.set_step(start)
        if starts_job:
            before = checkpointer.layout_before
            imported = checkpointer.has_restored
            if self.events is not None and (branch := describe_new_branch(self.run, start)):
                log(branch)
            log(describe_resume(start, before, config) if start else describe_start(config, imported=imported))
        else:
            log(f"a phase of the run begins after step {start:,}")
        self._begin_report(spec, start, checkpointer.token_count)
        if starts_job:
            self.callbacks.run_start(start, checkpointer.callback_state)
        return Training(
            config=config,
            objective=config.built_objective,
            engine=engine,
            microbatches=source.steps(start),
            validation_batches=source.validation_batches,
            checkpointer=checkpointer,
            stop=self.stop,
            seconds=self.seconds,
            callbacks=self.callbacks,
            heartbeat=self.heartbeat,
            profiler=StepProfiler(self.run, config.train.profile, rank=self.rank_env.rank),
            stragglers=Stragglers(config.train.stragglers, engine.ranks, every=config.train.log_every),
            end=phase_end(config, start),
        ), start

    def _release(self) -> None:
        """Release the data and the memory of a phase."""
        if self.source is not None:
            self.source.close()
        self.source = None
        release_graphs()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def open_next_phase(self) -> tuple[Training, int]:
        """Return the training of the phase that follows a complete one, of which nothing may be left in memory."""
        self.callbacks.report_checkpoints()
        self.heartbeat.enter("loading")
        self._release()
        self.enter_due_phases()
        return self.open_phase(starts_job=False)

    def _begin_report(self, spec: ModelSpec | LayerlessSpec, start: int, token_count: TokenCount) -> None:
        """Report the steps of a phase, on rank 0."""
        if self.events is None or self.source is None:
            return
        if self.report is not None:
            self.report.begin_phase(self.config, spec, self.source.train, token_count=token_count, start=start)
            return
        self.source.tokenizer.save(self.run / "tokenizer")
        self.report = StepReport(
            *(self.run, self.config, spec, self.source.train, self.events),
            token_count=token_count,
            start=start,
            fence=self.lock.require_held if self.lock else lambda: None,
            peak_flops=peak_flops(self.config),
        )
        self.callbacks.report, self.seconds = self.report, self.report.seconds
