"""Output of commands: lines for people, JSON for scripts."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import click

from megaptm.errors import UserError, printable


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a line of a command's output, with control characters of untrusted names and texts escaped."""
    click.echo(printable(text), nl=nl, err=err)


def confirm(question: str, remedy: str) -> bool:
    """Return the answer to a question on a terminal. Raise `UserError` with the remedy if there is none to ask."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(f"there is no terminal to ask on: {remedy}")
    return click.confirm(printable(question), err=True)


def print_json(value: Any) -> None:
    """Print one JSON object as a command's output, with null for infinity and NaN, which JSON cannot represent."""
    click.echo(json.dumps(_without_nan(value), indent=2, allow_nan=False))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
