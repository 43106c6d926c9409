"""Options that more than one command takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from megaptm.errors import UserError


class Finite(click.FloatRange):
    """A number within a range; click itself takes `nan` for one within any, and `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def _keys(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """What a shell offers of a key that was begun."""
    from megaptm.config.reference import config_sections

    return [f"{key.path}=" for section in config_sections() for key in section.keys if key.path.startswith(begun)]


def _machines(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    from megaptm.plan.machine import known_machines

    return [name for name in known_machines() if name.startswith(begun)]


overrides_argument = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=_keys)


def machine_option(**attributes: Any) -> Callable[..., Any]:
    """`--machine`, of which a shell completes the names."""
    return click.option("--machine", shell_complete=_machines, **attributes)


OF_A_JOB = (
    click.argument("config", type=click.Path(path_type=Path)),
    overrides_argument,
    machine_option(help="In configs/machines, or a YAML file: what memory and time are checked against."),
    click.option("--nodes", type=int, help="Nodes of the job; absent: as many as the layout and the machine need."),
    click.option("--per-node", type=int, help="Processes on a node; absent: as the layout or the machine have it."),
    click.option("--gpus-per-node", type=click.IntRange(min=0), help="Absent: one for each process; 0: none."),
    click.option("--sbatch", multiple=True, metavar="OPTION", help="For sbatch, e.g. --sbatch=--partition=large."),
)


def of_a_job(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command its config, the words that change it, and what is asked of a scheduler."""
    for option in reversed(OF_A_JOB):
        command = option(command)
    return command


def read_part(said: str) -> tuple[int, int]:
    """`3/8`: the third of eight."""
    number, _, parts = said.partition("/")
    if number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts):
        return int(number), int(parts)
    raise UserError(f"--part ({said}) must be one of so many, for instance 1/8 to 8/8.")
