"""Kept logits of a teacher that are not what was written, or that nobody wrote: one sentence, and no memory."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from megaptm.data.teacher_logits import (
    FORMAT,
    MANIFEST,
    TEACHER_IDS,
    UNFINISHED,
    SampleLogits,
    SplitLogits,
    TeacherLogits,
    TeacherLogitsManifest,
    file_hash,
    file_name,
    is_complete_file,
    read_manifest,
    sample_digest,
    write_file,
)
from megaptm.errors import UserError
from megaptm.storage import RetryPolicy

SAID = {
    "format": FORMAT,
    "teacher": "it",
    "step": 1,
    "head": "mlm",
    "positions": "all",
    "top": 2,
    "dtype": "float16",
    "sequence": 8,
    "vocabulary": 20,
    "per_file": 4,
    "samples": {"train": 2},
    "files": {},
}
SAMPLES = [{"tokens": np.arange(number, number + 8)} for number in range(2)]


def written(folder: Path) -> Path:
    """The file of two samples."""
    ids = np.arange(16, dtype=np.int32).reshape(8, 2)
    kept = SampleLogits(np.arange(8, dtype=np.int32), ids, -ids.astype(np.float16))
    write_file(path := folder / file_name("train", 0), [sample_digest(one) for one in SAMPLES], [kept] * 2)
    return path


def sealed(folder: Path, **said: Any) -> TeacherLogits:
    """With a manifest that is right about its file, whatever is in it."""
    path = folder / file_name("train", 0)
    (folder / MANIFEST).write_text(json.dumps(SAID | {"files": {path.name: file_hash(path)}} | said))
    return TeacherLogits.open(folder)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("top", 21, r"top \(21\) is more than vocabulary \(20\)"),
        ("vocabulary", -1, r"top \(2\) is more than vocabulary \(-1\)"),
        ("dtype", "float" * 50, r"dtype \('float.{60,90}\.\.\.\) must be float16 or float32"),
        ("dtype", "float64", r"dtype \('float64'\) must be float16 or float32"),
    ],
)
def test_a_manifest_that_says_what_cannot_be_is_refused(name: str, value: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(SAID | {name: value}))
    with pytest.raises(UserError, match=said):
        read_manifest(tmp_path / MANIFEST)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("samples", np.uint8(1)),
        ("samples", np.zeros(2, np.uint8)),
        ("offsets", np.int64(0)),
        ("offsets", np.array([0, 8, 17])),
        ("positions", np.int32(1)),
        ("positions", np.full(16, 8, np.int32)),
        ("ids", np.int32(1)),
        ("ids", np.full((16, 2), 20, np.int32)),
        ("logits", np.float16(1)),
        ("logits", np.full((16, 2), np.nan, np.float16)),
        ("logits", np.zeros((16, 2))),
        ("logits", None),
    ],
)
def test_a_file_that_holds_something_else_is_refused_and_written_again(name: str, array: Any, tmp_path: Path) -> None:
    path, first = written(tmp_path), sample_digest(SAMPLES[0])
    manifest = TeacherLogitsManifest.model_validate(SAID)
    assert is_complete_file(path, manifest, 2, first)
    assert not is_complete_file(path, manifest, 3, first)
    assert not is_complete_file(path, manifest, 2, sample_digest(SAMPLES[1]))
    assert sealed(tmp_path).split("train").fields(0, SAMPLES[0])[TEACHER_IDS].tolist()[1] == [2, 3]
    arrays = load(path.read_bytes()) | {name: np.asarray(array)}
    if array is None:
        del arrays[name]
    path.write_bytes(save(arrays))
    assert not is_complete_file(path, manifest, 2, first)
    with pytest.raises(UserError, match="is not a file of logits: remove it, and write it with"):
        sealed(tmp_path).split("train").fields(0, SAMPLES[0])


def test_a_disk_that_fails_once_is_asked_again_and_named_where_it_goes_on_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fails, really = written(tmp_path), 1, Path.read_bytes
    kept = sealed(tmp_path)

    def read_badly(one: Path) -> bytes:
        nonlocal fails
        if one == path and fails:
            fails -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))  # of reading, which names no file
        return really(one)

    monkeypatch.setattr(Path, "read_bytes", read_badly)
    assert kept.split("train").fields(0, SAMPLES[0])[TEACHER_IDS].tolist()[1] == [2, 3]
    fails = -1
    monkeypatch.setattr("megaptm.data.shards.RETRY", RetryPolicy(seconds=0.0))
    with pytest.raises(UserError, match=rf"{path} could not be reached for \d+ s .* check that its disk"):
        kept.split("train").fields(0, SAMPLES[0])


def test_a_folder_that_is_added_to_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was not full is written again then; of another teacher it is another."""
    path = written(tmp_path)
    kept = sealed(tmp_path)
    unfinished = path.with_name(UNFINISHED)
    unfinished.write_text("{}")
    ids = np.ones((8, 2), np.int32)
    longer = [SampleLogits(np.arange(8, dtype=np.int32), ids, ids.astype(np.float16))] * 3
    write_file(path, [sample_digest(one) for one in (*SAMPLES, {"tokens": ids})], longer)
    # It ends while the student looks: what was read of the folder before is of no account.
    monkeypatch.setattr(SplitLogits, "_hash_now", lambda *_: unfinished.unlink())
    with pytest.raises(UserError, match="is being extended by `megaptm cache-logits` for a longer run"):
        kept.split("train").fields(0, SAMPLES[0])
    monkeypatch.undo()
    sealed(tmp_path, teacher="another")
    with pytest.raises(UserError, match="is damaged"):
        kept.split("train").fields(0, SAMPLES[0])
    sealed(tmp_path, samples={"train": 3})
    assert kept.split("train").fields(0, SAMPLES[0])[TEACHER_IDS].tolist() == ids.tolist()
