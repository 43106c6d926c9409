"""Hugging Face copies of checkpoints, written by another process in the background (`hub.export_every`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from megaptm.checkpoint.committed import find_committed
from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.plugins import ALLOW_CODE, named_modules
from megaptm.processes import end_with_parent
from megaptm.python_path import module_command

FOLDER = "hf"
"""Folder in that of a checkpoint with its copy."""
NICENESS = 5
"""Priority of the process that exports: a third of the share of a training process, should no core be idle."""
MAX_SECONDS = 3600.0
"""Maximum seconds of a copy and its push, for which the end of a run may have to wait."""


def is_export_due(config: Config, previous: int, step: int) -> bool:
    """Whether the checkpoint of a step is exported: the last one, and the first in each `hub.export_every` steps.

    `previous`: step of the previous checkpoint.
    """
    every = config.hub.export_every
    return every is not None and (step // every > previous // every or step == config.train.steps)


def lacks_export(run: Path, step: int) -> bool:
    """Whether the checkpoint of a step has no Hugging Face copy."""
    return not (find_committed(run)[step] / FOLDER).exists()


def export_copy(run: Path, config: Config, step: int) -> None:
    """Export a checkpoint in a process without GPU. Raise `UserError` with the reason of a failure."""
    hub, folder = config.hub, find_committed(run)[step] / FOLDER
    words = ["export", "hf", str(run), str(folder), "--step", str(step), "--dtype", hub.export_dtype]
    words += ["--push-to", hub.push_to] if hub.push_to is not None else []
    try:
        done = subprocess.run(
            module_command("megaptm", *words),
            env=_environment(config),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=_background_start(os.getpid()),
            text=True,
            errors="replace",
            check=False,
            timeout=MAX_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"it took more than {MAX_SECONDS / 60:.0f} minutes.") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise UserError(lines[-1].removeprefix("error: ") if lines else f"its exit code is {done.returncode}.")


def _environment(config: Config) -> dict[str, str]:
    """Return the environment of the process that exports: not that of a rank, and without GPU. The user's code that the
    run uses is allowed."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    inherited = {
        name: value for name, value in os.environ.items() if name not in ranks and not name.startswith("SLURM_")
    }
    code = ",".join(dict.fromkeys(named_modules(config.model_dump(mode="json"))))
    return inherited | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} | ({ALLOW_CODE: code} if code else {})


def _background_start(parent: int) -> Callable[[], None]:
    """Return the function that a new process calls first."""
    bind_to_parent = end_with_parent(parent)

    def start() -> None:
        os.nice(NICENESS)
        bind_to_parent()

    return start
