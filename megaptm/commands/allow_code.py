"""`--allow-code MODULE`: which code the folder of a run may name."""

from __future__ import annotations

import os

import click

from megaptm.plugins import ALLOW_CODE, allow_code


def add_allow_code(command: click.Command) -> None:
    """Give a command, or each command of a group, the option `--allow-code`."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            add_allow_code(one)
        return
    command.params.append(
        click.Option(
            ["--allow-code"],
            metavar="MODULE",
            multiple=True,
            expose_value=False,
            callback=_allow,
            help="Import this module if the config in the folder of a run names it. Repeatable; also "
            "MEGAPTM_ALLOW_CODE=MODULE,MODULE.",
        )
    )


def _allow(ctx: click.Context, _: click.Parameter, modules: tuple[str, ...]) -> None:
    if not modules:
        return
    before = os.environ.get(ALLOW_CODE)
    allow_code(*modules)
    ctx.call_on_close(lambda: os.environ.pop(ALLOW_CODE) if before is None else os.environ.update({ALLOW_CODE: before}))
