"""Topic `nodes` of `megaptm check`: compares facts of every node of an allocation. Without an allocation, only this
machine is checked."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megaptm.check.finding import CheckInput, Finding
from megaptm.check.node_facts import nearest_folder
from megaptm.check.node_probe import NodeReplies, probe_nodes
from megaptm.check.software import software_problems
from megaptm.config import Config
from megaptm.errors import UserError

TIMEOUT_SECONDS = 60.0
TOPIC = "nodes"
CLOCK_SECONDS = 1.0
"""Maximum clock offset of a node in seconds. With a larger one, events of a run that moves between nodes are out of
order."""
CLOCK_FAULT_SECONDS = 60.0
"""Clock offset of a node in seconds that is a fault: servers reject requests that are signed with the time."""
SHARE = 0.9
"""Share of the other nodes' memory or number of CPUs below which a node gives a warning."""
NAMED = 5
"""Maximum number of nodes that a finding names; the others are only counted."""
WHERE = "on these nodes"


def check_nodes(case: CheckInput) -> Iterator[Finding]:
    """Check the nodes of an allocation: compare their replies."""
    run = Path(case.config.run)
    with probe_file(run) as token_path:
        paths = _probed_paths(case.config, token_path.parent)
        arguments = [
            *(f"--visible={path}" for path in paths.visible),
            *(f"--writable={path}" for path in paths.writable),
        ]
        replies = probe_nodes(
            "megaptm.check.node_facts", [f"--token={token_path}", *arguments], seconds=TIMEOUT_SECONDS
        )
    yield from compare_nodes(replies, paths)
    yield from _unprobed_nodes(case, replies)


def _probed_paths(config: Config, token: Path) -> ProbedPaths:
    """Return the folders that each node must read, and the folders that it must write to."""
    folders = tuple(corpus for corpus in config.data.corpora if "://" not in corpus)
    cache = (config.data.cache_dir,) if config.data.cache_dir and len(folders) < len(config.data.corpora) else ()
    return ProbedPaths(visible=folders, writable=(config.run, *cache), token=str(token))


@contextlib.contextmanager
def probe_file(run: Path) -> Iterator[Path]:
    """Yield a temporary file in the run folder, or in its nearest existing parent, while nodes are probed."""
    path = nearest_folder(run) / f".megaptm-check-{secrets.token_hex(8)}"
    try:
        path.touch()
    except OSError as error:
        raise UserError(
            f"run ({run}) cannot be created in {path.parent} ({error.strerror}): choose another run=FOLDER."
        ) from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _unprobed_nodes(case: CheckInput, replies: NodeReplies) -> Iterator[Finding]:
    """Yield a finding that nodes of a later allocation cannot be probed yet."""
    is_one_node = case.request.nodes == 1 or (case.request.nodes is None and case.config.layout.processes == 1)
    if not replies.all_nodes and not is_one_node:
        message = (
            "Only this machine was checked: inside an allocation (salloc, sbatch, a Ray job) check compares all nodes."
        )
        yield Finding(TOPIC, "unknown", message)


@dataclass(frozen=True)
class ProbedPaths:
    """Paths that the nodes of an allocation were asked about."""

    visible: tuple[str, ...] = ()
    """Folders that each node must see."""
    writable: tuple[str, ...] = ()
    """Folders that each node must be able to write to."""
    token: str = ""
    """Folder with the file that shows whether a disk is shared between nodes."""


def compare_nodes(replies: NodeReplies, paths: ProbedPaths) -> Iterator[Finding]:
    """Yield the problems of single nodes, or one finding without a problem."""
    findings = [
        *_silent_nodes(replies),
        *_software_findings(replies),
        *_clock_findings(replies),
        *_disk_findings(replies, paths),
        *_hardware_findings(replies),
    ]
    yield from findings
    if not findings:
        yield Finding(TOPIC, "ok", _describe_nodes(list(replies.by_node.values()), list(replies.by_node)))


def _describe_nodes(facts: Sequence[dict[str, Any]], nodes: Sequence[str]) -> str:
    kind = f"{facts[0]['cpus']} CPUs, {facts[0]['memory_bytes'] / 2**30:.0f} GiB, {_describe_gpus(facts[0]['gpus'])}"
    if len(nodes) == 1:
        return f"{nodes[0]} has {kind}."
    names = _format_some_names(nodes)
    return f"{len(nodes)} nodes ({names}) each have {kind}, with the same software, time and shared disk."


def _silent_nodes(replies: NodeReplies) -> Iterator[Finding]:
    for node, reason in replies.silent.items():
        yield make_fault(
            f"megaptm does not run on {node} ({reason}): repair the node, or exclude it (Slurm: --exclude).", node=node
        )


def _software_findings(replies: NodeReplies) -> Iterator[Finding]:
    """Yield faults for versions that differ between nodes, and for software that cannot work on any node."""
    versions = _facts_by_node(replies, "versions")
    differences: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for installed in versions.values() for name in installed):
        for node, own, usual, usual_nodes in _outliers(
            {node: installed.get(name) for node, installed in versions.items()}
        ):
            has = f"{name} {own}" if own else f"no {name}"
            differences.setdefault(node, []).append(f"{has} ({usual_nodes} {usual or 'none'})")
    for node, node_versions in differences.items():
        yield make_fault(
            f"{node} has {_format_some_names(node_versions)}: install the same versions on all nodes.", node=node
        )
    if replies.all_nodes:  # for this machine, topic `software` reports it
        yield from _unusable_nodes(replies)


def _unusable_nodes(replies: NodeReplies) -> Iterator[Finding]:
    problems: dict[str, list[str]] = {}
    for node, facts in replies.by_node.items():
        for problem in software_problems(facts, WHERE) if "torch_cuda" in facts else ():
            problems.setdefault(problem, []).append(node)
    for problem, nodes in problems.items():
        yield make_fault(problem.replace(WHERE, f"on {_format_some_names(nodes)}"), nodes=nodes)


def _clock_findings(replies: NodeReplies) -> Iterator[Finding]:
    """Check the clocks of nodes. A node reads its clock between request and reply; a reading outside of that interval
    is off by at least the distance to it."""
    for node, facts in replies.by_node.items():
        ahead, behind = facts["clock"] - replies.end, replies.begin - facts["clock"]
        if max(ahead, behind) > CLOCK_SECONDS:
            off = f"{max(ahead, behind):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
            message = f"The clock of {node} is at least {off} that of this node: set it (chrony, NTP)."
            report = make_fault if max(ahead, behind) > CLOCK_FAULT_SECONDS else make_warning
            yield report(message, node=node, seconds=ahead if ahead > 0 else -behind)


def _disk_findings(replies: NodeReplies, paths: ProbedPaths) -> Iterator[Finding]:
    if not replies.all_nodes:
        return
    replies_by_node = replies.by_node.items()
    if blind := [node for node, facts in replies_by_node if facts.get("sees_token") is False]:
        message = (
            f"{_format_some_names(blind)} cannot see this node's files in {paths.token}: put run=FOLDER on a disk that "
            "all nodes share."
        )
        yield make_fault(message, nodes=blind)
    for index, folder in enumerate(paths.visible):
        if blind := [node for node, facts in replies_by_node if index in facts.get("invisible", ())]:
            yield make_fault(
                f"{_format_some_names(blind)} cannot see {folder}: put it on a disk that all nodes share.", nodes=blind
            )
    for index, folder in enumerate(paths.writable):
        if nodes := [node for node, facts in replies_by_node if index in facts.get("unwritable", ())]:
            yield make_fault(
                f"{_format_some_names(nodes)} cannot write to {folder}: choose another folder.", nodes=nodes
            )


def _hardware_findings(replies: NodeReplies) -> Iterator[Finding]:
    """Check the hardware of nodes for missing or different GPUs, and for less memory or fewer CPUs than usual."""
    for node, own, usual, usual_nodes in _outliers(_facts_by_node(replies, "gpus")):
        message = f"{node} has {_describe_gpus(own)}, {usual_nodes} {_describe_gpus(usual)}."
        yield (
            make_warning(message, node=node)
            if len(own) >= len(usual)
            else make_fault(f"{message} Exclude it (Slurm: --exclude).", node=node)
        )
    for node, own, usual, usual_nodes in _outliers(_facts_by_node(replies, "driver")):
        yield make_warning(f"{node} has the GPU driver {own}, {usual_nodes} {usual}.", node=node)
    for name, unit, scale in (("cpus", "CPUs", 1), ("memory_bytes", "GiB of memory", 2**30)):
        yield from _nodes_below_usual(name, unit, scale, replies)


def _nodes_below_usual(name: str, unit: str, scale: int, replies: NodeReplies) -> Iterator[Finding]:
    for node, amount, usual, usual_nodes in _outliers(_facts_by_node(replies, name)):
        if amount < SHARE * usual:
            yield make_warning(f"{node} has {amount / scale:.0f} {unit}, {usual_nodes} {usual / scale:.0f}.", node=node)


def _facts_by_node(replies: NodeReplies, name: str) -> dict[str, Any]:
    """Return the value of one fact that the nodes reported, by node."""
    return {node: facts[name] for node, facts in replies.by_node.items() if name in facts}


def _outliers(values: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield each node with an unusual value: the node, its value, the usual value, and the start of a sentence, `node1
    has`."""
    usual = max(values.values(), key=list(values.values()).count, default=None)
    nodes = [node for node, own in values.items() if own == usual]
    usual_nodes = f"{nodes[0]} has" if len(nodes) == 1 else f"{len(nodes)} others have"
    yield from ((node, own, usual, usual_nodes) for node, own in values.items() if own != usual)


def _format_some_names(nodes: Sequence[str]) -> str:
    """Return the names of some nodes as text: `node1, node2 and 7 more`."""
    more = len(nodes) - NAMED
    return ", ".join(nodes[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _describe_gpus(gpus: Sequence[str]) -> str:
    """Return the GPUs of a node as text: `8 x NVIDIA H200 143771 MiB`."""
    return " + ".join(f"{count} x {name}" for name, count in Counter(gpus).items()) or "no GPU"


def make_fault(message: str, **details: Any) -> Finding:
    return Finding(TOPIC, "fault", message, details)


def make_warning(message: str, **details: Any) -> Finding:
    return Finding(TOPIC, "warning", message, details)
