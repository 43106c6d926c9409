"""Command line of `megaptm check`: reads the arguments and runs the checks. An argument that cannot be read is reported
as a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.table import Table
from rich.text import Text

from megaptm.check.api import CHECKS
from megaptm.check.finding import Check, CheckInput, Finding, ResourceRequest, Severity, number_with_noun, run_checks
from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.plan.machine import load_machine
from megaptm.run.folder import read_draft
from megaptm.schedulers.slurm.options import parse_sbatch_options
from megaptm.schedulers.slurm.slurm_time import parse_slurm_time

Word = TypeVar("Word")
Value = TypeVar("Value")
MARKS: dict[Severity, Text] = {
    "ok": Text("✓", style="green"),
    "warning": Text("!", style="bold yellow"),
    "fault": Text("✗", style="bold red"),
    "unknown": Text("?", style="cyan"),
}
PLURALS: dict[Severity, str] = {"fault": "faults", "warning": "warnings", "unknown": "unknown", "ok": "ok"}
TOPIC_WIDTH = 10


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """Arguments of `megaptm check`, not parsed yet."""

    config: Path
    overrides: tuple[str, ...]
    change: bool
    machine: str | None
    nodes: int | None
    processes_per_node: int | None
    gpus_per_node: int | None
    time: str | None
    slurm_options: tuple[str, ...]
    full: bool
    only: tuple[str, ...]
    """Topics to check (`--only`); empty: all."""


def collect_findings(command_line: CommandLine, tell: Callable[[str], object]) -> Iterator[Finding]:
    """Yield all findings of `megaptm check` as they appear."""
    faults: list[Finding] = []
    seconds = _parse_argument(parse_slurm_time, command_line.time, "time", faults)
    options = _parse_argument(parse_sbatch_options, command_line.slurm_options, "slurm", faults) or ()
    machine = _parse_argument(load_machine, command_line.machine, "machine", faults)
    checks = _parse_argument(_select_checks, command_line.only, "topic", faults)
    overrides, change = command_line.overrides, command_line.change
    draft = _parse_argument(
        lambda path: read_draft(path, overrides, change=change), command_line.config, "config", faults
    )
    yield from faults
    if draft is None or checks is None:
        return
    if draft.config is None:
        yield from (Finding("config", "fault", mistake) for mistake in draft.mistakes)
        yield Finding("config", "unknown", "nothing else is checked until the config can be read.")
        return
    case = CheckInput(
        config=draft.config,
        change=change,
        config_errors=draft.mistakes,
        machine=machine,
        request=_job_request(command_line, seconds, options),
        hashing="all" if command_line.full else "some",
        tell=tell,
    )
    yield from run_checks(checks, case)


def _select_checks(topics: tuple[str, ...]) -> list[tuple[str, Check]]:
    known = [topic for topic, _ in CHECKS]
    for topic in topics:
        if topic not in known:
            raise UserError(f"--only {topic}: no such topic; choose from {', '.join(known)}.")
    return [(topic, check) for topic, check in CHECKS if not topics or topic in topics]


def _parse_argument(
    parse: Callable[[Word], Value], text: Word | None, topic: str, faults: list[Finding]
) -> Value | None:
    """Return the parsed argument of `megaptm check`; None if it is absent or invalid."""
    if text is None:
        return None
    try:
        return parse(text)
    except UserError as error:
        faults.append(Finding(topic, "fault", str(error)))
        return None


def _job_request(command_line: CommandLine, seconds: float | None, options: tuple[str, ...]) -> ResourceRequest:
    is_slurm_job = command_line.slurm_options or any(
        option is not None for option in (command_line.nodes, command_line.time, command_line.gpus_per_node)
    )
    return ResourceRequest(
        nodes=command_line.nodes,
        processes_per_node=command_line.processes_per_node,
        gpus_per_node=command_line.gpus_per_node,
        seconds=seconds,
        slurm_options=options if is_slurm_job else None,
    )


def print_findings(findings: Iterable[Finding], console: Console) -> bool:
    """Print the findings of `megaptm check`, each topic once, and their counts; return whether there is a fault."""
    counts, before = Counter[Severity](), ""
    for finding in findings:
        console.print(_finding_row(finding, finding.topic if finding.topic != before else ""))
        counts[finding.state] += 1
        before = finding.topic
    details = [
        number_with_noun(counts[state], state, plural)
        for state, plural in PLURALS.items()
        if counts[state] and state != "fault"
    ]
    verdict = Text(number_with_noun(counts["fault"], "fault", PLURALS["fault"]) if counts["fault"] else "no faults")
    verdict.stylize(MARKS["fault" if counts["fault"] else "ok"].style)
    console.print(Text.assemble("\n", verdict, *(f", {number}" for number in details), "."))
    return bool(counts["fault"])


def _finding_row(finding: Finding, topic: str) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=1)
    line.add_column(width=TOPIC_WIDTH, style="bold")
    line.add_column(overflow="fold")
    line.add_row(MARKS[finding.state], topic, Text(finding.message))
    return line
