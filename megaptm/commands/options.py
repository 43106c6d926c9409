"""Options shared by several commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megaptm.commands.output import echo
from megaptm.errors import UserError

if TYPE_CHECKING:
    from megaptm.run.branch import Branch


class FiniteNumber(click.FloatRange):
    """Type of a command's option: a finite number within a range. click's own type accepts `nan` and `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def _complete_key(ctx: click.Context, param: click.Parameter, prefix: str) -> list[str]:
    """Return the shell completions of a config key."""
    from megaptm.config.reference import config_sections

    return [f"{key.path}=" for section in config_sections() for key in section.keys if key.path.startswith(prefix)]


def _complete_machine(ctx: click.Context, param: click.Parameter, prefix: str) -> list[str]:
    from megaptm.plan.machine import known_machines

    return [name for name in known_machines() if name.startswith(prefix)]


overrides_argument = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=_complete_key)


change_option = click.option(
    "--change", is_flag=True, help="Accept keys that change the recipe of a begun run (megaptm config keys)."
)
START_OPTIONS = (
    change_option,
    click.option("--weights-only", is_flag=True, help="Branch with from=RUN at step 0, with a new optimizer."),
    click.option(
        "--back-to",
        type=click.IntRange(min=1),
        metavar="STEP",
        help="First return the run to this checkpoint and its recipe; later ones are set aside.",
    ),
    click.option(
        "--skip-data",
        type=click.IntRange(min=1),
        metavar="BATCHES",
        help="With --back-to: batches of text to skip before the next step.",
    ),
)


def add_start_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that change a begun run, branch it or return it."""
    for option in reversed(START_OPTIONS):
        command = option(command)
    return command


def read_branch(
    config: Path, overrides: Sequence[str], *, weights_only: bool, back_to: int | None, skip_data: int | None
) -> Branch | None:
    """Return the branch that a command requests by `from=RUN`, or None. Raise `UserError` if its options exclude each
    other."""
    from megaptm.run.branch import SOURCE, Branch

    if skip_data is not None and back_to is None:
        raise UserError("--skip-data needs --back-to: name the step before which text is skipped.")
    words = [str(config), *overrides]
    if any(word.startswith(SOURCE) for word in words):
        if back_to is not None:
            raise UserError("--back-to is for a run, and from= creates another: use one of them.")
        return Branch.parse(words, weights_only=weights_only)
    if weights_only:
        raise UserError("--weights-only needs from=RUN: name the run that the weights come from.")
    return None


@contextmanager
def launched_run(
    config: Path, overrides: tuple[str, ...], options: dict[str, Any], *, dry_run: bool
) -> Iterator[tuple[Path, tuple[str, ...], bool]]:
    """Yield config, overrides and `change` of the run that a launch command starts. Before, create the branch of
    `from=`, or return the run to the step of --back-to. Removes `START_OPTIONS` from `options`."""
    from megaptm.run.back import go_back
    from megaptm.run.branch import created_branch

    change, weights_only, back_to, skip_data = map(options.pop, ("change", "weights_only", "back_to", "skip_data"))
    branch = read_branch(config, overrides, weights_only=weights_only, back_to=back_to, skip_data=skip_data)
    if dry_run and (branch is not None or back_to is not None):
        raise UserError("--dry-run changes nothing, so it cannot be used with from= and --back-to: leave it out.")
    if back_to is not None:
        echo(go_back(config, back_to, skip=skip_data or 0, overrides=overrides, change=change), err=True)
    with created_branch(branch):
        yield (config, overrides, change) if branch is None else (branch.run, branch.overrides, True)


def machine_option(**attributes: Any) -> Callable[..., Any]:
    """Return the option `--machine`, whose names a shell completes."""
    return click.option("--machine", shell_complete=_complete_machine, **attributes)


JOB_OPTIONS = (
    click.argument("config", type=click.Path(path_type=Path)),
    overrides_argument,
    machine_option(help="Machine for the checks of memory and time: a name in configs/machines, or a YAML file."),
    click.option("--nodes", type=int, help="Nodes of the job.  [default: from the layout and the machine]"),
    click.option(
        "--per-node",
        "processes_per_node",
        type=int,
        help="Processes per node.  [default: from the layout and the machine]",
    ),
    click.option("--gpus-per-node", type=click.IntRange(min=0), help="0: none.  [default: one per process]"),
    click.option(
        "--sbatch",
        "slurm_options",
        multiple=True,
        metavar="OPTION",
        help="Option of sbatch, repeatable: --sbatch=--partition=large.",
    ),
)


def add_job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the config, its overrides, and the resources of a job to the options of a command."""
    for option in reversed(JOB_OPTIONS):
        command = option(command)
    return command


def read_part(text: str) -> tuple[int, int]:
    """Parse a command option like `3/8`: return the zero-based index of a part and the number of parts, (2, 8)."""
    number, _, parts = text.partition("/")
    if number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts):
        return int(number) - 1, int(parts)
    raise UserError(f"--part ({text}) must be the number of a part and of all parts, such as 1/8.")
