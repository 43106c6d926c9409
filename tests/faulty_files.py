"""Faults of the file system: chosen calls of the C library return errors in a process."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "checkpoint/faults.c"
Faults = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def faulty_files(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """Return the environment of a process with faults: `faulty_files(("write", "step-20/rank-1", errno.EIO, 3),
    ...)`."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)

    def environment(*faults: tuple[str, str, int, int]) -> dict[str, str]:
        return {"LD_PRELOAD": str(library), "FAULTS": ";".join(",".join(map(str, fault)) for fault in faults)}

    return environment
