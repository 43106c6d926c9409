"""Removal of a run's checkpoints by the rules of `checkpoint.keep`, outside of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import UncheckedConfig
from megaptm.errors import UserError
from megaptm.resilience.lock import LAUNCH_FILE, RunLock
from megaptm.run.compatibility import read_checkpoint_state
from megaptm.run.folder import CONFIG, require_run
from megaptm.run.held_out import FIELD, HeldOutLoss

KEEP = "checkpoint.keep"


@contextmanager
def open_pruned(run: Path, overrides: Sequence[str] = ()) -> Iterator[CheckpointStore]:
    """Lock a run, and open its checkpoints with the rules of its config and the given overrides of them.

    Raise `UserError` if the newest checkpoint is damaged: the run then needs an earlier one.
    """
    require_run(run)
    for override in overrides:
        if not f"{override.partition('=')[0]}.".startswith(f"{KEEP}."):
            raise UserError(f"{override}: only {KEEP} and its keys can be given here.")
    keep = UncheckedConfig.read_run(run / CONFIG, overrides).load().checkpoint.keep
    held_out = HeldOutLoss()
    with RunLock(run, file=LAUNCH_FILE), RunLock(run) as lock:
        store = CheckpointStore(
            run, keep.last, fence=lock.is_held, retained=lambda steps: held_out.retained_steps(steps, keep)
        )
        for newest in store.steps()[:1]:
            if isinstance(checkpoint := store.inspect(newest), str):
                raise UserError(
                    f"the newest checkpoint is damaged ({checkpoint}), so earlier ones are not removed: continue the "
                    "run, or put an undamaged copy there."
                )
            held_out.restore(read_checkpoint_state(checkpoint, FIELD))
        yield store
