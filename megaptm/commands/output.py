"""What commands print: lines for people, JSON for scripts."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from megaptm.errors import printable


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a line, in which names and texts from outside have no control characters that a terminal would obey."""
    click.echo(printable(text), nl=nl, err=err)


def print_json(value: Any) -> None:
    """One JSON object; a number that JSON has no word for (infinity, NaN) is null, as browsers write it."""
    click.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
