"""Which folders hold a trained model. No torch: a wrong path is told before that is loaded."""

from __future__ import annotations

from pathlib import Path

from megaptm.errors import UserError
from megaptm.hub.folder import CONFIG as EXPORTED
from megaptm.run.folder import CONFIG


def is_run(folder: Path, step: int | None = None) -> bool:
    """Whether a folder is a run's, or, False, of an exported model; a `UserError` where it is neither, or where the
    step of a model is asked that has none."""
    if (folder / CONFIG).is_file():
        return True
    if not (folder / EXPORTED).is_file():
        raise UserError(
            f"{folder} holds neither the {CONFIG} of a run nor the {EXPORTED} of an exported model: correct the path."
        )
    if step is not None:
        raise UserError(f"step ({step}): {folder} is an exported model, which has no steps; leave it out.")
    return False
