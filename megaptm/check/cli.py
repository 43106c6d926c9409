"""Command line of `megaptm check`: reads the arguments and runs the checks. Arguments that cannot be read are faults
too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.table import Table
from rich.text import Text

from megaptm.check.api import CHECKS
from megaptm.check.finding import Case, Check, Finding, Request, Severity, counted, look
from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.plan.machine import load_machine
from megaptm.run.folder import read_draft
from megaptm.schedulers.slurm.options import parse_sbatch_options
from megaptm.schedulers.slurm.slurm_time import parse_time

Word = TypeVar("Word")
Value = TypeVar("Value")
MARKS: dict[Severity, Text] = {
    "good": Text("✓", style="green"),
    "warning": Text("!", style="bold yellow"),
    "fault": Text("✗", style="bold red"),
    "unknown": Text("?", style="cyan"),
}
WORDS: dict[Severity, str] = {"fault": "faults", "warning": "warnings", "unknown": "unknown", "good": "good"}
TOPIC_WIDTH = 10


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """Arguments, not parsed yet."""

    config: Path
    overrides: tuple[str, ...]
    machine: str | None
    nodes: int | None
    processes_per_node: int | None
    gpus_per_node: int | None
    time: str | None
    slurm_options: tuple[str, ...]
    full: bool
    speed: bool
    only: tuple[str, ...]
    """Topics; empty: all."""


def look_at(command_line: CommandLine, tell: Callable[[str], object]) -> Iterator[Finding]:
    """Yield all findings as they appear."""
    faults: list[Finding] = []
    seconds = _read(parse_time, command_line.time, "time", faults)
    options = _read(parse_sbatch_options, command_line.slurm_options, "slurm", faults) or ()
    machine = _read(load_machine, command_line.machine, "machine", faults)
    checks = _read(_chosen, command_line.only, "topic", faults)
    draft = _read(lambda path: read_draft(path, command_line.overrides), command_line.config, "config", faults)
    yield from faults
    if draft is None or checks is None:
        return
    if draft.config is None:
        yield from (Finding("config", "fault", mistake) for mistake in draft.mistakes)
        yield Finding("config", "unknown", "nothing else is looked at before the config can be read.")
        return
    case = Case(
        config=draft.config,
        mistakes=draft.mistakes,
        machine=machine,
        request=_request(command_line, seconds, options),
        hashing="all" if command_line.full else "some",
        speed=command_line.speed,
        tell=tell,
    )
    yield from look(checks, case)


def _chosen(topics: tuple[str, ...]) -> list[tuple[str, Check]]:
    known = [topic for topic, _ in CHECKS]
    for topic in topics:
        if topic not in known:
            raise UserError(f"--only {topic}: there is no such topic; choose from {', '.join(known)}.")
    return [(topic, check) for topic, check in CHECKS if not topics or topic in topics]


def _read(how: Callable[[Word], Value], word: Word | None, topic: str, faults: list[Finding]) -> Value | None:
    """Return the parsed argument; None if it is absent or invalid."""
    if word is None:
        return None
    try:
        return how(word)
    except UserError as error:
        faults.append(Finding(topic, "fault", str(error)))
        return None


def _request(command_line: CommandLine, seconds: float | None, options: tuple[str, ...]) -> Request:
    asked = command_line.slurm_options or any(
        word is not None for word in (command_line.nodes, command_line.time, command_line.gpus_per_node)
    )
    return Request(
        nodes=command_line.nodes,
        processes_per_node=command_line.processes_per_node,
        gpus_per_node=command_line.gpus_per_node,
        seconds=seconds,
        slurm_options=options if asked else None,
    )


def show(findings: Iterable[Finding], console: Console) -> bool:
    """Print the findings, each topic once, and their counts; return whether there is a fault."""
    found, before = Counter[Severity](), ""
    for finding in findings:
        console.print(_line(finding, finding.topic if finding.topic != before else ""))
        found[finding.state] += 1
        before = finding.topic
    numbers = [counted(found[state], state, many) for state, many in WORDS.items() if found[state] and state != "fault"]
    verdict = Text(counted(found["fault"], "fault", WORDS["fault"]) if found["fault"] else "no fault")
    verdict.stylize(MARKS["fault" if found["fault"] else "good"].style)
    console.print(Text.assemble("\n", verdict, *(f", {number}" for number in numbers), "."))
    return bool(found["fault"])


def _line(finding: Finding, topic: str) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=1)
    line.add_column(width=TOPIC_WIDTH, style="bold")
    line.add_column(overflow="fold")
    line.add_row(MARKS[finding.state], topic, Text(finding.says))
    return line
