"""Copies of a run's checkpoints: in Hugging Face's format, and in another folder or on an object store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from megaptm.checkpoint.committed import find_committed
from megaptm.config import Config
from megaptm.errors import EXIT_CONTINUE, UserError
from megaptm.resilience.events import Events, HubExportEvent, UploadEvent
from megaptm.run.checkpoint_copy import copies_location, copy_checkpoint, last_copied_step
from megaptm.train.copy_thread import CopyThread
from megaptm.train.hub_export import export_copy, is_export_due, lacks_export


def start_copies(run: Path, config: Config, events: Events) -> list[CopyThread]:
    """Start the threads of rank 0 that make the configured copies of committed checkpoints."""
    copies = []
    if config.hub.export_every is not None:
        export, is_due = partial(export_copy, run, config), partial(is_export_due, config)
        lacks = partial(lacks_export, run)
        copies.append(CopyThread("Hugging Face copy", export, HubExportEvent, events, is_due=is_due, lacks_last=lacks))
    if (target := copies_location(config)) is not None:
        upload = partial(copy_checkpoint, run, target=target)
        # The node of a run that was stopped may be lost with its disk.
        copies.append(CopyThread("upload", upload, UploadEvent, events, awaited_codes=(0, EXIT_CONTINUE)))
    return copies


def refuse_other_copies(run: Path, config: Config) -> None:
    """Raise `UserError` if a run without checkpoints would overwrite copies of an earlier one."""
    target = copies_location(config)
    if target is None or find_committed(run) or (step := last_copied_step(target)) is None:
        return
    raise UserError(
        f"{target} has the checkpoints of an earlier run of this name, up to step {step:,}. To continue it, bring it "
        f"back to a new folder: `megaptm checkpoint copy {target} FOLDER`. To start anew, choose another run=FOLDER or "
        "checkpoint.upload_to."
    )
