"""What commands print for scripts."""

from __future__ import annotations

import json
import math
from typing import Any

import click


def print_json(value: Any) -> None:
    """One JSON object; a number that JSON has no word for (infinity, NaN) is null, as browsers write it."""
    click.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
