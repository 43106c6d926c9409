"""Return of a run to an earlier checkpoint. Later checkpoints are renamed, and nothing is deleted."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from megaptm.checkpoint.committed import find_committed
from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import Config, load_run_config
from megaptm.config.phases import phases_after
from megaptm.config.read import UncheckedConfig
from megaptm.errors import UserError
from megaptm.resilience.events import (
    AbandonedCheckpointEvent,
    BackEvent,
    CheckpointEvent,
    Events,
    SpikeEvent,
    last_saved_step,
    read_events,
)
from megaptm.resilience.lock import LAUNCH_FILE, RunLock
from megaptm.run.branch import find_branch, saved_recipe, write_recipe
from megaptm.run.changes import compare_configs
from megaptm.run.folder import CONFIG, absolute_path, require_run
from megaptm.run.submission import SCRIPT, refuse_queued_run

MAX_ROLL_BACKS = 3
"""Number of returns to one checkpoint because of spikes. Then the text is not their cause."""
MAX_FAILED_SAVES = 3
"""Number of checkpoints in a row that could not be written. Then a return would skip too much text."""
REMEDY = "return to an earlier one (`--back-to`), or lower optimizer.lr. Earlier checkpoints are unchanged."


def return_to_phase(run: Path, config: Config, step: int) -> Config | None:
    """Return a run to the phase in which the checkpoint of a step was trained, and return its config. None if the
    config changed otherwise than planned since then. Only the owner of the run's lock calls this."""
    values = saved_recipe(run, step)
    with tempfile.TemporaryDirectory() as folder:
        write_recipe(Path(folder), values)
        returned = load_run_config(Path(folder, CONFIG))  # the checkpoint is not trusted
    borders = [phase.start for phase in phases_after(returned, step)]
    if config.train.phase_start not in borders or returned.layout.processes != config.layout.processes:
        return None
    write_recipe(run, values)
    return returned


def go_back(run: Path, step: int, *, skip: int = 0, overrides: Sequence[str] = (), change: bool = False) -> str:
    """Return a run to the checkpoint of a step, with the recipe that it was trained with. Return a message.

    Checkpoints of later steps are renamed. `skip`: batches of text that are skipped before the next step. `overrides`:
    overrides for the steps that follow; `change`: they may alter the recipe. If the checkpoint is missing or the
    overrides are invalid, raise `UserError` before anything is written.
    """
    run = Path(absolute_path(str(run)))
    require_run(run)
    steps = sorted(find_committed(run))
    if step not in steps:
        raise UserError(f"--back-to {step}: {run} {_list_steps(steps)}: {_advice(run, step)}.")
    values = saved_recipe(run, step)
    if skip:
        train = values["train"]
        values["train"] = {**train, "skip_batches": {**(train.get("skip_batches") or {}), str(step): skip}}
    with tempfile.TemporaryDirectory() as folder:  # a run is not trusted, so its config is read as that of a run
        write_recipe(Path(folder), values)
        returned, continued = (
            UncheckedConfig.read_run(Path(folder, CONFIG), typed).load() for typed in ((), overrides)
        )
    compare_configs(returned, continued, change=change, done=step).refuse_changes()
    if (run / SCRIPT).exists():
        refuse_queued_run(run)
    with RunLock(run, file=LAUNCH_FILE), RunLock(run) as lock, Events(run, fence=lock.require_held) as events:
        store, last = CheckpointStore(run, fence=lock.is_held), last_saved_step(run)
        store.load(step)  # raises if it was removed in the meantime
        # The newest first: a command that is killed here leaves a run that continues from what is left.
        names = []
        for later in [later for later in store.steps() if later > step]:
            path = store.abandon(later)
            events.write(AbandonedCheckpointEvent(step=later, path=str(path)))
            names.append(path.name)
        write_recipe(run, values)
        events.write(BackEvent(step=step, from_step=last, skip=skip))
    renamed = f"; later checkpoints are kept as {', '.join(names)}" if names else ""
    skipped = f"; batches of text skipped there: {skip:,}" if skip else ""
    return f"the run returns from step {last:,} to the checkpoint of step {step:,}{renamed}{skipped}"


def _list_steps(steps: Sequence[int]) -> str:
    return f"has checkpoints of steps {', '.join(map(str, steps))}" if steps else "has no checkpoint"


def _advice(run: Path, step: int) -> str:
    """Return what to do if a run has no checkpoint of a step, which may be one of the run that it branched from."""
    branch = find_branch(read_events(run))
    if branch is None or branch.get("weights_only") or step >= branch.get("step", 0):
        return "name one of these, or raise checkpoint.keep"
    parent = Path(str(branch.get("run")))
    steps = sorted(find_committed(parent))
    where = shlex.quote(f"from={parent}@{step if step in steps else 'STEP'}")
    listed = "" if step in steps else f", which {_list_steps(steps)}"
    return (
        f"it branched from {parent} at step {branch['step']:,}. Branch from a checkpoint of that run{listed} "
        f"(`megaptm train run=FOLDER {where}`)"
    )


def roll_back(
    run: Path,
    *,
    step: int,
    from_step: int,
    spike: str,
    samples: tuple[int, int],
    failed_saves: int = 0,
    events: Events,
) -> str:
    """Let a run whose step `from_step` is a spike continue from the checkpoint of `step`, its newest, and skip the
    batches from there to the spike. Return a message. `samples`: first and last sample of these batches.
    `failed_saves`: number of checkpoints since `step` that could not be written.

    Called by the rank that holds the lock of the run. Raise `UserError` after `MAX_ROLL_BACKS` returns to the
    checkpoint, or `MAX_FAILED_SAVES` failed saves.
    """
    rejected = f"step {from_step:,} was rejected: a spike, {spike}"
    events.write(SpikeEvent(step=from_step, description=spike, skipped=True))
    if not step:
        raise UserError(f"{rejected}. The run has no checkpoint to return to: lower checkpoint.every.")
    if failed_saves >= MAX_FAILED_SAVES:
        raise UserError(
            f"{rejected}. The run does not skip {from_step - step:,} batches: {failed_saves} checkpoints after that of "
            f"step {step:,} could not be written. Correct the storage and start the run again from there."
        )
    if (num_returns := _count_roll_backs(run)) >= MAX_ROLL_BACKS:
        raise UserError(
            f"{rejected}. The run has returned to the checkpoint of step {step:,} {num_returns} times, so other text "
            f"does not help: {REMEDY}"
        )
    # The config as it was written: that of the process has entered a phase.
    values = UncheckedConfig.read_run(run / CONFIG).values
    skips = {int(key): batches for key, batches in (values["train"].get("skip_batches") or {}).items()}
    skip = skips.get(step, 0) + from_step - step
    write_recipe(run, {**values, "train": {**values["train"], "skip_batches": {**skips, step: skip}}})
    events.write(BackEvent(step=step, from_step=from_step, skip=skip, spike=spike, samples=samples))
    return f"spike, {spike}; the run returns to the checkpoint of step {step:,} and skips {skip:,} batches there"


def _count_roll_backs(run: Path) -> int:
    """Return how often a run has automatically returned to its newest checkpoint."""
    events = [event for event in read_events(run) if event["kind"] in (BackEvent.kind, CheckpointEvent.kind)]
    return len([*takewhile(lambda event: event.get("spike") is not None, reversed(events))])
