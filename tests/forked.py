"""Commands in processes forked from one that has imported the heavy modules.

The ranks of `megaptm train` are started as torchrun would start them. `tests.drills.program` tests the launcher, the
start and the end of a program.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NoReturn

from megaptm.launch.worker_group import Rendezvous, open_listener, rank_environments
from megaptm.run.folder import read_config
from megaptm.run.rank import LISTENER
from tests.ranks import PROCESSES

SECONDS = 240.0
SAVED = 75


def megaptm(*words: object, code: int = 0, folder: Path | None = None) -> str:
    """Run `megaptm WORDS` in a folder, with as many ranks as the layout has; return the output.

    The exit code must be `code`: that of the first rank that fails, after which the others are killed, or 75 if a rank
    asks to be continued.
    """
    outputs = [str(word) for word in words]
    world = _world(outputs[1:]) if outputs[0] == "train" else 0
    with tempfile.TemporaryDirectory(prefix="megaptm-forked-") as errors, open_listener() as listener:
        meet = Rendezvous(world, "127.0.0.1", listener.getsockname()[1])
        environments = rank_environments(range(world), meet, {}, threads=None) if world else {0: dict(os.environ)}
        logs = [Path(errors) / str(rank) for rank in environments]
        processes = [
            PROCESSES.Process(
                target=_serve, args=(outputs, environments[rank], log, listener if world and not rank else None, folder)
            )
            for rank, log in enumerate(logs)
        ]
        try:
            for process in processes:
                process.start()
            ended_with = _end_of(processes)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
        output = "".join(log.read_text() for log in logs if log.exists())
    assert ended_with == code, output
    return output


def _world(words: Sequence[str]) -> int:
    """Return the number of ranks of a run, or of a branch with the layout of its original."""
    config, *overrides = (word for word in words if not word.startswith(("--", "from=")))
    sources = [word.removeprefix("from=").rpartition("@")[0] for word in words if word.startswith("from=")]
    return read_config(Path(sources[0] if sources else config), overrides).layout.processes


def _end_of(processes: Sequence[ForkServerProcess]) -> int:
    while alive := [process for process in processes if process.exitcode is None]:
        if not wait([process.sentinel for process in alive], SECONDS):
            raise TimeoutError(f"megaptm did not end in {SECONDS:.0f} s")
        if failed := [process.exitcode for process in processes if process.exitcode not in (None, 0, SAVED)]:
            return failed[0]
    return max(process.exitcode for process in processes)


def _serve(
    words: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    listener: socket.socket | None,
    folder: Path | None,
) -> NoReturn:
    import torch

    from megaptm.__main__ import main

    if folder is not None:
        os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if listener is not None:
        os.environ[LISTENER] = str(listener.detach())
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    gc.freeze()
    torch.set_num_threads(1)
    try:
        main(words, prog_name="megaptm")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
