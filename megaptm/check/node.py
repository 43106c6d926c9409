"""`python -m megaptm.check.node`: facts about this node as lines of JSON. Runs on every node, for a second."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import click
import psutil

from megaptm.check.software import software

LINE_BYTES = 1000
"""Largest line. srun splits lines of several processes into pieces of 1,024 bytes and mixes them."""


@click.command()
@click.option(
    "--token", type=click.Path(path_type=Path), help="A file that who asks has written on the shared disk."
)
@click.option(
    "--folder", "folders", multiple=True, type=click.Path(path_type=Path), help="Must be seen from here."
)
@click.option(
    "--place", "places", multiple=True, type=click.Path(path_type=Path), help="Must be writable from here."
)
def main(token: Path | None, folders: tuple[Path, ...], places: tuple[Path, ...]) -> None:
    """Print one fact per line."""
    say("clock", time.time())
    say("node", own_name())
    say("sees_token", None if token is None else token.exists())
    say("unseen", [number for number, folder in enumerate(folders) if not folder.exists()])
    say("closed", [number for number, place in enumerate(places) if not os.access(nearest(place), os.W_OK)])
    say("cpus", len(os.sched_getaffinity(0)))
    say("memory_bytes", psutil.virtual_memory().total)
    for name, fact in software().items():
        say(name, fact)


def say(name: str, fact: Any) -> None:
    line = json.dumps({name: fact})
    assert len(line) < LINE_BYTES, f"{name} is too long for a line of srun"
    print(line, flush=True)


def own_name() -> str:
    """Return the scheduler's name of this node, or the host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def nearest(place: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(folder for folder in (place, *place.absolute().parents) if folder.is_dir())


if __name__ == "__main__":
    main()
