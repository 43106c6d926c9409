"""What appears is whole, whoever fails or is killed while making it."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from megaptm.errors import UserError, storage_errors_as_user_errors
from megaptm.storage import AtomicFile, is_rest, write_whole, writing_in


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_the_place_of_the_old_one_at_the_end(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with AtomicFile(path) as part:
        part.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("make", [lambda part: part.write_bytes(b"half"), lambda part: part.mkdir(), lambda part: None])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, make):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), AtomicFile(path) as part:
        print(make(part), 1 / 0)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("empty_one_there", [False, True])
def test_a_folder_appears_with_all_that_is_in_it(tmp_path, empty_one_there):
    path = tmp_path / "folder"
    if empty_one_there:
        path.mkdir()
    with AtomicFile(path) as part:
        (part / "inner").mkdir(parents=True)
        (part / "inner" / "file").write_bytes(b"content")
    assert (path / "inner" / "file").read_bytes() == b"content"
    assert names(tmp_path) == ["folder"]


def test_what_killed_processes_left_is_removed_by_whoever_begins_when_no_other_writes(tmp_path):
    def leave(name):
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        return path

    halves = [leave(".train-000000.safetensors.7-ab.part"), leave("tokenizer/.tokenizer.json.7-ab.part")]
    kept = [leave("train-000001.safetensors"), leave("apart.part")]
    with writing_in(tmp_path / "folder"):
        assert not any(map(Path.exists, halves))
        mine = leave(".train-000002.safetensors.8-cd.part")
        with writing_in(tmp_path / "folder"):
            assert mine.exists()
        with writing_in(tmp_path / "folder"):
            assert mine.exists()
    assert all(map(Path.exists, kept))
    assert not any(map(is_rest, kept))
    with writing_in(tmp_path / "folder"):
        assert not mine.exists()


def test_a_folder_never_takes_the_place_of_one_that_holds_something(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "precious").touch()
    with pytest.raises(OSError, match="not empty"), AtomicFile(path) as part:
        part.mkdir()
    assert names(path) == ["precious"]
    assert names(tmp_path) == ["folder"]


def test_what_is_to_appear_is_on_the_disk_before_it_is_renamed_and_its_name_after(tmp_path, monkeypatch):
    path, calls = tmp_path / "file", []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(os.readlink(f"/proc/self/fd/{file}")), sync(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("renamed"), replace(*names)))
    attempt = AtomicFile(path)
    attempt.part.write_bytes(b"content")
    attempt.keep()
    assert calls == [str(attempt.part), "renamed", str(tmp_path)]


def test_writers_at_the_same_time_do_not_mix(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([number]) * 100_000 for number in range(8)]
    writers = [threading.Thread(target=write_whole, args=(path, content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["file"]


WRITE_FOR_EVER = """
import sys
from megaptm.storage import write_whole
write_whole(sys.argv[1], bytes(1 << 22))
print("begun", flush=True)
while True:
    for number in range(256):
        write_whole(sys.argv[1], bytes([number]) * (1 << 22))
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path):
    path, left_behind = tmp_path / "file", 0
    for delay in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout.readline() == "begun\n"
        threading.Event().wait(0.003 * delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        content = path.read_bytes()
        assert content == content[:1] * (1 << 22)
        left_behind += len(names(tmp_path)) - 1
        for part in tmp_path.glob(".*.part"):
            part.unlink()
    assert left_behind > 0, "no kill hit a write: the drill proves nothing"


def test_a_full_disk_is_told_with_the_file_that_had_no_room(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # of writing, which names no file

    monkeypatch.setattr(Path, "write_bytes", full)
    said = f"no space left on the disk of {tmp_path / 'file'}: make room"
    with pytest.raises(UserError, match=said), storage_errors_as_user_errors("the output"):
        write_whole(tmp_path / "file", b"x")


def test_no_file_takes_the_place_of_a_device_or_a_pipe(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no file, and one would take its place"):
        write_whole(pipe, b"some")
    assert pipe.is_fifo()
