"""Which checkpoints of a run count: looked up without reading them."""

from __future__ import annotations

import re
from pathlib import Path

from megaptm.checkpoint.files import is_there, names_in

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
# `step-1.replaced` is met when a job died while replacing `step-1`.
NAME = re.compile(r"step-(\d+)(\.replaced)?")


def committed(run: Path) -> dict[int, Path]:
    """Step -> folder of each committed checkpoint. Nothing is said of their health.

    Empty where there is no folder of checkpoints. One that cannot be read is an `UnreadableError`: to begin again at
    step 0 would look like success.
    """
    found: dict[int, Path] = {}
    named = [match for name in sorted(names_in(run / FOLDER)) if (match := NAME.fullmatch(name))]
    # What was being replaced gives way to what replaced it.
    for match in sorted(named, key=lambda match: match[2] is None):
        folder = run / FOLDER / match[0]
        if is_there(folder / MANIFEST):
            found[int(match[1])] = folder
    return found


def newest_step(run: Path) -> int | None:
    """None where there is no committed checkpoint."""
    return max(committed(run), default=None)
