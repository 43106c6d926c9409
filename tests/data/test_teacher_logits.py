"""Files of teacher logits: damaged, invalid and unfinished ones are rejected."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from megaptm.distillation.cached_logits import (
    FORMAT,
    MANIFEST,
    TEACHER_IDS,
    UNFINISHED,
    SampleLogits,
    SplitLogits,
    TeacherLogits,
    TeacherLogitsManifest,
    is_complete_file,
    logits_file_name,
    read_logits_manifest,
    sample_digest,
    write_logits_file,
)
from megaptm.errors import UserError
from megaptm.storage import RetryPolicy, hash_regular_file

MANIFEST_CONTENT = {
    "format": FORMAT,
    "teacher": "teacher",
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
SAMPLES = [{"tokens": np.arange(start, start + 8)} for start in range(2)]


def write_samples(folder: Path) -> Path:
    """Write the logits of two samples, and return the file."""
    ids = np.arange(16, dtype=np.int32).reshape(8, 2)
    logits = SampleLogits(np.arange(8, dtype=np.int32), ids, -ids.astype(np.float16))
    write_logits_file(
        path := folder / logits_file_name("train", 0), [sample_digest(sample) for sample in SAMPLES], [logits] * 2
    )
    return path


def open_with_manifest(folder: Path, **changes: Any) -> TeacherLogits:
    """Write a manifest with the hash of the file as it is, and open the folder."""
    path = folder / logits_file_name("train", 0)
    (folder / MANIFEST).write_text(
        json.dumps(MANIFEST_CONTENT | {"files": {path.name: hash_regular_file(path)}} | changes)
    )
    return TeacherLogits.open(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("top", 21, r"top \(21\) is more than vocabulary \(20\)"),
        ("vocabulary", -1, r"top \(2\) is more than vocabulary \(-1\)"),
        ("dtype", "float" * 50, r"dtype \('float.{60,90}\.\.\.\) must be float16 or float32"),
        ("dtype", "float64", r"dtype \('float64'\) must be float16 or float32"),
    ],
)
def test_invalid_manifest_is_rejected(name: str, value: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(MANIFEST_CONTENT | {name: value}))
    with pytest.raises(UserError, match=message):
        read_logits_manifest(tmp_path / MANIFEST)


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
def test_invalid_file_is_rejected_and_incomplete(name: str, array: Any, tmp_path: Path) -> None:
    path, first = write_samples(tmp_path), sample_digest(SAMPLES[0])
    manifest = TeacherLogitsManifest.model_validate(MANIFEST_CONTENT)
    assert is_complete_file(path, manifest, 2, first)
    assert not is_complete_file(path, manifest, 3, first)
    assert not is_complete_file(path, manifest, 2, sample_digest(SAMPLES[1]))
    assert open_with_manifest(tmp_path).split("train").fields(0, SAMPLES[0])[TEACHER_IDS].tolist()[1] == [2, 3]
    arrays = load(path.read_bytes()) | {name: np.asarray(array)}
    if array is None:
        del arrays[name]
    path.write_bytes(save(arrays))
    assert not is_complete_file(path, manifest, 2, first)
    with pytest.raises(UserError, match="is not a file of logits: remove it, and write it with"):
        open_with_manifest(tmp_path).split("train").fields(0, SAMPLES[0])


def test_failed_read_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, failures, read_bytes = write_samples(tmp_path), 1, Path.read_bytes
    logits = open_with_manifest(tmp_path)

    def fail_or_read(file: Path) -> bytes:
        nonlocal failures
        if file == path and failures:
            failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))  # an error of reading does not name the file
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", fail_or_read)
    assert logits.split("train").fields(0, SAMPLES[0])[TEACHER_IDS].tolist()[1] == [2, 3]
    failures = -1
    monkeypatch.setattr("megaptm.data.outages.RETRY", RetryPolicy(seconds=0.0))
    with pytest.raises(UserError, match=rf"{path} could not be reached for \d+ s .* check that its disk"):
        logits.split("train").fields(0, SAMPLES[0])


def test_extended_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`megaptm cache-logits` may replace an incomplete file while a student reads the folder."""
    path = write_samples(tmp_path)
    logits = open_with_manifest(tmp_path)
    unfinished = path.with_name(UNFINISHED)
    unfinished.write_text("{}")
    ids = np.ones((8, 2), np.int32)
    longer = [SampleLogits(np.arange(8, dtype=np.int32), ids, ids.astype(np.float16))] * 3
    write_logits_file(path, [sample_digest(sample) for sample in (*SAMPLES, {"tokens": ids})], longer)
    # The extension ends while the student computes the hash.
    monkeypatch.setattr(SplitLogits, "_hash_now", lambda *_: unfinished.unlink())
    with pytest.raises(UserError, match="is being extended by `megaptm cache-logits` for a longer run"):
        logits.split("train").fields(0, SAMPLES[0])
    monkeypatch.undo()
    open_with_manifest(tmp_path, teacher="another")
    with pytest.raises(UserError, match="is damaged"):
        logits.split("train").fields(0, SAMPLES[0])
    open_with_manifest(tmp_path, samples={"train": 3})
    assert logits.split("train").fields(0, SAMPLES[0])[TEACHER_IDS].tolist() == ids.tolist()
