"""Command `megaptm plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from megaptm.commands.options import machine_option, overrides_argument
from megaptm.commands.output import echo, print_json
from megaptm.errors import EXIT_FAILURE, UserError

if TYPE_CHECKING:
    from megaptm.config import Config
    from megaptm.plan.dry_run_report import DryRunReport
    from megaptm.plan.machine import Machine
    from megaptm.plan.workload import Workload


@click.command("plan")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@machine_option(default="a100-80g", show_default=True, help="Name in configs/machines, or a YAML file.")
@click.option(
    "--nodes", type=int, help="Number of nodes; the layout follows as with `devices`.  [default: from the layout]"
)
@click.option("--search", is_flag=True, help="Try all valid layouts on these nodes, and plan the fastest that fits.")
@click.option(
    "--dry-run", is_flag=True, help="Also build and run ranks of the layout without real memory, and compare."
)
@click.option("--ranks", help="Ranks of the dry run, such as 0,8,511.  [default: the first of each stage]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def plan_command(
    config: Path,
    overrides: tuple[str, ...],
    machine: str,
    nodes: int | None,
    search: bool,
    dry_run: bool,
    ranks: str | None,
    as_json: bool,
) -> None:
    """Estimate a run before it is queued: memory, time, cost, failures.

    Needs no GPU and starts nothing. CONFIG is a training config; KEY=VALUE changes any of its keys.

    \b
    Does the run fit, and how long does it take?
      megaptm plan configs/gpt3/175b.yaml
      megaptm plan configs/gpt3/13b.yaml --machine h100-80g --nodes 8
      megaptm plan configs/gpt3/13b.yaml layout.recompute=none layout.microbatch=2

    \b
    Which layout is best on 16 nodes?
      megaptm plan configs/gpt3/175b.yaml --machine h100-80g --nodes 16 --search

    \b
    JSON for scripts:
      megaptm plan configs/t5/11b.yaml --json | jq .step.seconds

    \b
    Are the formulas right for this layout? Build some of its ranks on this machine (loads torch):
      megaptm plan configs/gpt3/175b.yaml --dry-run --ranks 0,8,511,1023

    docs/planner.md describes the formulas and compares them with published runs. For a machine of your own, copy a file
    of configs/machines.
    """
    from megaptm.plan.machine import load_machine
    from megaptm.plan.plan import make_plans, summed_json

    described = load_machine(machine)
    layout_overrides: list[str] = []
    if search:
        run_config = _search_layout(config, overrides, described, nodes, silent=as_json)
        layout_overrides = _layout_overrides(run_config)
    else:
        run_config = _load_config(config, overrides, described, nodes)
    plans = make_plans(run_config, described)
    dry = _run_dry(run_config, plans[0].work, ranks) if dry_run or ranks else None
    if as_json:
        print_json(
            {
                **(plans[0].to_json() if len(plans) == 1 else summed_json(plans)),
                **({"overrides": layout_overrides} if search else {}),
                **({"dry_run": dry.to_json()} if dry else {}),
            }
        )
    else:
        from megaptm.console import Console
        from megaptm.plan.show import show_dry_run, show_phase_plans, show_plan

        if len(plans) == 1:
            show_plan(plans[0], Console())
        else:
            show_phase_plans(plans, Console())
        if layout_overrides:
            from shlex import quote

            pasted = " ".join(map(quote, layout_overrides))
            echo(f"\nThe fastest layout, to paste after the config:\n  {pasted}")
        if dry:
            show_dry_run(dry, Console())
    if dry and not dry.agrees_with_plan:
        raise SystemExit(EXIT_FAILURE)


def _load_config(path: Path, overrides: tuple[str, ...], machine: Machine, nodes: int | None) -> Config:
    from megaptm.config import UncheckedConfig

    written = UncheckedConfig.read(path, overrides)
    if nodes is not None:
        written = written.with_override(f"devices={_num_devices(machine, nodes)}")
    if written.plans_layout:
        from megaptm.plan.auto import plan_layout

        written, reason = plan_layout(written, machine=machine, environ={})
        echo(reason, err=True)
    return written.load()


def _num_devices(machine: Machine, nodes: int) -> int:
    if nodes < 1:
        raise UserError(f"--nodes {nodes}: a job needs at least one node.")
    return nodes * machine.devices


def _run_dry(config: Config, work: Workload, ranks: str | None) -> DryRunReport:
    from megaptm.plan.dry_run_report import chosen_ranks, compare_with_plan

    chosen = chosen_ranks(work, ranks)
    from megaptm.parallel.dry_run import dry_run

    batch = config.batch_spec
    return compare_with_plan(
        work, list(dry_run(work.spec, work.layout, precision=work.precision, batch=batch, ranks=chosen))
    )


def _search_layout(
    path: Path, overrides: tuple[str, ...], machine: Machine, nodes: int | None, *, silent: bool
) -> Config:
    """Return the config with the fastest layout; with full sharding if the config has it. The layout of the config
    itself need not be valid."""
    from megaptm.config import Layout, UncheckedConfig, read_config_draft
    from megaptm.plan.search import fastest_layout, search_layouts

    devices = _configured_devices(path, overrides) if nodes is None else _num_devices(machine, nodes)
    config = UncheckedConfig.read(path, [*overrides, "layout=auto"]).load_without_plan()
    if config.phases:
        raise UserError(f"--search plans runs without phases: `megaptm plan {path} layout=auto` plans each phase.")
    configured = read_config_draft(path, overrides).config
    if configured is not None and configured.layout.full_sharding:
        config = config.model_copy(update={"layout": Layout(full_sharding=True)})
    candidates = search_layouts(config, machine, devices)
    chosen = fastest_layout(candidates, config, machine, devices)
    if not silent:
        from megaptm.console import Console
        from megaptm.plan.show import show_search

        show_search(candidates, Console(), usable=machine.usable_bytes)
    return config.model_copy(update={"layout": chosen.layout})


def _layout_overrides(config: Config) -> list[str]:
    """Return all keys of the layout as overrides, so that they replace all keys of the file."""
    import json

    values = config.layout.model_dump().items()
    return [f"layout.{key}={json.dumps(value, separators=(',', ':')).strip(chr(34))}" for key, value in values]


def _configured_devices(path: Path, overrides: tuple[str, ...]) -> int:
    """Return the number of devices of the configured layout, which need not be valid. Other errors of the config are
    raised."""
    from megaptm.config import read_config_draft
    from megaptm.config.check import config_errors

    config_draft = read_config_draft(path, overrides)
    allowed = set() if config_draft.config is None else set(config_errors(config_draft.config))
    if errors := [error for error in config_draft.mistakes if error not in allowed]:
        raise UserError(errors[0])
    assert config_draft.config is not None, "a draft without config has errors"
    return config_draft.config.layout.processes
