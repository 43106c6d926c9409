"""A file system that fails while a checkpoint is read: it is the system's own calls that fail, in a real process."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def read(faults, store, tmp_path):  # noqa: F811
    """What a job finds in a run with checkpoints of steps 10 and 20 while calls fail on paths with `where` in them."""
    for step in (10, 20):
        save(store, step)

    def found(where, number, *, call="read", times, seconds=60.0):
        fault = {"FAULT_PATH": where, "FAULT_ERRNO": str(number), "FAULT_TIMES": str(times), "FAULT_CALL": call}
        words = [sys.executable, "-c", READ, str(tmp_path), str(seconds)]
        environment = {**os.environ, **fault, "LD_PRELOAD": str(faults)}
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
