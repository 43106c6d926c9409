"""Copy of a checkpoint with the config and tokenizer of its run, in a folder or on an object store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from megaptm.checkpoint.committed import FOLDER, MANIFEST
from megaptm.checkpoint.files import hash_file
from megaptm.checkpoint.store import Store
from megaptm.errors import UserError
from megaptm.run.folder import CONFIG
from megaptm.storage import exists, file_sha256, file_size, join_path, read_file, refuse_link, upload

THREADS = 4
"""Number of files that are copied at the same time."""


def copy_checkpoint(run: Path, step: int, target: str) -> int:
    """Copy the checkpoint of a step to the run folder `target`, a path or URL; return its bytes.

    The checkpoint is compared with its hashes, and every file is read back from the target. The manifest is copied
    last, so that an interrupted copy is not a checkpoint. Repeating it only copies the missing files. Raise `UserError`
    if the checkpoint is damaged, or if the target belongs to another run.
    """
    if isinstance(checkpoint := Store(run).inspect(step), str):
        raise UserError(f"{checkpoint}: copy another checkpoint than that of step {step}.")
    _refuse_other_run(run, target)
    tokenizer = run / "tokenizer"
    hashes = {checkpoint.folder / file.name: file.sha256 for file in checkpoint.files}
    hashes |= {checkpoint.folder / entry.name: entry.sha256 for entry in checkpoint.indexes}
    last = [run / CONFIG, checkpoint.folder / MANIFEST]
    hashes |= {path: hash_file(path) for path in [*tokenizer.rglob("*"), *last] if path.is_file()}
    for path in (tokenizer, *hashes):
        refuse_link(path)

    def copy(path: Path) -> None:
        folder = join_path(FOLDER, f"step-{step:08d}") if path.parent == checkpoint.folder else ""
        name = path.name if folder else path.relative_to(run).as_posix()
        _copy_file(path, join_path(target, *filter(None, (folder, name))), hashes[path])

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(copy, [path for path in hashes if path not in last]))
    for path in last:
        copy(path)
    return checkpoint.size


def _refuse_other_run(run: Path, target: str) -> None:
    if exists(config := join_path(target, CONFIG)) and read_file(config) != (run / CONFIG).read_bytes():
        raise UserError(
            f"{target} has a {CONFIG} that is not that of {run}: choose a new folder for copies of its checkpoints."
        )


def _copy_file(path: Path, target: str, sha256: str) -> None:
    """Copy a file, unless an earlier copy of it is undamaged."""
    is_copied = exists(target) and file_size(target) == path.stat().st_size and file_sha256(target) == sha256
    if not is_copied:
        upload(path, target, sha256=sha256)
