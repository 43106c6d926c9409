"""A file system that fails while a checkpoint is read or written: calls of the system fail in a real process."""

import errno
import os
import subprocess
import sys

import pytest

from tests.checkpoint.test_store import names, save, store  # noqa: F401  # a fixture

# A process of its own: what fails is the C library under it. Patience is short where the outage does not end.
READ = """
import sys
from megaptm.checkpoint import files
from megaptm.checkpoint.store import Store
from megaptm.errors import UserError
from megaptm.storage import RetryPolicy

files.RETRY = RetryPolicy(seconds=float(sys.argv[2]), pause=0.01)
try:
    found = Store(sys.argv[1], fence=lambda: True).newest()
    found.reader.read("weight/w")
    print(found.step)
except UserError as error:
    print(error)
"""


@pytest.fixture
def read(faulty_files, store, tmp_path):  # noqa: F811
    """What a job finds in a run with checkpoints of steps 10 and 20 while calls fail on paths with `where` in them."""
    for step in (10, 20):
        save(store, step)

    def found(where, number, *, call="read", times, seconds=60.0):
        words = [sys.executable, "-c", READ, str(tmp_path), str(seconds)]
        environment = {**os.environ, **faulty_files((call, where, number, times))}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=300)
        assert names(store) == ["step-00000010", "step-00000020"], "a good checkpoint was set aside"
        return done.stdout.strip()

    return found


def test_errors_that_pass_cost_no_checkpoint(read):
    assert read("step-00000020/rank-0000", errno.EIO, times=3) == "20"
    assert read("step-00000020", errno.ESTALE, call="open", times=3) == "20"


@pytest.mark.parametrize(
    ("where", "number", "call", "seconds"),
    [
        ("step-00000020/rank-00001", errno.EIO, "read", 0.2),
        ("step-00000020/manifest.json", errno.EACCES, "open", 600.0),
    ],
)
def test_an_outage_is_told_and_nothing_set_aside(read, where, number, call, seconds):
    told = read(where, number, call=call, times=-1, seconds=seconds)
    for word in (os.strerror(number), where, "nothing is lost"):
        assert word in told
    assert "damaged" not in told
    assert "remove" not in told


def test_a_folder_that_is_elsewhere_and_not_mounted_is_not_an_empty_one(store, tmp_path):  # noqa: F811
    from megaptm.checkpoint.files import UnreadableError

    save(store, 10)
    elsewhere = tmp_path / "elsewhere"
    store.folder.rename(elsewhere)
    store.folder.symlink_to(elsewhere)
    assert store.newest().step == 10
    elsewhere.rename(tmp_path / "unmounted")
    with pytest.raises(UnreadableError, match=r"is a link to .*elsewhere, which is not there: nothing is lost"):
        store.newest()


SAVE = """
import sys
from megaptm.checkpoint import files
from megaptm.checkpoint.store import Store
from megaptm.storage import RetryPolicy
from tests.checkpoint.test_store import save

files.WRITE_RETRY = RetryPolicy(seconds=float(sys.argv[2]), pause=0.01)
store = Store(sys.argv[1], keep=9, fence=lambda: True)
for step in (10, 20, 30, 40):
    store.take_over()
    try:
        save(store, step)
    except files.NotSavedError as error:
        print(error)
"""


def saved(tmp_path, environment, *, seconds):
    """Return the output of a job that saves four steps while calls fail."""
    words = [sys.executable, "-c", SAVE, str(tmp_path), str(seconds)]
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_errors_that_pass_while_writing_cost_no_checkpoint(faulty_files, store, tmp_path):  # noqa: F811
    environment = faulty_files(
        ("write", "step-00000010.writing", errno.EIO, 2),
        ("rename", "step-00000010.writing", errno.ESTALE, 2),
        ("fsync", "step-00000020.writing", errno.EIO, 2),
        ("rename", "step-00000020/manifest", errno.EIO, 1),
        ("fsync", "checkpoints", errno.EIO, 9),
    )
    assert saved(tmp_path, environment, seconds=60.0) == ""
    assert store.steps() == [40, 30, 20, 10]
    assert store.newest().reader.read("weight/w")[0, 0] == 4000


def test_where_writing_goes_on_failing_that_checkpoint_is_given_up(faulty_files, store, tmp_path):  # noqa: F811
    environment = faulty_files(
        ("write", "step-00000020.writing-job/rank-00001", errno.EIO, -1),
        ("rename", "step-00000030.writing-job/.manifest", errno.EIO, -1),
    )
    told = saved(tmp_path, environment, seconds=0.2).splitlines()
    assert [line.partition(": ")[0] for line in told] == [
        "cannot write rank-00001.safetensors of step 20",
        "cannot commit the checkpoint of step 30",
    ]
    assert all(os.strerror(errno.EIO) in line for line in told)
    assert names(store) == ["step-00000010", "step-00000040"]


def test_what_nfs_leaves_of_open_files_stops_no_job(faulty_files, store, tmp_path):  # noqa: F811
    left = tmp_path / "checkpoints/step-00000005.writing-job"
    left.mkdir(parents=True)
    (left / ".nfs0001").touch()
    assert saved(tmp_path, faulty_files(("unlink", ".nfs0001", errno.EBUSY, -1)), seconds=0.2) == ""
    assert store.steps() == [40, 30, 20, 10]
    [kept] = [name for name in names(store) if ".removed" in name]
    assert kept.count("removed") == 1
