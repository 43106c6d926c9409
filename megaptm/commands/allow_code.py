"""Option `--allow-code MODULE`: modules that the config in a run folder may import."""

from __future__ import annotations

import os

import click

from megaptm.plugins import ALLOW_CODE, allow_code


def add_allow_code(command: click.Command) -> None:
    """Add the option `--allow-code` to a command, or to each command of a group."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            add_allow_code(subcommand)
        return
    command.params.append(
        click.Option(
            ["--allow-code"],
            metavar="MODULE",
            multiple=True,
            expose_value=False,
            callback=_set_allowed_modules,
            help="Let the config in a run folder import this module. Repeatable; or set "
            "MEGAPTM_ALLOW_CODE=MODULE,MODULE.",
        )
    )


def _set_allowed_modules(ctx: click.Context, _: click.Parameter, modules: tuple[str, ...]) -> None:
    if not modules:
        return
    before = os.environ.get(ALLOW_CODE)
    allow_code(*modules)
    ctx.call_on_close(lambda: os.environ.pop(ALLOW_CODE) if before is None else os.environ.update({ALLOW_CODE: before}))
