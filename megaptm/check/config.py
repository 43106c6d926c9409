"""Check of the config: broken rules, and warnings about its schedules."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.check.finding import CheckInput, Finding, number_with_noun
from megaptm.config import resolve_spec
from megaptm.config.schedule import config_warnings
from megaptm.plan.count import count_parameters


def check_config(case: CheckInput) -> Iterator[Finding]:
    """Check the config: yield a finding for each broken rule. If there is none, yield the model with its layout, and
    warnings about scheduled changes."""
    yield from (Finding("config", "fault", mistake) for mistake in case.config_errors)
    if case.config_errors:
        return
    config, layout = case.config, case.config.layout
    parameters = count_parameters(resolve_spec(config))
    processes = number_with_noun(layout.processes, "process", "processes")
    yield Finding(
        "config",
        "ok",
        f"{config.model.family}/{config.model.size}, {parameters:,} parameters, on {processes} ({layout.axes_text}).",
        {"parameters": parameters, "processes": layout.processes},
    )
    yield from (Finding("config", "warning", message) for message in config_warnings(config))
