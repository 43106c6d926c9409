"""Command groups to which families add commands, for files of their papers' code, and commands to which they add
options."""

from __future__ import annotations

from typing import Any

import click


class FamilyGroup(click.Group):
    """Group with its own commands and those that families have under a name, `IMPORT` or `EXPORT`.

    Families are loaded when the group's commands are listed or run: `megaptm --help` loads none.
    """

    def __init__(self, *arguments: Any, attribute: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._attribute = attribute

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._add_commands()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self._add_commands()
        return super().get_command(ctx, cmd_name)

    def _add_commands(self) -> None:
        from megaptm.families import contributions

        for command in contributions("commands", self._attribute):
            self.add_command(command)


class FamilyCommand(click.Command):
    """Command with its own options and those that families have under a name, such as `EVALUATE_OPTIONS`."""

    def __init__(self, *arguments: Any, attribute: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._attribute, self._complete = attribute, False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from megaptm.families import contributions

        if not self._complete:
            self._complete = True
            for options in contributions("commands", self._attribute):
                self.params += options
        return super().get_params(ctx)
