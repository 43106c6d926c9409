"""Tags of checkpoints: names by which users refer to a checkpoint, and which keep it from being removed.

A tag is an empty file in the folder of its checkpoint. A job that removes the checkpoint renames the folder first. So a
tag is either created before, and seen by that job, or its creation fails.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from megaptm.checkpoint.committed import find_committed
from megaptm.checkpoint.files import list_names
from megaptm.errors import UserError
from megaptm.storage import refuse_link, sync_to_disk

PREFIX = "tag."
NAME = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RESERVED = ("best", "latest")
"""Names after the @ of `RUN@NAME` that are no tags."""


def read_tags(folder: Path) -> list[str]:
    """Return the tags of a checkpoint, sorted."""
    return sorted(name.removeprefix(PREFIX) for name in list_names(folder) if name.startswith(PREFIX))


def find_tagged(run: Path) -> dict[str, int]:
    """Return the tags of a run's checkpoints, with their steps."""
    return {tag: step for step, folder in find_committed(run).items() for tag in read_tags(folder)}


def add_tag(run: Path, step: int, tag: str) -> None:
    """Tag the checkpoint of a step. Raise `UserError` if the name is invalid, or that of another checkpoint."""
    if not NAME.fullmatch(tag) or tag in RESERVED:
        raise UserError(
            f"{tag!r} is not a tag: use letters, digits, dots, - and _, not digits alone, and not "
            f"{' or '.join(RESERVED)}."
        )
    if find_tagged(run).get(tag, step) != step:
        raise UserError(
            f"{tag} is the tag of step {find_tagged(run)[tag]:,}: remove it there first (--remove), or choose another."
        )
    try:
        refuse_link(folder := find_committed(run)[step])
        os.close(os.open(folder / f"{PREFIX}{tag}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666))
        sync_to_disk(folder)
    except (KeyError, FileNotFoundError):
        raise UserError(f"the checkpoint of step {step:,} in {run} was just removed: tag another.") from None


def remove_tag(run: Path, tag: str) -> int:
    """Remove a tag; return the step of its checkpoint. The next save may remove the checkpoint."""
    tagged = find_tagged(run)
    if tag not in tagged:
        raise UserError(f"{run} has no tag {tag}; its tags are {', '.join(sorted(tagged)) or 'none'}.")
    folder = find_committed(run)[tagged[tag]]
    (folder / f"{PREFIX}{tag}").unlink(missing_ok=True)
    sync_to_disk(folder)
    return tagged[tag]
