"""`layout: auto`: the planner's fastest layout of a config for a machine, and the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from megaptm.config import Config, Layout, UncheckedConfig
from megaptm.config.phases import steps_title
from megaptm.config.read import phase_configs
from megaptm.errors import UserError, read_integer_variable
from megaptm.plan.local_machine import find_local_machine
from megaptm.plan.machine import Machine, load_machine
from megaptm.plan.search import Candidate, LayoutSearch, fastest_layout, search_layouts
from megaptm.plan.show import format_layout, format_seconds
from megaptm.plan.step import PARTS

GIB = 2**30
REUSED = "layout auto: as before in this run"


def plan_layout(
    written: UncheckedConfig,
    previous: Config | None = None,
    *,
    machine: Machine | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[UncheckedConfig, str]:
    """Replace the layout `auto` by the fastest layout that fits, in each phase. Return the config, and text with the
    reasons.

    The config's keys give the machine and the number of devices. Without these keys they are `machine`, or this
    computer's GPUs; under torchrun or srun each process has a device. `previous`: config of the run so far; its layouts
    are retained if the number of devices is the same. Raises `UserError` for mistakes of the config, for an unknown
    machine, and if no layout fits.
    """
    config, values = written.load_without_plan(), written.values
    devices: int | None = values.get("devices")
    if devices is None and environ.get("WORLD_SIZE"):
        devices = read_integer_variable(environ, "WORLD_SIZE")
    if values.get("machine"):
        machine = load_machine(values["machine"], where="machine")
    try:
        machine = find_local_machine() if machine is None else machine
    except UserError:
        if previous is None or devices not in (None, previous.layout.processes):
            raise
        return _with_previous_layouts(written, previous), REUSED
    devices = machine.devices if devices is None else devices
    if previous is not None and previous.layout.processes == devices:
        return _with_previous_layouts(written, previous), REUSED
    layouts, lines = [], []
    for phase in phase_configs(config):
        prefix = f"{steps_title(phase)}: " if config.phases else ""
        result = search_layouts(phase, machine, devices)
        try:
            chosen = fastest_layout(result, phase, machine, devices)
        except UserError as error:
            raise UserError(f"{prefix}{error}") from None
        layouts.append(chosen.layout)
        lines.append(prefix + _describe_choice(chosen, result, phase, machine))
    # The number of data ranks follows from that of the devices.
    later = [{"layout": layout.model_dump(mode="json", exclude={"data"})} for layout in layouts[1:]]
    return _with_layouts(written, layouts[0], later), "\n".join(lines)


def _with_previous_layouts(written: UncheckedConfig, previous: Config) -> UncheckedConfig:
    """Return the config with the layouts of the run so far, of its present phase and of each other one."""
    phases = previous.phases[1:] if len(previous.phases) == len(written.values.get("phases", [])) else []
    layouts = [{key: value for key, value in phase.items() if key.startswith("layout.")} for phase in phases]
    return _with_layouts(written, previous.layout, layouts)


def _with_layouts(written: UncheckedConfig, layout: Layout, later: Sequence[Mapping[str, Any]]) -> UncheckedConfig:
    """Return the config with a layout, and with the keys of the layouts of its last phases."""
    written = written.with_override(f"layout={layout.model_dump_json()}")
    if not later:
        return written
    first_phases, later_phases = written.written_phases[: -len(later)], written.written_phases[-len(later) :]
    phases = [*first_phases, *({**phase, **keys} for phase, keys in zip(later_phases, later, strict=True))]
    return written.with_override(f"phases={json.dumps(phases)}")


def _describe_choice(chosen: Candidate, result: LayoutSearch, config: Config, machine: Machine) -> str:
    """Return one line: the layout that the planner chose, the fastest other one, and where that one loses time."""
    layout = chosen.layout
    needed, usable = chosen.bytes / GIB, machine.usable_bytes / GIB
    line = (
        f"layout auto: {format_layout(layout)} on {layout.processes:,} x {machine.name}: "
        f"{format_seconds(chosen.step.seconds)} a step, {needed:.1f} of {usable:.1f} GiB"
    )

    other = next((other for other in result.fitting if other.layout.axes_text != layout.axes_text), None)
    if other is None:
        return f"{line}; no other data x tensor x pipeline fits"
    parts, slower = chosen.step.parts(), other.step.seconds / chosen.step.seconds - 1
    more = {name: seconds - parts[name] for name, seconds in other.step.parts().items()}
    part = max(more, key=lambda name: more[name])
    return (
        f"{line}; runner-up {format_layout(other.layout)}: {slower:.1%} slower, with {format_seconds(more[part])} more "
        f"for {PARTS[part]}"
    )
