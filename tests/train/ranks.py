"""Small programs that stand in for the trainer, and the launcher that starts them as ranks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.drills.program import wait_for

PRELUDE = """
import ctypes, os, signal, sys, time
from pathlib import Path
rank, world, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[1])
def i_am_here():
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
def everybody_is_here():
    i_am_here()
    while len(list(folder.glob("pid-*"))) < world:
        time.sleep(0.01)
"""


def write_program(folder: Path, *parts: str) -> list[str]:
    """Write a rank's program and return the command that runs it. The program may use the names of `PRELUDE`."""
    path = folder / "worker.py"
    path.write_text(PRELUDE + "".join(map(textwrap.dedent, parts)))
    return [sys.executable, str(path), str(folder)]


def start_launcher(
    command: list[str], run: Path, *, processes: int = 2, hang_seconds: float | None = None
) -> subprocess.Popen[str]:
    """Start the launcher as a process that can receive signals and whose output can be read."""
    source = (
        "import sys; from pathlib import Path; from megaptm.launch.local import launch_ranks\n"
        f"sys.exit(launch_ranks({command!r}, processes={processes}, run=Path({str(run)!r}), grace_seconds=1.0, "
        f"hang_seconds={hang_seconds!r}))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


def pids(folder: Path, count: int, launcher: subprocess.Popen[str] | None = None) -> list[int]:
    """Return the process ids that ranks and helpers wrote. With a launcher, wait for all of them while it runs."""

    def read_pids() -> list[int]:
        texts = [path.read_text() for path in sorted(folder.glob("pid-*"))]
        return [int(text) for text in texts] if len(texts) == count and all(texts) else []

    result = read_pids() if launcher is None else wait_for(read_pids, launcher)
    assert result, "not all ranks were there"
    return result
