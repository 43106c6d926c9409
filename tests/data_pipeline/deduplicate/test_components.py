"""Connected components, compared with a plain search."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from data_pipeline.deduplicate.components import Components

ROWS = 30


def lowest_by_search(pairs):
    lowest = list(range(ROWS))
    for _ in range(ROWS):
        for first, second in pairs:
            lowest[first] = lowest[second] = min(lowest[first], lowest[second])
    return lowest


@given(batches=some.lists(some.lists(some.tuples(*[some.integers(0, ROWS - 1)] * 2), max_size=20), max_size=4))
def test_components_match_search(batches):
    components = Components(ROWS)
    for pairs in batches:
        components.join(*np.array(pairs, np.int64).reshape(-1, 2).T)
    lowest = lowest_by_search([pair for pairs in batches for pair in pairs])
    rows, lower = components.duplicate_rows()
    expected = [(row, low) for row, low in enumerate(lowest) if row != low]
    assert list(zip(rows.tolist(), lower.tolist(), strict=True)) == expected
    every = np.arange(ROWS)
    assert components.are_separate(every, every[::-1]).tolist() == [
        first_low != second_low for first_low, second_low in zip(lowest, lowest[::-1], strict=True)
    ]


def test_long_chain_is_one_component():
    components, rows = Components(100_000), np.random.default_rng(0).permutation(100_000)
    components.join(rows[1:], rows[:-1])
    assert (components.duplicate_rows()[1] == 0).all()
