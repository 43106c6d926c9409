"""Messages name the resource that is full: disk, shared memory, file size limit or quota."""

import errno
import os
import subprocess
import sys

import pytest

from megaptm.errors import UserError, storage_errors_as_user_errors


def output_of(code, *before, path="/"):
    """Return the output of a separate process that runs `code`. `path`: the path that the caller used."""
    lines = [
        "from megaptm.errors import UserError, storage_errors_as_user_errors",
        "try:",
        f"    with storage_errors_as_user_errors({path!r}):",
        *(f"        {line}" for line in code),
        "except UserError as error:",
        "    print(error)",
    ]
    words = [*before, sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


@pytest.mark.parametrize("path", ["/", "/dev/shm"])
def test_full_shared_memory_is_named(path):
    small = ("unshare", "-m", "bash", "-c", 'mount -t tmpfs -o size=4k tmpfs /dev/shm && exec "$@"', "bash")
    if os.geteuid() or subprocess.run([*small, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    message = output_of(
        ["import multiprocessing", "held = [multiprocessing.Lock() for _ in range(9)]"], *small, path=path
    )
    assert message == (
        "no space left in /dev/shm, the shared memory of processes: enlarge it (docker: --shm-size) and start again."
    )


def test_file_size_limit_is_named(tmp_path):
    message = output_of(
        [
            "import resource",
            "from megaptm.storage import write_atomically",
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))",
            f"write_atomically({str(tmp_path / 'file')!r}, bytes(2000))",
        ]
    )
    assert message == (
        f"{tmp_path}/file needs more than the 1,000 bytes that a file may have here: raise the limit (ulimit -f) and "
        "start again."
    )


def test_quota_is_named(tmp_path):
    message = f"your quota on the disk of {tmp_path} is used up"
    with pytest.raises(UserError, match=message), storage_errors_as_user_errors("the output"):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(tmp_path))
