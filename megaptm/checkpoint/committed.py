"""Search for the committed checkpoints of a run, without reading tensors."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from megaptm.checkpoint.files import list_names, path_exists, read_small_file
from megaptm.errors import UserError
from megaptm.storage.untrusted import parse_json

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
# `step-1.replaced` exists if a job died while it replaced `step-1`.
NAME = re.compile(r"step-(\d+)(\.replaced)?")


def find_committed(run: Path) -> dict[int, Path]:
    """Return the folders of the committed checkpoints of a run by step. A checkpoint may be damaged.

    Empty if the run has no folder of checkpoints. Raises `UnreadableError` if the folder cannot be read: otherwise the
    run would silently restart at step 0.
    """
    # A replaced checkpoint is overridden by its replacement.
    return {step: folder for step, folder in _list_folders(run) if path_exists(folder / MANIFEST)}


def find_without_manifest(run: Path) -> list[tuple[int, Path]]:
    """Return step and folder, by step, of each folder that has the name of a committed checkpoint but no manifest.

    No job leaves such a folder: a checkpoint gets its name with its manifest, and is renamed before it is removed.
    """
    return sorted((step, folder) for step, folder in _list_folders(run) if not path_exists(folder / MANIFEST))


def _list_folders(run: Path) -> list[tuple[int, Path]]:
    """Return step and folder of every checkpoint of a run by name, without a check of its files. Replaced checkpoints
    come first."""
    matches = [match for name in sorted(list_names(run / FOLDER)) if (match := NAME.fullmatch(name))]
    matches.sort(key=lambda match: match[2] is None)
    return [(int(match[1]), run / FOLDER / match[0]) for match in matches]


def newest_step(run: Path) -> int | None:
    """Return the step of the newest committed checkpoint; None if the run has none yet."""
    return max(find_committed(run), default=None)


def read_newest_state(run: Path) -> dict[str, Any]:
    """Return the trainer's state in the newest checkpoint with a readable manifest; empty if there is none.

    Hashes are not checked: `checkpoint.store.CheckpointStore.load` does that.
    """
    return next(
        (state for _, folder in sorted(find_committed(run).items(), reverse=True) if (state := read_state(folder))), {}
    )


def read_state(folder: Path) -> dict[str, Any]:
    """Return the trainer's state in a checkpoint; empty if its manifest is not readable."""
    path = folder / MANIFEST
    with suppress(UserError, FileNotFoundError):
        manifest = parse_json(read_small_file(path), path, remedy="take another checkpoint")
        state = manifest.get("state") if isinstance(manifest, dict) else None
        if isinstance(state, dict):
            return state
    return {}
