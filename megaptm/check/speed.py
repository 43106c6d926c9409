"""Topic `speed`: matrix products, disk and links of every node, compared with other nodes and the planned machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from megaptm.check.finding import Case, Finding
from megaptm.check.node_probe import NodeReplies, probe_nodes
from megaptm.plan.machine import Machine

TOPIC = "speed"
SHARE = 0.8
"""Share of the other nodes' rate, or of the planned rate, below which a warning is given."""
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Measurement:
    """Measured quantity, such as the speed of a GPU or of a link: rate of each node, unit, and planned rate."""

    quantity: str
    rates: Mapping[str, float]
    scale: float
    unit: str
    planned: float | None


def check_speed(case: Case) -> Iterator[Finding]:
    """Measure for half a minute on every node and its GPUs."""
    if not case.speed:
        return
    arguments = [f"--folder={case.config.run}", f"--precision={case.config.train.precision}"]
    replies = probe_nodes("megaptm.check.speed_probe", arguments, seconds=TIMEOUT_SECONDS)
    yield from failed_nodes(replies)
    for measurement in (*node_rates(replies, case), *link_rates(replies, case.machine)):
        yield from compare_rates(measurement)


def failed_nodes(replies: NodeReplies) -> Iterator[Finding]:
    for node, reason in replies.silent.items():
        yield Finding(TOPIC, "fault", f"{node} could not be measured ({reason}): repair the node, or exclude it.")
    met = {node for node, facts in replies.by_node.items() if "pairs" in facts}
    if len(replies.by_node) > 1 and not met:
        yield Finding(
            TOPIC,
            "fault",
            "The nodes cannot connect to each other: check that the first node's port is open to the others.",
        )


def node_rates(replies: NodeReplies, case: Case) -> Iterator[Measurement]:
    machine, facts_by_node = case.machine, replies.by_node.items()
    products = {
        device_name(node, n, facts): rate
        for node, facts in facts_by_node
        for n, rate in enumerate(facts.get("products", ()))
    }
    peak = machine.peak(case.config.train.precision) * machine.efficiency.matmul if machine else None
    yield Measurement("Matrix products", products, 1e12, "TFLOP/s", peak)
    disk = machine.disk_gigabytes_per_second * 1e9 if machine else None
    yield Measurement(
        "Writing to the run's disk",
        {node: f["written"] for node, f in facts_by_node if "written" in f},
        1e9,
        "GB/s",
        disk,
    )
    yield Measurement(
        "Reading from the run's disk", {node: f["read"] for node, f in facts_by_node if "read" in f}, 1e9, "GB/s", None
    )


def link_rates(replies: NodeReplies, machine: Machine | None) -> Iterator[Measurement]:
    """Yield the rates of links: a node's own links are as fast as its best pair."""
    planned = machine.inter_node.gigabytes_per_second * machine.inter_node.efficiency * 1e9 if machine else None
    best = {node: max(facts["pairs"].values()) for node, facts in replies.by_node.items() if facts.get("pairs")}
    if len(best) == 2:  # it is unknown whose link is slow
        best = {"both nodes": min(best.values())}
    yield Measurement("Links", best, 1e9, "GB/s", planned)


def compare_rates(measurement: Measurement) -> Iterator[Finding]:
    """Yield the nodes that are slower than the others, then the median rate."""
    rates = measurement.rates
    if not rates:
        return
    for node, usual in slow_nodes(rates):
        message = (
            f"{measurement.quantity}: {node} reaches {format_rate(rates[node], measurement)}, the others "
            f"{format_rate(usual, measurement)}: exclude the node, or have it repaired."
        )
        yield Finding(TOPIC, "warning", message, {"node": node})
    middle = median(rates.values())
    message = f"{measurement.quantity}: {format_rate(middle, measurement)}"
    if measurement.planned:
        message += f", planned {format_rate(measurement.planned, measurement)}"
    below = measurement.planned and middle < SHARE * measurement.planned
    details = {"rates": dict(rates), "planned": measurement.planned}
    yield Finding(TOPIC, "warning" if below else "ok", f"{message}.", details)


def slow_nodes(rates: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the nodes below the share of the median of the others, with that median."""
    for node, rate in rates.items():
        other_rates = [other_rate for other, other_rate in rates.items() if other != node]
        if other_rates and rate < SHARE * median(other_rates):
            yield node, median(other_rates)


def device_name(node: str, device: int, facts: Mapping[str, list[float]]) -> str:
    return node if len(facts["products"]) == 1 else f"GPU {device} of {node}"


def format_rate(rate: float, measurement: Measurement) -> str:
    return f"{rate / measurement.scale:.3g} {measurement.unit}"
