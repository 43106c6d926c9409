"""Topic `nodes`: facts of every node of an allocation are compared; without an allocation, only this machine."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megaptm.check.finding import Case, Finding
from megaptm.check.node import nearest
from megaptm.check.node_probe import Answers, probe_nodes
from megaptm.check.software import wrong
from megaptm.config import Config
from megaptm.errors import UserError

TIMEOUT_SECONDS = 60.0
TOPIC = "nodes"
CLOCK_SECONDS = 1.0
"""With a larger clock offset, events of a run that moves between nodes are out of order."""
CLOCK_FAULT_SECONDS = 60.0
"""With a larger clock offset, servers reject requests that are signed with the time."""
SHARE = 0.9
"""Share of the usual memory or number of CPUs below which a node gives a warning."""
NAMED = 5
"""Nodes that a sentence names; further ones are counted."""
WHERE = "on these nodes"


def check_nodes(case: Case) -> Iterator[Finding]:
    """Compare the replies of the nodes."""
    run = Path(case.config.run)
    with token(run) as written:
        asked = questions(case.config, written.parent)
        words = [*(f"--folder={one}" for one in asked.folders), *(f"--place={one}" for one in asked.places)]
        answers = probe_nodes("megaptm.check.node", [f"--token={written}", *words], seconds=TIMEOUT_SECONDS)
    yield from compare(answers, asked)
    yield from not_asked(case, answers)


def questions(config: Config, token: Path) -> Asked:
    """Return the folders that each node must see, and those that it must be able to write to."""
    folders = tuple(corpus for corpus in config.data.mix if "://" not in corpus)
    cache = (config.data.cache,) if config.data.cache and len(folders) < len(config.data.mix) else ()
    return Asked(folders=folders, places=(config.run, *cache), token=str(token))


@contextlib.contextmanager
def token(run: Path) -> Iterator[Path]:
    """Yield a temporary file in the run folder, or in its nearest existing parent, while nodes are probed."""
    path = nearest(run) / f".megaptm-check-{secrets.token_hex(8)}"
    try:
        path.touch()
    except OSError as error:
        raise UserError(
            f"run ({run}) cannot be made in {path.parent} ({error.strerror}): choose another run=FOLDER."
        ) from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def not_asked(case: Case, answers: Answers) -> Iterator[Finding]:
    """Yield a finding that nodes of a later allocation cannot be probed yet."""
    alone = case.request.nodes == 1 or (case.request.nodes is None and case.config.layout.processes == 1)
    if not answers.everywhere and not alone:
        says = "Only this machine was asked: inside an allocation (salloc, sbatch, a Ray job) check asks every node."
        yield Finding(TOPIC, "unknown", says)


@dataclass(frozen=True)
class Asked:
    """Paths that the nodes were asked about."""

    folders: tuple[str, ...] = ()
    """Must be visible."""
    places: tuple[str, ...] = ()
    """Must be writable."""
    token: str = ""
    """Folder of the file that shows whether a disk is shared."""


def compare(answers: Answers, asked: Asked) -> Iterator[Finding]:
    """Yield the problems of single nodes, or one good finding if there are none."""
    findings = [*silent(answers), *software(answers), *clocks(answers), *disks(answers, asked), *hardware(answers)]
    yield from findings
    if not findings:
        yield Finding(TOPIC, "good", summary(list(answers.by_node.values()), list(answers.by_node)))


def summary(said: Sequence[dict[str, Any]], nodes: Sequence[str]) -> str:
    kind = f"{said[0]['cpus']} CPUs, {said[0]['memory_bytes'] / 2**30:.0f} GiB, {gpus_named(said[0]['gpus'])}"
    if len(nodes) == 1:
        return f"{nodes[0]} has {kind}."
    return f"{len(nodes)} nodes ({listed(nodes)}) have each {kind}; same software, time and shared disk."


def silent(answers: Answers) -> Iterator[Finding]:
    for node, why in answers.silent.items():
        yield fault(
            f"megaptm does not run on {node} ({why}): mend that node, or leave it out (Slurm: --exclude).", node=node
        )


def software(answers: Answers) -> Iterator[Finding]:
    """Yield faults for versions that differ between nodes, and for software that cannot work on any."""
    versions = each(answers, "versions")
    differences: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for found in versions.values() for name in found):
        for node, own, usual, others in odd({node: found.get(name) for node, found in versions.items()}):
            has = f"{name} {own}" if own else f"no {name}"
            differences.setdefault(node, []).append(f"{has} ({others} {usual or 'none'})")
    for node, found in differences.items():
        yield fault(f"{node} has {listed(found)}: install the same on all nodes.", node=node)
    if answers.everywhere:  # for this machine, topic `software` reports it
        yield from unusable(answers)


def unusable(answers: Answers) -> Iterator[Finding]:
    problems: dict[str, list[str]] = {}
    for node, said in answers.by_node.items():
        for problem in wrong(said, WHERE) if "torch_cuda" in said else ():
            problems.setdefault(problem, []).append(node)
    for problem, nodes in problems.items():
        yield fault(problem.replace(WHERE, f"on {listed(nodes)}"), nodes=nodes)


def clocks(answers: Answers) -> Iterator[Finding]:
    """Check the clocks. A node reads its clock between request and reply, so it is off by at least the distance from
    that interval."""
    for node, said in answers.by_node.items():
        ahead, behind = said["clock"] - answers.end, answers.begin - said["clock"]
        if max(ahead, behind) > CLOCK_SECONDS:
            off = f"{max(ahead, behind):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
            says = f"The clock of {node} is at least {off} that of this node: set it (chrony, NTP)."
            tell = fault if max(ahead, behind) > CLOCK_FAULT_SECONDS else warning
            yield tell(says, node=node, seconds=ahead if ahead > 0 else -behind)


def disks(answers: Answers, asked: Asked) -> Iterator[Finding]:
    if not answers.everywhere:
        return
    said = answers.by_node.items()
    if blind := [node for node, facts in said if facts.get("sees_token") is False]:
        says = (
            f"{listed(blind)} cannot see what is in {asked.token} here: put run=FOLDER on a disk that all nodes share."
        )
        yield fault(says, nodes=blind)
    for number, folder in enumerate(asked.folders):
        if blind := [node for node, facts in said if number in facts.get("unseen", ())]:
            yield fault(f"{listed(blind)} cannot see {folder}: put it on a disk that all nodes share.", nodes=blind)
    for number, place in enumerate(asked.places):
        if closed := [node for node, facts in said if number in facts.get("closed", ())]:
            yield fault(f"{listed(closed)} may not write to {place}: choose another folder.", nodes=closed)


def hardware(answers: Answers) -> Iterator[Finding]:
    """Check for missing or different GPUs, and for less memory or fewer CPUs than usual."""
    for node, own, usual, others in odd(each(answers, "gpus")):
        says = f"{node} has {gpus_named(own)}, {others} {gpus_named(usual)}."
        yield (
            warning(says, node=node)
            if len(own) >= len(usual)
            else fault(f"{says} Leave it out (Slurm: --exclude).", node=node)
        )
    for node, own, usual, others in odd(each(answers, "driver")):
        yield warning(f"{node} has the GPU driver {own}, {others} {usual}.", node=node)
    for name, unit, scale in (("cpus", "CPUs", 1), ("memory_bytes", "GiB of memory", 2**30)):
        yield from less(name, unit, scale, answers)


def less(name: str, unit: str, scale: int, answers: Answers) -> Iterator[Finding]:
    for node, amount, usual, others in odd(each(answers, name)):
        if amount < SHARE * usual:
            yield warning(f"{node} has {amount / scale:.0f} {unit}, {others} {usual / scale:.0f}.", node=node)


def each(answers: Answers, name: str) -> dict[str, Any]:
    """Return node -> one of its facts."""
    return {node: said[name] for node, said in answers.by_node.items() if name in said}


def odd(values: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield nodes with an unusual value: node, its value, the usual value, `node1 has`."""
    usual = most_common(values)
    have_it = [node for node, own in values.items() if own == usual]
    others = f"{have_it[0]} has" if len(have_it) == 1 else f"{len(have_it)} others have"
    yield from ((node, own, usual, others) for node, own in values.items() if own != usual)


def most_common(values: Mapping[str, Any]) -> Any:
    return max(values.values(), key=list(values.values()).count, default=None)


def listed(nodes: Sequence[str]) -> str:
    """Return `node1, node2 and 7 more`."""
    more = len(nodes) - NAMED
    return ", ".join(nodes[:NAMED]) + (f" and {more} more" if more > 0 else "")


def gpus_named(gpus: Sequence[str]) -> str:
    """Return `8 x NVIDIA H200 143771 MiB`."""
    return " + ".join(f"{count} x {name}" for name, count in Counter(gpus).items()) or "no GPU"


def fault(says: str, **numbers: Any) -> Finding:
    return Finding(TOPIC, "fault", says, numbers)


def warning(says: str, **numbers: Any) -> Finding:
    return Finding(TOPIC, "warning", says, numbers)
