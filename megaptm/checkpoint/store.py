"""Checkpoints of a run: all ranks write them, one rank commits them, and old ones are removed.

    run/checkpoints/
        step-00000100/                  committed: has this name and a manifest; its files never change
            rank-00000.safetensors ...  one file per rank that wrote
            index-00000.json ...        for some ranks: size and sha256 of each file, location of each tensor
            manifest.json               step, state, size and sha256 of each index, and names of its tensors
            tag.NAME ...                tags of the user: the checkpoint is not removed (checkpoint.tags)
            hf/                         a Hugging Face copy, if the config has hub.export_every
        step-00000200.writing-TOKEN/    being written, or left by a job that died
        step-00000150.damaged/          did not match its hashes: kept for inspection
        step-00000180.abandoned/        trained on text that is now skipped (train.skip_batches): kept as well
        step-00000100.replaced/         exists only while a step is committed again
        step-00000050.removed-1a2b3c4d/ being removed

Any other name, such as a copy `step-00000100.bak`, belongs to the user and is never touched.

A commit is a tree, so that no rank handles the records of all ranks. Each rank writes its file and then a record of it.
One rank in each group of `RANKS_PER_INDEX` collects the group's records in an index. One rank writes the manifest. A
reader opens the manifest and the indexes of its tensors. The manifest has the hashes of the indexes, and an index has
the hashes of files.

A job writes to a folder with its own token. So a job that was considered dead but still runs cannot change the files of
its successor. It cannot commit either, even if it was suspended after `commit` checked its ownership: the successor
first renames the folders that others are writing (`take_over`), and then looks for the newest checkpoint. Only one of
two renames of a folder succeeds, so the other job's checkpoint is either found or never committed. This requires that a
rename is atomic across all machines.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.checkpoint.committed import FOLDER, MANIFEST, find_committed, find_without_manifest
from megaptm.checkpoint.files import (
    DamagedError,
    NotSavedError,
    StorageError,
    free_bytes,
    human_bytes,
    list_names,
    path_exists,
    read_small_file,
    remove_tree,
    storage_errors,
    write_with_retries,
)
from megaptm.checkpoint.manifest import (
    REMEDY,
    IndexEntry,
    check_manifest,
    content_id,
)
from megaptm.checkpoint.records import FileRecord, NonFiniteError
from megaptm.checkpoint.tags import PREFIX as TAG
from megaptm.checkpoint.tags import read_tags
from megaptm.errors import UserError
from megaptm.storage import parse_json, quote_value, sync_to_disk, write_atomically

if TYPE_CHECKING:
    from megaptm.checkpoint.tensors import TensorPiece

FORMAT = "megaptm-checkpoint-2"
RANKS_PER_INDEX = 128
"""Number of consecutive ranks whose files are in one checkpoint index. It is about the square root of the largest
number of ranks, so that writers of indexes and of the manifest have equal work."""
TEMPORARY = re.compile(r"(step-\d+)(\.writing-[\w-]+|\.replaced|\.removed-[0-9a-f]+)?")
"""Pattern of names of temporary checkpoint folders, which this module may delete: step and suffix."""

NO_MANIFEST = f"its {MANIFEST} is missing"

log = logging.getLogger(__name__)


class GoneError(StorageError):
    """Raised if a checkpoint folder was removed while it was written or read, usually by another job."""


class CheckpointStore:
    """Folder of a run's checkpoints, `run/checkpoints`.

    Readers need no `fence`. The job that owns the run passes `fence`, which returns whether it still owns the run. It
    also passes `token`, which is the same on all its ranks and unique among jobs (`RunLock` has both). Only with a
    fence can a store prepare, commit or remove checkpoints, or move damaged ones aside.
    """

    def __init__(
        self,
        run: Path,
        keep: int = 3,
        *,
        fence: Callable[[], bool] | None = None,
        token: str = "job",
        on_damaged: Callable[[int, str, Path], object] | None = None,
        retained: Callable[[list[int]], Collection[int]] = lambda steps: (),
    ) -> None:
        """Open the folder. The newest `keep` checkpoints and the tagged ones are not removed. `retained` gets the steps
        of all checkpoints, and returns steps whose checkpoints are not removed either."""
        if keep < 1:
            raise UserError(f"checkpoint.keep is {keep}: it must be 1 or more.")
        self.run = Path(run)
        self.folder = self.run / FOLDER
        self.keep = keep
        self._fence = fence
        self._token = token
        self._retained = retained
        self._on_damaged = on_damaged or (lambda step, problem, path: None)

    def take_over(self) -> None:
        """Take over the run's checkpoints, before `newest`: other jobs can no longer commit what they are writing."""
        self._require_ownership("take over")
        write_with_retries("remove files of earlier jobs", self.folder, self._clean_up)

    def prepare(self, step: int, expected_bytes: int | None = None) -> None:
        """Prepare to write a checkpoint, on one rank before all ranks write: clean up, make room, create the folder.

        Makes room for `expected_bytes`, by default the size of the newest checkpoint. If there is too little,
        checkpoints that exceed `keep` after this one are removed early; the newest always stays. Raises `NotSavedError`
        if that is not enough.
        """
        self._require_ownership("prepare a checkpoint")

        def make_folder() -> None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean_up()
            needed = sum(map(self.num_bytes, self.steps()[:1])) if expected_bytes is None else expected_bytes
            self._make_room(step, needed)
            self._writing_path(step).mkdir()

        write_with_retries(f"prepare the checkpoint of step {step}", self.folder, make_folder)

    def write(self, step: int, rank: int, pieces: Iterable[TensorPiece]) -> FileRecord:
        """Write this rank's pieces of a prepared checkpoint, and the record that its index needs."""
        from megaptm.checkpoint.tensors import write_pieces  # imports torch

        folder, all_pieces = self._writing_path(step), list(pieces)
        path = folder / f"rank-{rank:05d}.safetensors"

        def write_file() -> FileRecord:
            # After an error the complete file is written again: after a failed fsync, the content of the disk is
            # unknown.
            record = write_pieces(path, all_pieces)
            # The record is written after the file is synced, so a rank with a record has written everything.
            write_atomically(self._record_path(path), json.dumps(record.to_json()).encode())
            return record

        try:
            return write_with_retries(f"write {path.name} of step {step}", folder, write_file)
        except (StorageError, NonFiniteError) as error:
            if not folder.is_dir():
                raise GoneError(
                    f"{folder} was removed, because another rank failed to write, or another job took over the run "
                    f"{self.run}"
                ) from error
            # A checkpoint that lacks a rank is useless, and its space may be needed for the next one.
            remove_tree(folder)
            raise

    def write_index(self, step: int, rank: int, ranks: int) -> None:
        """Write the checkpoint index of a group of ranks after all of them have written. Only the first rank of the
        group writes."""
        if rank % RANKS_PER_INDEX:
            return
        folder, path = self._writing_path(step), self._index_path(step, rank)
        action = f"write {path.name} of step {step}"
        written = [
            folder / f"rank-{other:05d}.safetensors" for other in range(rank, min(rank + RANKS_PER_INDEX, ranks))
        ]

        def write_files() -> None:
            # Records are removed last, so that a repeated attempt finds them.
            content = json.dumps({"files": records}, separators=(",", ":")).encode()
            write_atomically(path, content)
            entry = IndexEntry.from_content(path.name, content, records)
            write_atomically(self._record_path(path), entry.model_dump_json().encode())
            for file in written:
                self._record_path(file).unlink(missing_ok=True)

        try:
            records = write_with_retries(action, folder, lambda: [self._read_record(file) for file in written])
            write_with_retries(action, folder, write_files)
        except StorageError as error:
            if not folder.is_dir():
                raise GoneError(f"{folder} was removed, because another job took over the run {self.run}") from error
            raise

    def commit(self, step: int, state: dict[str, Any], ranks: int) -> Checkpoint:
        """Commit a checkpoint atomically, on one rank after all have written; then remove the oldest.

        Writes the indexes that their ranks have not written (`write_index`).
        """
        self._require_ownership("commit a checkpoint")
        writing, final = self._writing_path(step), self.folder / f"step-{step:08d}"
        action = f"commit the checkpoint of step {step}"
        leaders = range(0, ranks, RANKS_PER_INDEX)
        records = [self._record_path(self._index_path(step, leader)) for leader in leaders]
        exist = write_with_retries(action, writing, lambda: [record.exists() for record in records])
        for leader, exists in zip(leaders, exist, strict=True):
            if not exists:
                self.write_index(step, leader, ranks)
        manifest = {
            "format": FORMAT,
            "step": step,
            "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "state": state,
            "indexes": write_with_retries(
                action, writing, lambda: [json.loads(record.read_bytes()) for record in records]
            ),
        }
        manifest = json.loads(json.dumps(manifest))
        manifest["id"] = content_id(manifest)
        content = json.dumps(manifest).encode()

        def complete() -> None:
            for record in records:
                record.unlink(missing_ok=True)
            write_atomically(writing / MANIFEST, content)

        def rename() -> None:
            # An earlier attempt may have renamed although the system reported an error.
            done = (
                not path_exists(writing)
                and path_exists(final / MANIFEST)
                and read_small_file(final / MANIFEST) == content
            )
            if not done:
                if final in find_committed(self.run).values():
                    for tag in read_tags(final):
                        (writing / f"{TAG}{tag}").touch()
                    final.rename(final.with_suffix(".replaced"))
                writing.rename(final)
            sync_to_disk(self.folder)

        write_with_retries(action, writing, complete)
        self._require_ownership("commit a checkpoint")
        write_with_retries(action, writing, rename)
        self._remove_oldest(step)
        return self.load(step)

    def steps(self) -> list[int]:
        """Return the steps of committed checkpoints, newest first. A checkpoint may be damaged."""
        return sorted(find_committed(self.run), reverse=True)

    def load(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step. Its manifest is checked, its indexes and files are not."""
        folder = find_committed(self.run).get(step)
        if folder is None:
            raise GoneError(f"{self.folder} has no checkpoint of step {step}; its steps are {self.steps() or 'none'}")
        path = folder / MANIFEST
        try:
            content = read_small_file(path)
        except FileNotFoundError:
            raise GoneError(f"{path} is missing") from None
        try:
            manifest = parse_json(content, path, remedy=REMEDY)
            if not isinstance(manifest, dict) or manifest.get("id") != content_id(manifest):
                raise DamagedError(f"{path} is damaged: its sha256 differs from its id")
            if manifest.get("format") == FORMAT:
                indexes = check_manifest(manifest, path, step=step)
                return Checkpoint(step=step, folder=folder, state=manifest["state"], indexes=indexes)
        except StorageError:
            raise
        except UserError as error:
            raise DamagedError(str(error)) from None
        raise UserError(
            f"{path} has format {quote_value(manifest.get('format'))}: this version of megaptm reads {FORMAT}."
        )

    def newest(self, *, verify: bool = True) -> Checkpoint | None:
        """Return the newest undamaged checkpoint; None if none was ever saved.

        Damaged ones are reported and, by the owner of the run, moved aside. Raises `UserError` if all are damaged:
        otherwise the run would silently restart at step 0. Raises `UnreadableError` if one cannot be read; it is not
        moved.
        """

        def inspect(step: int) -> Checkpoint | str | None:
            try:
                return self.inspect(step, verify=verify)
            except GoneError:
                return None  # its owner has just removed it as the oldest

        for step, folder in find_without_manifest(self.run):
            if step >= max(self.steps(), default=0):
                self.set_aside(step, NO_MANIFEST, folder)
        if (checkpoint := self.first_undamaged(self.steps(), inspect)) is None:
            self.refuse_fresh_start()
        return checkpoint

    def inspect(self, step: int, *, verify: bool = True, part: int = 0, parts: int = 1) -> Checkpoint | str:
        """Return the checkpoint of a step, or a description of its damage. `verify`: check this part of its files
        too."""
        try:
            checkpoint = self.load(step)
            if verify:
                checkpoint.verify(part=part, parts=parts)
        except DamagedError as damage:
            return str(damage).removesuffix(".")
        return checkpoint

    def first_undamaged(
        self, steps: Iterable[int], inspect: Callable[[int], Checkpoint | str | None]
    ) -> Checkpoint | None:
        """Return the first checkpoint that `inspect` reports as undamaged. Damaged ones are moved aside; a result of
        None is skipped."""
        for step in steps:
            result = inspect(step)
            if isinstance(result, Checkpoint):
                return result
            if result is not None and (folder := find_committed(self.run).get(step)):
                self.set_aside(step, result, folder)
        return None

    def refuse_fresh_start(self) -> None:
        """Raise `UserError` if the run has saved checkpoints but none is usable."""
        if self.steps() or any(".damaged" in name for name in list_names(self.folder)):
            raise UserError(
                f"all checkpoints in {self.folder} are damaged: put an undamaged copy there, or choose another "
                "run=FOLDER to start at step 0."
            )

    def removable(self) -> list[int]:
        """Return the steps, newest first, whose checkpoints are neither among the newest, nor retained, nor tagged."""
        return self._removable(self.steps(), self.keep)

    def remove(self, step: int) -> None:
        """Remove the checkpoint of a step, unless it has just been tagged."""
        self._require_ownership("remove a checkpoint")
        self._remove_temporary(find_committed(self.run)[step])

    def set_aside(self, step: int, problem: str, folder: Path) -> None:
        """Report a damaged checkpoint. If this job owns the run, rename the checkpoint's folder."""
        if self._fence is not None and self._fence():
            folder = self._rename_aside(folder, "damaged")
        log.warning("the checkpoint of step %d is not used (%s); its files are in %s", step, problem, folder)
        self._on_damaged(step, problem, folder)

    def abandon(self, step: int) -> Path:
        """Move a checkpoint aside, so that the run continues from an earlier one; return its new path."""
        self._require_ownership("abandon a checkpoint")
        return self._rename_aside(find_committed(self.run)[step], "abandoned")

    def _rename_aside(self, folder: Path, reason: str) -> Path:
        target, index = folder.with_name(f"{folder.name}.{reason}"), 1
        with storage_errors(f"rename {folder.name}", self.folder):
            while target.exists():
                target, index = folder.with_name(f"{folder.name}.{reason}-{index}"), index + 1
            return folder.rename(target)

    def _make_room(self, step: int, needed: int) -> None:
        for oldest in reversed(self._removable(self.steps(), max(self.keep - 1, 1))):
            if needed <= free_bytes(self.folder):
                return
            self._remove_temporary(find_committed(self.run)[oldest])
            log.warning(
                "%s is nearly full: the checkpoint of step %d was removed to make room for that of step %d, although "
                "checkpoint.keep is %d",
                self.folder,
                oldest,
                step,
                self.keep,
            )
        if needed > (free := free_bytes(self.folder)):
            raise NotSavedError(
                f"the checkpoint of step {step} needs {human_bytes(needed)}, but {self.folder} has {human_bytes(free)} "
                f"free: free {human_bytes(needed - free)} more there, or move {self.run} to a larger disk; "
                f"{self._describe_lower_keep(needed - free)}."
            )

    def _describe_lower_keep(self, missing: int) -> str:
        """Describe how many bytes a lower `keep` of checkpoints would free."""
        steps = self.steps()
        if len(steps) < 2:
            return (
                "a lower checkpoint.keep frees nothing, because the newest checkpoint stays until the next is complete"
            )
        freed = sum(self.num_bytes(step) for step in steps[1:])
        enough = "which is enough" if freed >= missing else "which is not enough"
        return f"checkpoint.keep=2 instead of {self.keep} frees {human_bytes(freed)}, {enough}"

    def num_bytes(self, step: int) -> int:
        """Return the bytes of a checkpoint without opening its files; 0 for a damaged one."""
        try:
            checkpoint = self.load(step)
        except DamagedError:
            return 0
        manifest = (checkpoint.folder / MANIFEST).stat().st_size
        return manifest + sum(entry.size + entry.num_bytes for entry in checkpoint.indexes)

    def _remove_temporary(self, folder: Path) -> None:
        """Remove a temporary checkpoint folder. It is renamed first, so that it stops being a checkpoint at once and no
        job writes to it."""
        match = TEMPORARY.fullmatch(folder.name)
        assert match is not None, folder
        if not (match[2] or "").startswith(".removed"):
            renamed = folder.with_name(f"{match[1]}.removed-{secrets.token_hex(4)}")
            with contextlib.suppress(FileNotFoundError):
                folder.rename(renamed)
            was_tagged = match[2] is None and bool(read_tags(renamed))  # since its tags were read
            folder = renamed
        else:  # of a job that ended before it removed or returned a tagged checkpoint
            was_tagged = bool(read_tags(folder)) and path_exists(folder / MANIFEST)
        if was_tagged and not (committed := folder.with_name(match[1])).exists():
            folder.rename(committed)
            return
        remove_tree(folder)

    def _clean_up(self) -> None:
        """Remove the temporary checkpoint folders of earlier jobs, and move checkpoints without manifest aside."""
        valid = set(find_committed(self.run).values())
        for step, folder in find_without_manifest(self.run):
            self.set_aside(step, NO_MANIFEST, folder)
        for name in list_names(self.folder):
            match = TEMPORARY.fullmatch(name)
            if match is not None and match[2] and self.folder / name not in valid:
                self._remove_temporary(self.folder / name)

    def _remove_oldest(self, just_committed: int) -> None:
        if self._fence is None or not self._fence():
            return  # another job owns the run and decides what to remove
        try:
            self._clean_up()
            earlier = [step for step in self.steps() if step != just_committed]
            for step in self._removable(earlier, self.keep - 1):
                self._remove_temporary(find_committed(self.run)[step])
        except OSError as error:  # the next checkpoint tries again
            log.warning(
                "checkpoints before step %d could not be removed from %s: %s", just_committed, self.folder, error
            )

    def _removable(self, steps: list[int], number: int) -> list[int]:
        """Return the steps after the first `number` whose checkpoints are neither retained nor tagged."""
        tagged = {step for step, folder in find_committed(self.run).items() if read_tags(folder)}
        retained = {*self._retained(self.steps()), *tagged}
        return [step for step in steps[number:] if step not in retained]

    def _read_record(self, path: Path) -> dict[str, Any]:
        record_path = self._record_path(path)
        if not record_path.exists():
            raise StorageError(
                f"{path} was not written: its rank failed, or its node does not share the run folder; put the run "
                "folder on a disk that all nodes share."
            )
        record = json.loads(record_path.read_bytes())
        if path.stat().st_size != record["size"]:
            raise StorageError(
                f"{path} does not have the {record['size']:,} bytes that its rank wrote: check its disk."
            )
        return record

    def _require_ownership(self, action: str) -> None:
        if self._fence is None:
            raise AssertionError(f"cannot {action}: the store has no fence (RunLock.is_held)")
        if not self._fence():
            raise UserError(f"cannot {action}: another job took over the run {self.run}, so this job ends.")

    def _index_path(self, step: int, leader: int) -> Path:
        return self._writing_path(step) / f"index-{leader // RANKS_PER_INDEX:05d}.json"

    def _writing_path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.writing-{self._token}"

    @staticmethod
    def _record_path(path: Path) -> Path:
        return path.with_suffix(".record.json")
