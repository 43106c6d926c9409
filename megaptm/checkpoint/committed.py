"""Which checkpoints of a run count: looked up without reading their tensors."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from megaptm.checkpoint.files import is_there, names_in, read_whole
from megaptm.errors import UserError
from megaptm.storage.untrusted import parse_json

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
# `step-1.replaced` is met when a job died while replacing `step-1`.
NAME = re.compile(r"step-(\d+)(\.replaced)?")


def committed(run: Path) -> dict[int, Path]:
    """Step -> folder of each committed checkpoint. Nothing is said of their health.

    Empty where there is no folder of checkpoints. One that cannot be read is an `UnreadableError`: to begin again at
    step 0 would look like success.
    """
    # What was being replaced gives way to what replaced it.
    return {step: folder for step, folder in _named(run) if is_there(folder / MANIFEST)}


def without_manifest(run: Path) -> list[tuple[int, Path]]:
    """Step and folder of whatever is named as a committed checkpoint and has no manifest, the oldest step first.

    No job leaves such a folder: a checkpoint gets its name with its manifest, and is renamed before it is removed.
    """
    return sorted((step, folder) for step, folder in _named(run) if not is_there(folder / MANIFEST))


def _named(run: Path) -> list[tuple[int, Path]]:
    """Step and folder of all that is named as a checkpoint, those that were being replaced first."""
    matches = [match for name in sorted(names_in(run / FOLDER)) if (match := NAME.fullmatch(name))]
    matches.sort(key=lambda match: match[2] is None)
    return [(int(match[1]), run / FOLDER / match[0]) for match in matches]


def newest_step(run: Path) -> int | None:
    """None where there is no committed checkpoint."""
    return max(committed(run), default=None)


def newest_state(run: Path) -> dict[str, Any]:
    """Return the trainer's state in the newest checkpoint whose manifest is readable; empty if there is none.

    Nothing is compared with a hash: `checkpoint.store.Store.load` does that, and needs torch.
    """
    for _, folder in sorted(committed(run).items(), reverse=True):
        path = folder / MANIFEST
        with suppress(UserError, FileNotFoundError):
            manifest = parse_json(read_whole(path), path, remedy="take another checkpoint")
            state = manifest.get("state") if isinstance(manifest, dict) else None
            if isinstance(state, dict):
                return state
    return {}
