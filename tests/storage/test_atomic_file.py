"""Atomic files: readers see a complete file, even if the writer fails or is killed."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from megaptm.errors import UserError, storage_errors_as_user_errors
from megaptm.storage import AtomicFile, is_unfinished_file, write_atomically, write_session


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_file_is_replaced_when_block_ends(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with AtomicFile(path) as part:
        part.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "write_part", [lambda part: part.write_bytes(b"half"), lambda part: part.mkdir(), lambda part: None]
)
def test_error_leaves_only_old_file(tmp_path, write_part):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), AtomicFile(path) as part:
        print(write_part(part), 1 / 0)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("folder_exists", [False, True])
def test_folder_is_created_with_its_content(tmp_path, folder_exists):
    path = tmp_path / "folder"
    if folder_exists:
        path.mkdir()
    with AtomicFile(path) as part:
        (part / "inner").mkdir(parents=True)
        (part / "inner" / "file").write_bytes(b"content")
    assert (path / "inner" / "file").read_bytes() == b"content"
    assert names(tmp_path) == ["folder"]


def test_first_writer_removes_unfinished_files(tmp_path):
    def create(name):
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        return path

    unfinished = [create(".train-000000.safetensors.7-ab.part"), create("tokenizer/.tokenizer.json.7-ab.part")]
    finished = [create("train-000001.safetensors"), create("apart.part")]
    with write_session(tmp_path / "folder"):
        assert not any(map(Path.exists, unfinished))
        own = create(".train-000002.safetensors.8-cd.part")
        with write_session(tmp_path / "folder"):
            assert own.exists()
        with write_session(tmp_path / "folder"):
            assert own.exists()
    assert all(map(Path.exists, finished))
    assert not any(map(is_unfinished_file, finished))
    with write_session(tmp_path / "folder"):
        assert not own.exists()


def test_folder_does_not_replace_nonempty_folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "precious").touch()
    with pytest.raises(OSError, match="not empty"), AtomicFile(path) as part:
        part.mkdir()
    assert names(path) == ["precious"]
    assert names(tmp_path) == ["folder"]


def test_file_is_synced_before_and_folder_after_rename(tmp_path, monkeypatch):
    path, calls = tmp_path / "file", []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(os.readlink(f"/proc/self/fd/{file}")), sync(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("renamed"), replace(*names)))
    attempt = AtomicFile(path)
    attempt.part.write_bytes(b"content")
    attempt.commit()
    assert calls == [str(attempt.part), "renamed", str(tmp_path)]


def test_concurrent_writers_do_not_mix(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([number]) * 100_000 for number in range(8)]
    writers = [threading.Thread(target=write_atomically, args=(path, content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["file"]


ENDLESS_WRITER = """
import sys
from megaptm.storage import write_atomically
write_atomically(sys.argv[1], bytes(1 << 22))
print("started", flush=True)
while True:
    for number in range(256):
        write_atomically(sys.argv[1], bytes([number]) * (1 << 22))
"""


def test_killed_writer_leaves_complete_file(tmp_path):
    path, num_unfinished = tmp_path / "file", 0
    for delay in range(6):
        writer = subprocess.Popen([sys.executable, "-c", ENDLESS_WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout.readline() == "started\n"
        threading.Event().wait(0.003 * delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        content = path.read_bytes()
        assert content == content[:1] * (1 << 22)
        num_unfinished += len(names(tmp_path)) - 1
        for part in tmp_path.glob(".*.part"):
            part.unlink()
    assert num_unfinished > 0, "no kill happened during a write"


def test_full_disk_error_names_file(tmp_path, monkeypatch):
    def raise_full_disk(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the system's error names no file

    monkeypatch.setattr(Path, "write_bytes", raise_full_disk)
    message = f"no space left on the disk of {tmp_path / 'file'}: free some space"
    with pytest.raises(UserError, match=message), storage_errors_as_user_errors("the output"):
        write_atomically(tmp_path / "file", b"x")


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_files_of_safetensors_have_the_mode_of_the_umask(umask, tmp_path):
    """safetensors' issue 782: since 0.8 only its owner can read a file, so that a service cannot load an export."""
    before = os.umask(umask)
    try:
        with AtomicFile(tmp_path / "model") as part:
            part.mkdir()
            (part / "config.json").write_text("{}")
            save_file({"weight": np.ones(3)}, part / "model.safetensors")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert modes == {0o666 & ~umask}


def test_pipe_is_not_replaced(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a regular file"):
        write_atomically(pipe, b"some")
    assert pipe.is_fifo()
