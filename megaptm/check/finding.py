"""Findings of `megaptm check`: one sentence each, and whether the run can start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from megaptm.config import Config
from megaptm.config.phases import steps_title
from megaptm.config.read import phase_configs
from megaptm.errors import UserError
from megaptm.plan.machine import Machine

Severity = Literal["ok", "warning", "fault", "unknown"]
"""Severity of a finding. `warning`: the run can start, but may not do what the user wants. `unknown`: cannot be checked
here; the message says where."""
Hashing = Literal["none", "some", "all"]
"""Choice of shards whose content a check reads: none (sizes are still compared), a sample, or all."""


@dataclass(frozen=True)
class Finding:
    """Finding of `megaptm check`, one line of its table."""

    topic: str
    state: Severity
    message: str
    """Message of one sentence: what was checked and found; for a fault, what to change."""
    details: dict[str, Any] = field(default_factory=dict)
    """Facts of the finding, for scripts."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """Resources that the run requests from a scheduler; None if not specified."""

    nodes: int | None = None
    processes_per_node: int | None = None
    gpus_per_node: int | None = None
    """Number of GPUs per node. None: one per process; 0: none."""
    seconds: float | None = None
    """Time limit of one job in seconds."""
    slurm_options: tuple[str, ...] | None = None
    """Further options of sbatch, such as --partition=large; None: no Slurm job is requested, so Slurm is not
    queried."""

    def gpus_on_node(self, processes: int) -> int:
        """Return the number of GPUs that a run requests for a node with `processes`."""
        return processes if self.gpus_per_node is None else self.gpus_per_node


def _ignore_message(message: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class CheckInput:
    """Input of all checks of a run."""

    config: Config
    change: bool = False
    """Whether the config may alter the run that it continues."""
    config_errors: tuple[str, ...] = ()
    """Errors of the config. If there are any, nothing is computed from the config; corpora and folders are still
    checked."""
    machine: Machine | None = None
    """Machine of the run; None: not specified, so memory and time are unknown."""
    request: ResourceRequest = ResourceRequest()
    hashing: Hashing = "some"
    tell: Callable[[str], object] = _ignore_message
    """Callback for progress messages of checks."""


Check = Callable[[CheckInput], Iterator[Finding]]
"""Check of one topic of `megaptm check`. A UserError that it raises counts as a fault with that sentence."""


def run_checks(checks: Iterable[tuple[str, Check]], case: CheckInput) -> Iterator[Finding]:
    """Run checks: yield all findings in order. If a check raises an error, the other checks still run."""
    for topic, check in checks:
        try:
            yield from check(case)
        except UserError as error:
            yield Finding(topic, "fault", str(error))


def check_each_phase(check: Check, list_phases: Callable[[Config], Iterable[Config]] = phase_configs) -> Check:
    """Return a check of all phases of a run, whose findings name their steps."""

    def check_phases(case: CheckInput) -> Iterator[Finding]:
        if case.config_errors or not case.config.phases:
            yield from check(case)
            return
        for config in list_phases(case.config):
            try:
                for finding in check(replace(case, config=config)):
                    yield replace(finding, message=f"{steps_title(config)}: {finding.message}")
            except UserError as error:
                raise UserError(f"{steps_title(config)}: {error}") from None

    return check_phases


def number_with_noun(count: int, singular: str, plural: str) -> str:
    """Return a number with its noun: `1 node`, `2 nodes`."""
    return f"{count:,} {singular if count == 1 else plural}"


def raise_check_faults(findings: Iterable[Finding]) -> None:
    """Raise UserError with the first fault of the findings, and the number of further ones."""
    faults = [finding.message for finding in findings if finding.state == "fault"]
    if faults:
        more = f" ({len(faults) - 1} more: see megaptm check)" if len(faults) > 1 else ""
        raise UserError(faults[0] + more)
