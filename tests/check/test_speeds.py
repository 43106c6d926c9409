"""Rates of nodes: measured, compared with each other and with the plan."""

import pytest

from megaptm.check.node_probe import probe_nodes
from megaptm.check.speed import Measurement, compare_rates, slow_nodes
from megaptm.parallel.probe import rounds


def products(planned=None, **rates):
    return Measurement("Matrix products", rates, 1e12, "TFLOP/s", planned)


@pytest.mark.parametrize("world", range(2, 12))
def test_each_round_pairs_ranks_with_new_partners(world):
    met = {rank: [pairs[rank] for pairs in rounds(world) if rank in pairs] for rank in range(world)}
    for rank, partners in met.items():
        assert len(partners) == len(set(partners))
        assert all(rank != partner and rank in met[partner] for partner in partners)
    # From three nodes on, each needs two partners to distinguish a slow link.
    assert min(map(len, met.values())) >= min(2, world - 1)


def test_best_pair_identifies_a_slow_node():
    """All pairs of the slow node are slow; each other node also has a fast pair."""
    rates = dict.fromkeys(range(8), 0.0)
    for pairs in rounds(8):
        for rank, partner in pairs.items():
            rates[rank] = max(rates[rank], 1.0 if 5 in (rank, partner) else 10.0)
    assert [rank for rank, rate in rates.items() if rate < 10] == [5]


def test_node_below_80_percent_of_the_others_is_slow():
    assert list(slow_nodes({"node1": 100.0, "node2": 81.0, "node3": 100.0})) == []
    assert list(slow_nodes({"node1": 100.0, "node2": 79.0, "node3": 100.0})) == [("node2", 100.0)]


def test_slow_node_is_a_warning_beside_the_median():
    slow, usual = compare_rates(products(node1=200e12, node2=205e12, node3=90e12))
    assert slow.message.startswith("Matrix products: node3 reaches 90 TFLOP/s, the others 202 TFLOP/s")
    assert slow.state == "warning"
    assert usual.state == "ok"


def test_median_below_80_percent_of_the_plan_is_a_warning():
    [enough] = compare_rates(products(planned=250e12, node1=240e12, node2=240e12))
    [too_slow] = compare_rates(products(planned=400e12, node1=240e12, node2=240e12))
    assert enough.message == "Matrix products: 240 TFLOP/s, planned 250 TFLOP/s."
    assert enough.state == "ok"
    assert too_slow.state == "warning"


def test_speed_probe_measures_products_and_disk(tmp_path):
    arguments = [f"--folder={tmp_path / 'run'}", "--precision=fp32"]
    replies = probe_nodes("megaptm.check.speed_probe", arguments, seconds=120)
    [facts] = replies.by_node.values()
    [product] = facts["products"]
    assert min(product, facts["written"], facts["read"]) > 0
    assert list(tmp_path.iterdir()) == []
