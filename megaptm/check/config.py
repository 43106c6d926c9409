"""The config by itself: the rules that it breaks, and what its schedule does that nobody wants."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.check.finding import Case, Finding, counted
from megaptm.config import resolve
from megaptm.config.schedule import config_warnings
from megaptm.plan.count import count


def rules(case: Case) -> Iterator[Finding]:
    """Each broken rule; or the model and its layout, and warnings about what changes by step."""
    yield from (Finding("config", "fault", mistake) for mistake in case.mistakes)
    if case.mistakes:
        return
    config, layout = case.config, case.config.layout
    parameters = count(resolve(config))
    processes = counted(layout.processes, "process", "processes")
    yield Finding(
        "config",
        "good",
        f"{config.model.family}/{config.model.size}, {parameters:,} parameters, on {processes} (data {layout.data} x "
        f"tensor {layout.tensor} x pipeline {layout.pipeline}).",
        {"parameters": parameters, "processes": layout.processes},
    )
    yield from (Finding("config", "warning", says) for says in config_warnings(config))
