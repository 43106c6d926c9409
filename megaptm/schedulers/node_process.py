"""Module that runs as a process on a node of a cluster, and the facts that it prints."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megaptm.python_path import module_command

END_SECONDS = 10.0
"""Seconds that a process on a node has to end after SIGTERM."""


@dataclass(frozen=True)
class ProcessOutput:
    """Output of a process on a node."""

    stdout: str
    stderr: str


def run_module(
    module: str, arguments: Sequence[str], *, seconds: float, variables: Mapping[str, str] | None = None
) -> ProcessOutput:
    """Run a module as a process on this node, with additional environment variables."""
    return run_command(module_command(module, *arguments), {**os.environ, **(variables or {})}, seconds)


def run_command(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> ProcessOutput:
    """Run a command on this node and return its output; the command is ended after a number of seconds."""
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        return ProcessOutput(*process.communicate(timeout=seconds))
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        out, err = process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired as timeout:
        # Do not wait for the process: it may be blocked on a lost disk, or a child may hold its pipes.
        process.kill()
        out, err = (text.decode(errors="replace") if text else "" for text in (timeout.stdout, timeout.stderr))
    return ProcessOutput(out, f"{err}\nno answer in {seconds:.0f} s")


def parse_facts(text: str) -> dict[str, Any]:
    """Return the facts in the output of a node's process; other lines, such as a site's prolog, are ignored."""
    facts: dict[str, Any] = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            if line.startswith("{"):
                facts |= json.loads(line)
    return facts


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1][:200]
