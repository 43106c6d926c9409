"""Recognition of folders with a trained model. No torch: a wrong path is reported before torch is imported."""

from __future__ import annotations

from pathlib import Path

from megaptm.errors import UserError
from megaptm.hub.folder import CONFIG as EXPORTED
from megaptm.run.folder import CONFIG


def is_run_folder(folder: Path, step: int | None = None) -> bool:
    """Whether a folder is a run, rather than an exported model. Raise UserError if it is neither, or if `step` is given
    for an exported model."""
    if (folder / CONFIG).is_file():
        return True
    if not (folder / EXPORTED).is_file():
        raise UserError(
            f"{folder} has neither the {CONFIG} of a run nor the {EXPORTED} of an exported model: correct the path."
        )
    if step is not None:
        raise UserError(f"step ({step}): {folder} is an exported model, which has no steps: remove the option.")
    return False
