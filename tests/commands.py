"""Commands of `megaptm` within the process of a test."""

from __future__ import annotations

import click
from click.testing import CliRunner


def run_command(command: click.Command, *words: object) -> str:
    """What a command prints that ends well: the same as a process of its own says, without importing torch again."""
    done = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout
