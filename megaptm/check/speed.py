"""Topic `speed`: matrix products, disk and links of every node, compared with other nodes and the planned machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from megaptm.check.finding import Case, Finding
from megaptm.check.node_probe import Answers, probe_nodes
from megaptm.plan.machine import Machine

TOPIC = "speed"
SHARE = 0.8
"""Share of the other nodes' rate, or of the planned rate, below which a warning is given."""
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Measured:
    """Rates of one kind, by node."""

    what: str
    rates: Mapping[str, float]
    scale: float
    unit: str
    planned: float | None


def check_speed(case: Case) -> Iterator[Finding]:
    """Measure for half a minute on every node and its GPUs."""
    if not case.speed:
        return
    words = [f"--place={case.config.run}", f"--precision={case.config.train.precision}"]
    answers = probe_nodes("megaptm.check.speed_probe", words, seconds=TIMEOUT_SECONDS)
    yield from failed(answers)
    for measured in (*own_rates(answers, case), *link_rates(answers, case.machine)):
        yield from tell(measured)


def failed(answers: Answers) -> Iterator[Finding]:
    for node, why in answers.silent.items():
        yield Finding(TOPIC, "fault", f"{node} could not be measured ({why}): mend that node, or leave it out.")
    met = {node for node, said in answers.by_node.items() if "pairs" in said}
    if len(answers.by_node) > 1 and not met:
        yield Finding(TOPIC, "fault", "The nodes do not reach each other: is the first one's port open to the others?")


def own_rates(answers: Answers, case: Case) -> Iterator[Measured]:
    machine, said = case.machine, answers.by_node.items()
    products = {name(node, n, found): rate for node, found in said for n, rate in enumerate(found.get("products", ()))}
    peak = machine.peak(case.config.train.precision) * machine.efficiency.matmul if machine else None
    yield Measured("Matrix products", products, 1e12, "TFLOP/s", peak)
    disk = machine.disk_gigabytes_per_second * 1e9 if machine else None
    yield Measured(
        "Writing to the run's disk", {node: f["written"] for node, f in said if "written" in f}, 1e9, "GB/s", disk
    )
    yield Measured(
        "Reading from the run's disk", {node: f["read"] for node, f in said if "read" in f}, 1e9, "GB/s", None
    )


def link_rates(answers: Answers, machine: Machine | None) -> Iterator[Measured]:
    """Yield rates of links. An all-reduce is as fast as the slowest node; a node's own links are as fast as its best
    pair."""
    nodes, said = list(answers.by_node), answers.by_node.items()
    planned = machine.between.gigabytes_per_second * machine.between.efficiency * 1e9 if machine else None
    total = [found["all_reduce"] for _, found in said if "all_reduce" in found]
    if total:
        yield Measured(f"All-reduce over {len(nodes)} nodes", {"all": min(total)}, 1e9, "GB/s", planned)
    best = {node: max(found["pairs"].values()) for node, found in said if found.get("pairs")}
    if len(best) > 2:  # with two nodes it is unknown whose link is slow
        yield Measured("Links", best, 1e9, "GB/s", None)


def tell(measured: Measured) -> Iterator[Finding]:
    """Yield the nodes that are slower than the others, then the median rate."""
    rates = measured.rates
    if not rates:
        return
    slow = list(slower(rates))
    for node, usual in slow:
        says = f"{measured.what}: {node} reaches {number(rates[node], measured)}, the others {number(usual, measured)}"
        yield Finding(TOPIC, "warning", f"{says}: leave it out, or have it looked at.", {"node": node})
    middle = median(rates.values())
    says = f"{measured.what}: {number(middle, measured)}"
    if measured.planned:
        says += f", planned {number(measured.planned, measured)}"
    below = measured.planned and middle < SHARE * measured.planned
    numbers = {"rates": dict(rates), "planned": measured.planned}
    yield Finding(TOPIC, "warning" if below else "good", f"{says}.", numbers)


def slower(rates: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the nodes below the share of the median of the others, with that median."""
    for node, rate in rates.items():
        others = [other for name, other in rates.items() if name != node]
        if others and rate < SHARE * median(others):
            yield node, median(others)


def name(node: str, device: int, found: Mapping[str, list[float]]) -> str:
    return node if len(found["products"]) == 1 else f"GPU {device} of {node}"


def number(rate: float, measured: Measured) -> str:
    return f"{rate / measured.scale:.3g} {measured.unit}"
