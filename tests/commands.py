"""Commands of `megaptm` within the process of a test."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner


def run_command(command: click.Command, *words: object) -> str:
    """What a command prints that ends well: the same as a process of its own says, without importing torch again."""
    done = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def all_commands(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command with its words, groups included."""
    for name, command in group.commands.items():
        yield (*above, name), command
        if isinstance(command, click.Group):
            yield from all_commands(command, (*above, name))
