"""Command groups to which families add commands, for files of their papers' code, and commands to which they add
options."""

from __future__ import annotations

from collections.abc import Iterator

import click


class FamilyGroup(click.Group):
    """Group with its own commands and those of families, `COMMANDS` by the name of the group.

    Families are loaded when the group's commands are listed or run: `megaptm --help` loads none.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._add_commands()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            self._add_commands()
        return super().get_command(ctx, cmd_name)

    def contributed_commands(self) -> Iterator[click.Command]:
        """Yield the commands that families add to this command group."""
        from megaptm.families import contributions

        for commands in contributions("commands", "COMMANDS"):
            yield from commands.get(self.name, ())

    def _add_commands(self) -> None:
        for command in self.contributed_commands():
            if command.name not in self.commands:
                self.add_command(command)


class FamilyCommand(click.Command):
    """Command with its own options and those of families, `OPTIONS` by the name of the command."""

    _complete = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from megaptm.families import contributions

        if not self._complete:
            self._complete = True
            for options in contributions("commands", "OPTIONS"):
                self.params += options.get(self.name, ())
        return super().get_params(ctx)
