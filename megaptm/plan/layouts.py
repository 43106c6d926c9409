"""Plans of all configs for all numbers of devices that they offer: `python -m megaptm.plan.layouts` prints a table."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.config import UncheckedConfig, load_config
from megaptm.families import CATALOGUE
from megaptm.plan.machine import FOLDER, load_machine
from megaptm.plan.plan import Plan, make_plan, make_plans

MACHINE = "a100-80g"
HEAD = ("config", "devices", "data", "tensor", "stages", "rows", "GiB", "s a step", "MFU", "days")


def _shipped_plans() -> Iterator[tuple[str, Plan]]:
    """Yield name and plan of each shipped config, smallest model of a family first."""
    machine = load_machine(MACHINE)
    for family in CATALOGUE:
        paths = [path for path in (FOLDER.parent / family).glob("*.yaml") if path.stem != "tiny"]
        for path in sorted(paths, key=lambda path: (make_plan(load_config(path), machine).parameters, path.stem)):
            for devices in UncheckedConfig.read(path).offered_devices:
                plans = make_plans(load_config(path, [f"devices={devices}"]), machine)
                for plan in plans:
                    yield f"{family}/{path.stem}{f', {plan.steps_title}' if len(plans) > 1 else ''}", plan


def layouts_table() -> str:
    """Return the table of layouts in docs/layouts.md."""
    lines = [f"| {' | '.join(HEAD)} |", "|---|" + "---:|" * (len(HEAD) - 1)]
    return "\n".join([*lines, *(_layout_row(name, made) for name, made in _shipped_plans())])


def _layout_row(name: str, made: Plan) -> str:
    layout = made.work.layout
    stages = f"{layout.pipeline} x {layout.virtual}" if layout.virtual > 1 else str(layout.pipeline)
    data = f"{layout.data} x {layout.context}" if layout.context > 1 else str(layout.data)
    cells = (
        *(name, f"{layout.processes:,}", data, layout.tensor, stages, layout.microbatch),
        *(f"{made.memory[made.fullest_stage].total / 2**30:.1f}", f"{made.step.seconds:.3g}", f"{made.step.mfu:.0%}"),
        f"{made.days:,.0f}" if made.days >= 10 else f"{made.days:.2g}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    print(layouts_table())
