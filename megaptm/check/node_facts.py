"""`python -m megaptm.check.node_facts`: facts about this node as lines of JSON. Runs on every node, for a second."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click
import psutil

from megaptm.check.software import software_facts
from megaptm.node import available_cpus, node_name

LINE_BYTES = 1000
"""Maximum bytes of a line of facts that a node prints. srun splits lines of several processes into pieces of 1,024
bytes and mixes them."""


@click.command()
@click.option("--token", type=click.Path(path_type=Path), help="File on the shared disk, written by the probing node.")
@click.option("--visible", multiple=True, type=click.Path(path_type=Path), help="Folder that must be visible here.")
@click.option("--writable", multiple=True, type=click.Path(path_type=Path), help="Folder that must be writable here.")
def main(token: Path | None, visible: tuple[Path, ...], writable: tuple[Path, ...]) -> None:
    """Print facts about this node, one per line."""
    _print_fact("clock", time.time())
    _print_fact("node", node_name())
    _print_fact("sees_token", None if token is None else token.exists())
    _print_fact("invisible", [index for index, folder in enumerate(visible) if not folder.exists()])
    _print_fact(
        "unwritable", [index for index, path in enumerate(writable) if not os.access(nearest_folder(path), os.W_OK)]
    )
    _print_fact("cpus", available_cpus())
    _print_fact("memory_bytes", psutil.virtual_memory().total)
    for name, fact in software_facts().items():
        _print_fact(name, fact)


def _print_fact(name: str, fact: Any) -> None:
    line = json.dumps({name: fact})
    assert len(line) < LINE_BYTES, f"{name} is too long for a line of srun"
    print(line, flush=True)


def nearest_folder(path: Path) -> Path:
    """Return a folder, or its nearest parent that exists on this node."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


if __name__ == "__main__":
    main()
