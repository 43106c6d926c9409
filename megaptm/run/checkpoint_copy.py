"""Copy of a checkpoint with the config and tokenizer of its run, in a folder or on an object store."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from megaptm.checkpoint.committed import FOLDER, MANIFEST, find_committed
from megaptm.checkpoint.files import hash_file
from megaptm.checkpoint.manifest import REMEDY, IndexEntry, check_manifest, parse_index
from megaptm.checkpoint.records import FileRecord
from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.run.folder import CONFIG
from megaptm.storage import (
    AtomicFile,
    download,
    exists,
    file_sha256,
    file_size,
    join_path,
    list_files,
    quote_value,
    read_file,
    read_json_object,
    refuse_link,
    remove_file,
    upload,
    validate_file_name,
)

LATEST = "latest"
"""File in the folder of copied checkpoints with the step of the last one."""
THREADS = 4
"""Number of files that are copied at the same time."""


def copy_checkpoint(run: Path, step: int, target: str) -> int:
    """Copy the checkpoint of a step to the run folder `target`, a path or URL; return its bytes.

    The checkpoint is compared with its hashes, and every file is read back from the target. The manifest is copied
    last, so that an interrupted copy is not a checkpoint. Repeating it only copies the missing files. Raise `UserError`
    if the checkpoint is damaged, or if the target has files of another run or of the user.
    """
    if isinstance(checkpoint := CheckpointStore(run).inspect(step), str):
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

    _withdraw_other(run, step, target, hashes[checkpoint.folder / MANIFEST])
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(copy, [path for path in hashes if path not in last]))
    for path in last:
        copy(path)
    _write_latest(target, step)
    return checkpoint.size


def _withdraw_other(run: Path, step: int, target: str, sha256: str) -> None:
    """Withdraw an earlier copy of the step at `target`, from which the run has returned, before its files are replaced:
    mixed files are no checkpoint. `sha256`: hash of the new manifest."""
    manifest = _manifest_at(target, step)
    if not exists(manifest) or file_sha256(manifest) == sha256:
        return
    copied = (earlier for earlier in find_committed(run) if earlier < step and exists(_manifest_at(target, earlier)))
    if (last := max(copied, default=None)) is None:
        remove_file(join_path(target, FOLDER, LATEST))
    else:
        _write_latest(target, last)
    remove_file(manifest)


def _manifest_at(target: str, step: int) -> str:
    return join_path(target, FOLDER, f"step-{step:08d}", MANIFEST)


def _write_latest(target: str, step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (latest := Path(folder, LATEST)).write_text(str(step))
        _copy_file(latest, join_path(target, FOLDER, LATEST), hash_file(latest))


def copies_location(config: Config) -> str | None:
    """Return the folder or URL to which the checkpoints of a run are copied; None if they are not."""
    to = config.checkpoint.upload_to
    return None if to is None else join_path(to, Path(config.run).name)


def last_copied_step(source: str) -> int | None:
    """Return the step of the checkpoint that was last copied to a folder or URL; None before the first copy."""
    if not exists(latest := join_path(source, FOLDER, LATEST)):
        return None
    content = read_file(latest)[:20].decode(errors="replace")
    if not content.isdecimal():
        raise UserError(f"{latest} is not a step ({quote_value(content)}): write there the step to continue from.")
    return int(content)


def _fetch_checkpoint(source: str, step: int, run: Path) -> None:
    """Copy the checkpoint of a step from a folder or URL to a run, and compare all files with their hashes.

    Raise `UserError` if a file is missing or damaged. The checkpoint appears when it is complete.
    """
    name = f"step-{step:08d}"
    remote, final = join_path(source, FOLDER, name), run / FOLDER / name
    final.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(final) as folder:
        folder.mkdir()

        def fetch(file: IndexEntry | FileRecord) -> None:
            if download(join_path(remote, file.name), folder / file.name, size=file.size) != file.sha256:
                raise UserError(f"{join_path(remote, file.name)} is damaged: copy it there again.")

        download(join_path(remote, MANIFEST), folder / MANIFEST)
        manifest = read_json_object(folder / MANIFEST, remedy=REMEDY)
        indexes = check_manifest(manifest, folder / MANIFEST, step=step)
        for entry in indexes:
            fetch(entry)
        files = [
            file
            for entry in indexes
            for file in parse_index((folder / entry.name).read_bytes(), folder / entry.name, entry)
        ]
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(fetch, files))


def fetch_run(text: str, folder: Path) -> int:
    """Copy a checkpoint, `URL@STEP` or the last one of `URL`, with config and tokenizer to a run folder; return its
    step."""
    source, _, selector = text.rpartition("@")
    if not source or "/" in selector:
        source, selector = text, ""
    if selector and not selector.isdecimal():
        raise UserError(f"{text}: after @ comes a step, not {selector}: names and losses are only known to the run.")
    step = int(selector) if selector else last_copied_step(source)
    config = join_path(source, CONFIG)
    if step is None or not exists(_manifest_at(source, step)) or not exists(config):
        raise UserError(f"{text} has no copied checkpoint{'' if step is None else f' of step {step}'}: check the URL.")
    if (folder / CONFIG).exists() and (folder / CONFIG).read_bytes() != read_file(config):
        raise UserError(f"{folder} has a {CONFIG} that is not that of {source}: choose a new folder.")
    if not (folder / CONFIG).exists():
        _refuse_other_files(str(folder))
    if step not in find_committed(folder):
        _fetch_checkpoint(source, step, folder)
    for name in _list_tokenizer(source):
        download(join_path(source, "tokenizer", name), folder / "tokenizer" / name)
    download(config, folder / CONFIG)
    return step


def _list_tokenizer(source: str) -> list[str]:
    """Return the names of the tokenizer's files in a folder or at a URL; raise `UserError` for an invalid name."""
    names = [name for name in list_files(join_path(source, "tokenizer")) if name]  # some stores list the folder itself
    try:
        return [validate_file_name(name) for name in names]
    except ValueError as error:
        raise UserError(f"{join_path(source, 'tokenizer')}: {error}: copy the checkpoint there again.") from None


def _refuse_other_run(run: Path, target: str) -> None:
    if not exists(config := join_path(target, CONFIG)):
        _refuse_other_files(target)
    elif _recorded_run(read_file(config)) != _recorded_run((run / CONFIG).read_bytes()):
        raise UserError(
            f"{target} has a {CONFIG} that is not that of {run}: choose a new folder for copies of its checkpoints."
        )


def _recorded_run(config: bytes) -> bytes | None:
    """Return the line with the folder of a run in its config, whose other lines may change."""
    return next((line for line in config.splitlines() if line.startswith(b"run:")), None)


def _refuse_other_files(folder: str) -> None:
    if list_files(folder):
        raise UserError(f"{folder} has other files: choose a new folder for copies of checkpoints.")


def _copy_file(path: Path, target: str, sha256: str) -> None:
    """Copy a file, unless an earlier copy of it is undamaged."""
    is_copied = exists(target) and file_size(target) == path.stat().st_size and file_sha256(target) == sha256
    if not is_copied:
        upload(path, target, sha256=sha256)
