"""Files that documents name, such as images: a document without its file is dropped, but not for a failing disk."""

import errno
import os

import pytest

from data_pipeline.corpus import tokenizing
from data_pipeline.document import Document
from megaptm.errors import UserError
from megaptm.storage.retry import OutageError


def read(name: object) -> dict[str, bytes] | None:
    return tokenizing._read_attached(Document("a caption", "a.txt", notes={"image": name}), {".png": "png"})


def failing(error: Exception):
    def read_file(location: str) -> bytes:
        raise error

    return read_file


def test_attached_file_is_read(tmp_path):
    (tmp_path / "a.png").write_bytes(b"pixels")
    assert read(str(tmp_path / "a.png")) == {"png": b"pixels"}
    assert read(str(tmp_path / "b.png")) is None
    assert read(str(tmp_path / "a.gif")) is None
    assert read({"path": str(tmp_path / "a.png")}) is None


@pytest.mark.parametrize(
    "error", [UserError("s3://bucket/a.png does not exist."), PermissionError(errno.EACCES, "Permission denied")]
)
def test_missing_file_drops_document(error, monkeypatch):
    monkeypatch.setattr(tokenizing, "read_file", failing(error))
    assert read("s3://bucket/a.png") is None


@pytest.mark.parametrize(
    "error",
    [
        OutageError("s3://bucket could not be reached."),
        MemoryError(),
        *(OSError(number, os.strerror(number)) for number in (errno.EIO, errno.EMFILE)),
    ],
)
def test_failing_disk_or_server_ends_build(error, monkeypatch):
    monkeypatch.setattr(tokenizing, "read_file", failing(error))
    with pytest.raises(type(error)):
        read("s3://bucket/a.png")
