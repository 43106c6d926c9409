"""Rates of nodes, beside each other and beside the plan; how they are measured, on this machine."""

import pytest

from megaptm.check.node_probe import probe_nodes
from megaptm.check.speed import Measured, slower, tell
from megaptm.parallel.probe import rounds


def measured(planned=None, **rates):
    return Measured("Matrix products", rates, 1e12, "TFLOP/s", planned)


@pytest.mark.parametrize("world", range(2, 12))
def test_in_each_round_everybody_meets_somebody_new(world):
    met = {rank: [pairs[rank] for pairs in rounds(world) if rank in pairs] for rank in range(world)}
    for rank, partners in met.items():
        assert len(partners) == len(set(partners))
        assert all(rank != partner and rank in met[partner] for partner in partners)
    # Of two nodes nobody can tell; from three on each meets two or more.
    assert min(map(len, met.values())) >= min(2, world - 1)


def test_a_slow_node_is_named_by_its_best_pair():
    """The one that is slow makes all its pairs slow; each of the others also meets a good one."""
    rates = dict.fromkeys(range(8), 0.0)
    for pairs in rounds(8):
        for one, other in pairs.items():
            rates[one] = max(rates[one], 1.0 if 5 in (one, other) else 10.0)
    assert [rank for rank, rate in rates.items() if rate < 10] == [5]


def test_who_is_below_four_fifths_of_the_others_is_slow():
    assert list(slower({"node1": 100.0, "node2": 81.0, "node3": 100.0})) == []
    assert list(slower({"node1": 100.0, "node2": 79.0, "node3": 100.0})) == [("node2", 100.0)]


def test_the_slow_one_is_named_and_the_others_are_told():
    slow, usual = tell(measured(node1=200e12, node2=205e12, node3=90e12))
    assert slow.says.startswith("Matrix products: node3 reaches 90 TFLOP/s, the others 202 TFLOP/s")
    assert (slow.state, usual.state) == ("warning", "good")


def test_all_are_beside_what_is_planned():
    [enough] = tell(measured(planned=250e12, node1=240e12, node2=240e12))
    [less] = tell(measured(planned=400e12, node1=240e12, node2=240e12))
    assert enough.says == "Matrix products: 240 TFLOP/s, planned 250 TFLOP/s."
    assert (enough.state, less.state) == ("good", "warning")


def test_this_machine_multiplies_writes_and_reads(tmp_path):
    words = [f"--place={tmp_path / 'run'}", "--precision=fp32"]
    answers = probe_nodes("megaptm.check.speed_probe", words, seconds=120)
    [said] = answers.by_node.values()
    [product] = said["products"]
    assert min(product, said["written"], said["read"]) > 0
    assert list(tmp_path.iterdir()) == []
