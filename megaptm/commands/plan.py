"""`megaptm plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from megaptm.commands.options import machine_option, overrides_argument
from megaptm.commands.output import echo, print_json
from megaptm.errors import EXIT_FAILURE, UserError

if TYPE_CHECKING:
    from megaptm.config import Config
    from megaptm.plan.dry import DryRunReport
    from megaptm.plan.machine import Machine
    from megaptm.plan.workload import Workload


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@machine_option(default="a100-80g", show_default=True, help="A name in configs/machines, or a YAML file.")
@click.option(
    "--nodes", type=int, help="Nodes to use, the layout as `devices` would set it; absent: as many as it asks."
)
@click.option("--search", is_flag=True, help="Try every legal layout on these nodes, and plan the fastest that fits.")
@click.option("--dry-run", is_flag=True, help="Also build and run ranks of the layout without memory, and compare.")
@click.option("--ranks", help="Ranks of the dry run, for instance 0,8,511; by default the first of every stage.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON instead of tables.")
def plan(
    config: Path,
    overrides: tuple[str, ...],
    machine: str,
    nodes: int | None,
    search: bool,
    dry_run: bool,
    ranks: str | None,
    as_json: bool,
) -> None:
    """Say what a run will need before it is queued: memory, time, money, failures.

    No GPU is needed, and nothing is started. CONFIG is a training config; any key can be set on the command line.

    \b
    Does it fit, and how long does it take?
      megaptm plan configs/gpt3/175b.yaml
      megaptm plan configs/gpt3/13b.yaml --machine h100-80g --nodes 8
      megaptm plan configs/gpt3/13b.yaml layout.recompute=none layout.microbatch=2

    \b
    Which layout is best on 16 nodes?
      megaptm plan configs/gpt3/175b.yaml --machine h100-80g --nodes 16 --search

    \b
    Numbers for a script:
      megaptm plan configs/t5/11b.yaml --json | jq .step.seconds

    \b
    Are the formulas right for this layout? Builds any rank of it on this machine (this one loads torch):
      megaptm plan configs/gpt3/175b.yaml --dry-run --ranks 0,8,511,1023

    How the numbers are made, and how near they come to published runs: docs/planner.md. For a machine of your own, copy
    a file of configs/machines.
    """
    from megaptm.plan.machine import load_machine
    from megaptm.plan.plan import make_plan

    described = load_machine(machine)
    pasted: list[str] = []
    if search:
        wanted = _searched(config, overrides, described, nodes, silent=as_json)
        pasted = _as_overrides(wanted)
    else:
        wanted = _config(config, overrides, described, nodes)
    made = make_plan(wanted, described)
    dry = _dry(wanted, made.work, ranks) if dry_run or ranks else None
    if as_json:
        print_json(
            {
                **made.numbers(),
                **({"overrides": pasted} if search else {}),
                **({"dry_run": dry.numbers()} if dry else {}),
            }
        )
    else:
        from megaptm.console import Console
        from megaptm.plan.show import show, show_dry

        show(made, Console())
        if pasted:
            echo(f"\nThe fastest layout, to paste after the config:\n  {' '.join(pasted)}")
        if dry:
            show_dry(dry, Console())
    if dry and not dry.agrees:
        raise SystemExit(EXIT_FAILURE)


def _config(path: Path, overrides: tuple[str, ...], machine: Machine, nodes: int | None) -> Config:
    from megaptm.config import load

    if nodes is None:
        return load(path, overrides)
    return load(path, [*overrides, f"devices={_devices(machine, nodes)}"])


def _devices(machine: Machine, nodes: int) -> int:
    if nodes < 1:
        raise UserError(f"--nodes {nodes}: a job needs at least one node.")
    return nodes * machine.devices


def _dry(config: Config, work: Workload, ranks: str | None) -> DryRunReport:
    from megaptm.plan.dry import chosen_ranks, compare_with_plan

    chosen = chosen_ranks(work, ranks)
    from megaptm.parallel.dry import dry_run

    batch = config.batch_spec
    return compare_with_plan(
        work, list(dry_run(work.spec, work.layout, precision=work.precision, batch=batch, ranks=chosen))
    )


def _searched(path: Path, overrides: tuple[str, ...], machine: Machine, nodes: int | None, *, silent: bool) -> Config:
    """The config with the best layout; its own need not be legal, for who searches may have none."""
    from megaptm.config import Layout, load
    from megaptm.plan.search import fastest_layout, search_layouts

    devices = _written(path, overrides) if nodes is None else _devices(machine, nodes)
    config = load(path, [*overrides, f"layout={Layout().model_dump_json()}", "devices=1"])
    found = search_layouts(config, machine, devices)
    chosen = fastest_layout(found, config, machine, devices)
    if not silent:
        from megaptm.console import Console
        from megaptm.plan.show import show_search

        show_search(found, Console(), usable=machine.usable_bytes)
    return config.model_copy(update={"layout": chosen.layout})


def _as_overrides(config: Config) -> list[str]:
    """Every key of the layout as an override, so that none that a file has is left."""
    import json

    return [f"layout.{key}={json.dumps(value).strip(chr(34))}" for key, value in config.layout.model_dump().items()]


def _written(path: Path, overrides: tuple[str, ...]) -> int:
    """Devices of the layout as it is written, legal or not; a `devices` that no layout of the file fits is an error."""
    from megaptm.config import draft
    from megaptm.config.check import config_errors

    found = draft(path, overrides)
    allowed = set() if found.config is None else set(config_errors(found.config))
    if others := [mistake for mistake in found.mistakes if mistake not in allowed]:
        raise UserError(others[0])
    assert found.config is not None, "no config without a mistake"
    return found.config.layout.processes
