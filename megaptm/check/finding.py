"""What a check says: one sentence, and whether the run can start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.plan.machine import Machine

Severity = Literal["good", "warning", "fault", "unknown"]
"""`warning`: it will run, not as one might wish; `unknown`: not to be seen from here, the sentence says from where."""
Hashing = Literal["none", "some", "all"]
"""Whose bytes are read: of no shard (sizes are still compared), of a sample, or of every one."""


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    topic: str
    state: Severity
    says: str
    """One sentence: what was looked at and found; for a fault, what to change."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The same for a script."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the run asks of a scheduler; None where nobody said."""

    nodes: int | None = None
    processes_per_node: int | None = None
    gpus_per_node: int | None = None
    """None: one for each process; 0: none."""
    seconds: float | None = None
    """Time limit of one job."""
    slurm_options: tuple[str, ...] | None = None
    """Further options of sbatch: --partition=large; None: it is no job of Slurm, which is not asked."""

    def gpus_on_node(self, processes: int) -> int:
        """Of a node with so many processes."""
        return processes if self.gpus_per_node is None else self.gpus_per_node


def _silent(words: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is looked at."""

    config: Config
    mistakes: tuple[str, ...] = ()
    """Rules that the config breaks: nothing is counted from one that does; its corpora and folders are looked at."""
    machine: Machine | None = None
    """That the run is for; None: nobody said, and nothing about memory and time is known."""
    request: Request = Request()
    hashing: Hashing = "some"
    speed: bool = False
    """Whether the nodes are measured: half a minute of their time."""
    tell: Callable[[str], object] = _silent
    """Is told what takes time while it does."""


Check = Callable[[Case], Iterator[Finding]]
"""Looks at one topic. A `UserError` that it raises is a fault with that sentence."""


def look(checks: Iterable[tuple[str, Check]], case: Case) -> Iterator[Finding]:
    """All findings, in order, as they come; a check that raises says no more, the others go on."""
    for topic, check in checks:
        try:
            yield from check(case)
        except UserError as error:
            yield Finding(topic, "fault", str(error))


def counted(number: int, one: str, many: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:,} {one if number == 1 else many}"


def must_pass(findings: Iterable[Finding]) -> None:
    """A `UserError` with the sentence of the first fault, and how many more there are."""
    faults = [finding.says for finding in findings if finding.state == "fault"]
    if faults:
        more = f" ({len(faults) - 1} more: see megaptm check)" if len(faults) > 1 else ""
        raise UserError(faults[0] + more)
