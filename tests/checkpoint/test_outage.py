"""Checkpoints survive a file system that fails: system calls fail in a real process."""

import errno
import os
import subprocess
import sys

import pytest

from tests.checkpoint.test_store import names, save, store  # noqa: F401  # a fixture

# Runs in its own process, whose C library fails. Retries are short for a permanent failure.
READ = """
import sys
from megaptm.checkpoint import files
from megaptm.checkpoint.store import CheckpointStore
from megaptm.errors import UserError
from megaptm.storage import RetryPolicy

files.RETRY = RetryPolicy(seconds=float(sys.argv[2]), pause=0.01)
try:
    checkpoint = CheckpointStore(sys.argv[1], fence=lambda: True).newest()
    checkpoint.reader.read("weight/w")
    print(checkpoint.step)
except UserError as error:
    print(error)
"""


@pytest.fixture
def read(faulty_files, store, tmp_path):  # noqa: F811
    """Function that returns the step, or error, that a job reads while calls fail on paths that contain `path`.

    The run has checkpoints of steps 10 and 20.
    """
    for step in (10, 20):
        save(store, step)

    def run_reader(path, error_number, *, call="read", times, seconds=60.0):
        command = [sys.executable, "-c", READ, str(tmp_path), str(seconds)]
        environment = {**os.environ, **faulty_files((call, path, error_number, times))}
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
        assert names(store) == ["step-00000010", "step-00000020"], "an undamaged checkpoint was set aside"
        return process.stdout.strip()

    return run_reader


def test_temporary_read_errors_are_retried(read):
    assert read("step-00000020/rank-0000", errno.EIO, times=3) == "20"
    assert read("step-00000020", errno.ESTALE, call="open", times=3) == "20"


@pytest.mark.parametrize(
    ("path", "error_number", "call", "seconds"),
    [
        ("step-00000020/rank-00001", errno.EIO, "read", 0.2),
        ("step-00000020/manifest.json", errno.EACCES, "open", 600.0),
        ("step-00000020/index-00000.json", errno.EACCES, "open", 600.0),
    ],
)
def test_unreadable_checkpoint_is_reported_and_not_moved(read, path, error_number, call, seconds):
    output = read(path, error_number, call=call, times=-1, seconds=seconds)
    for text in (os.strerror(error_number), path, "no data was lost"):
        assert text in output
    assert "damaged" not in output
    assert "remove" not in output


def test_dangling_link_is_not_an_empty_folder(store, tmp_path):  # noqa: F811
    from megaptm.checkpoint.files import UnreadableError

    save(store, 10)
    mounted = tmp_path / "mounted"
    store.folder.rename(mounted)
    store.folder.symlink_to(mounted)
    assert store.newest().step == 10
    mounted.rename(tmp_path / "unmounted")
    with pytest.raises(UnreadableError, match=r"is a link to .*mounted, which does not exist; no data was lost"):
        store.newest()


SAVE = """
import sys
from megaptm.checkpoint import files
from megaptm.checkpoint.store import CheckpointStore
from megaptm.storage import RetryPolicy
from tests.checkpoint.test_store import save

files.WRITE_RETRY = RetryPolicy(seconds=float(sys.argv[2]), pause=0.01)
store = CheckpointStore(sys.argv[1], keep=9, fence=lambda: True)
for step in (10, 20, 30, 40):
    store.take_over()
    try:
        save(store, step)
    except files.NotSavedError as error:
        print(error)
"""


def run_writer(tmp_path, environment, *, seconds):
    """Return the output of a job that saves four steps while calls fail."""
    command = [sys.executable, "-c", SAVE, str(tmp_path), str(seconds)]
    process = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_temporary_write_errors_are_retried(faulty_files, store, tmp_path):  # noqa: F811
    environment = faulty_files(
        ("write", "step-00000010.writing", errno.EIO, 2),
        ("rename", "step-00000010.writing", errno.ESTALE, 2),
        ("fsync", "step-00000020.writing", errno.EIO, 2),
        ("rename", "step-00000020/manifest", errno.EIO, 1),
        ("fsync", "checkpoints", errno.EIO, 9),
    )
    assert run_writer(tmp_path, environment, seconds=60.0) == ""
    assert store.steps() == [40, 30, 20, 10]
    assert store.newest().reader.read("weight/w")[0, 0] == 4000


def test_checkpoint_is_skipped_if_writing_keeps_failing(faulty_files, store, tmp_path):  # noqa: F811
    environment = faulty_files(
        ("write", "step-00000020.writing-job/rank-00001", errno.EIO, -1),
        ("rename", "step-00000030.writing-job/.manifest", errno.EIO, -1),
    )
    lines = run_writer(tmp_path, environment, seconds=0.2).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "cannot write rank-00001.safetensors of step 20",
        "cannot commit the checkpoint of step 30",
    ]
    assert all(os.strerror(errno.EIO) in line for line in lines)
    assert names(store) == ["step-00000010", "step-00000040"]


def test_nfs_files_that_stay_open_are_ignored(faulty_files, store, tmp_path):  # noqa: F811
    unfinished = tmp_path / "checkpoints/step-00000005.writing-job"
    unfinished.mkdir(parents=True)
    (unfinished / ".nfs0001").touch()
    assert run_writer(tmp_path, faulty_files(("unlink", ".nfs0001", errno.EBUSY, -1)), seconds=0.2) == ""
    assert store.steps() == [40, 30, 20, 10]
    [removed] = [name for name in names(store) if ".removed" in name]
    assert removed.count("removed") == 1
