"""Commands of `megaptm` in the process of a test."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner


def run_command(command: click.Command, *words: object) -> str:
    """Return the output of a command that succeeds, without a new process that would import torch again."""
    done = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def all_commands(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command with its words, including groups."""
    if not above:
        group.list_commands(click.Context(group))  # adds the commands of extensions
    for name, command in group.commands.items():
        yield (*above, name), command
        if isinstance(command, click.Group):
            yield from all_commands(command, (*above, name))
