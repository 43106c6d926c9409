"""Cut of layers into pipeline stages by cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, combinations, pairwise

import pytest

from megaptm.config.stage_division import balanced_group_sizes, layers_by_cost
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.models.model_costs import PartCosts, count_part_costs
from megaptm.plan.count import step_flops
from megaptm.spec import change, published_spec
from tests.models.tiny import tiny_spec

LENGTHS = {"palm": {"decoder": 2048}, "gpt2": {"decoder": 1024}, "t5": {"encoder": 512, "decoder": 128}}


def cut(family: str, size: str, pipeline: int, virtual: int = 1, **options: str) -> tuple[int, ...]:
    spec = published_spec(CATALOGUE[family], size)
    costs = count_part_costs(spec, LENGTHS[family], heads=spec.family.heads, **options)
    return layers_by_cost(spec, costs, pipeline=pipeline, virtual=virtual)


def group_costs(costs: list[int], sizes: list[int]) -> list[int]:
    return [sum(costs[start:stop]) for start, stop in pairwise(accumulate(sizes, initial=0))]


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("costs", [[3, 1, 4, 1, 5, 9, 2], [1] * 7, [5, 0, 0, 1, 0, 0, 5]], ids=str)
def test_balanced_groups_are_the_best_of_all(costs: list[int], number: int) -> None:
    def rating(sizes: list[int]) -> tuple[int, int]:
        groups = group_costs(costs, sizes)
        return max(groups), sum(cost * cost for cost in groups)

    all_sizes = [
        [stop - start for start, stop in pairwise((0, *bounds, len(costs)))]
        for bounds in combinations(range(1, len(costs)), number - 1)
    ]
    sizes = balanced_group_sizes(costs, number)
    assert sizes in all_sizes
    assert rating(sizes) == min(map(rating, all_sizes))


def test_stages_of_palm_540b() -> None:
    """A head of 256,000 tokens costs as much as a layer."""
    assert cut("palm", "540b", 12) == (*[10] * 11, 8)


def test_vocabulary_head_replaces_layers() -> None:
    """The head of GPT-2 costs as much as 4.5 layers, and is alone on the last of four stages."""
    assert cut("gpt2", "small", 2) == (8, 4)
    assert cut("gpt2", "small", 4) == (4, 4, 4, 0)


def test_stage_spans_encoder_and_decoder() -> None:
    """A layer of the decoder has shorter sequences than one of the encoder: the first 17 of 24 + 24 cost as much as the
    others."""
    first, last = cut("t5", "11b", 2)
    assert first < 24 < last


def test_recomputed_layers_cost_more() -> None:
    assert cut("gpt2", "small", 3) == (5, 6, 1)
    assert cut("gpt2", "small", 3, recompute="full") == (5, 5, 2)


@pytest.mark.parametrize(("pipeline", "virtual"), [(2, 2), (4, 2), (4, 3)])
def test_virtual_stages_make_the_slowest_stage_faster_than_equal_chunks(pipeline: int, virtual: int) -> None:
    spec = published_spec(CATALOGUE["palm"], "8b")
    costs = count_part_costs(spec, LENGTHS["palm"], heads=spec.family.heads)
    layer, head = costs.layers[0], costs.heads["lm"]
    layers = layers_by_cost(spec, costs, pipeline=pipeline, virtual=virtual)
    stages = [sum(layers[stage::pipeline]) * layer for stage in range(pipeline)]
    stages[-1] += head
    assert sum(layers) == 32
    # No cut can divide layers.
    assert max(stages) < (sum(costs.layers) + head) / pipeline + layer


def test_costs_of_all_parts_are_the_flops_of_a_step() -> None:
    spec = tiny_spec("t5")
    lengths = {"encoder": 12, "decoder": 7}
    costs = count_part_costs(spec, lengths, heads=spec.family.heads)
    total = sum(costs.layers) + sum(costs.inputs.values()) + sum(costs.heads.values())
    assert 2 * total == step_flops(spec, rows=1, lengths=lengths)


def test_head_stays_with_the_layers_that_it_reads() -> None:
    spec = tiny_spec("gpt2", layers=4)
    exit_reads = change(spec.family, heads=("lm", "exit"), reads={"exit": ("decoder.1", "decoder.2")})
    spec = replace(spec, family=exit_reads)
    costs = PartCosts([1.0] * 4, {"decoder": 0.0}, {"lm": 0.0, "exit": 0.0})
    assert layers_by_cost(spec, costs, pipeline=3) == (1, 2, 1)
    assert layers_by_cost(spec, costs, pipeline=4) == (1, 2, 1, 0)
    with pytest.raises(UserError, match="its 4 layers make at most 4 pipeline chunks, not 5 x 1"):
        layers_by_cost(spec, costs, pipeline=5)
