"""Comparison of custom attention patterns between processes."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from megaptm.errors import UserError
from megaptm.layers.custom_pattern import CustomPattern, pattern_fingerprint
from megaptm.parallel.custom_patterns import refuse_other_patterns
from megaptm.spec import AttentionSpec, PatternSpec, change
from tests.models.strided import CROSS
from tests.models.tiny import tiny_spec
from tests.ranks import run_ranks


def error_of(word: str) -> str:
    """Return the error of a GPT-2 with this pattern on one rank, or nothing."""
    spec = tiny_spec("gpt2")
    table = change(
        spec.family,
        stacks={"decoder": change(spec.family.last_block, attention=(PatternSpec(pattern=word), AttentionSpec()))},
    )
    try:
        refuse_other_patterns(replace(spec, family=table), {"decoder": 40})
    except UserError as error:
        return str(error)
    return ""


def test_pattern_that_differs_between_ranks_is_refused_on_all() -> None:
    errors = run_ranks(2, error_of, "tests.models.strided:OF_RANK")
    assert errors[0] == errors[1]
    assert errors[0].startswith(
        "Block.attention: the pattern `tests.models.strided:OF_RANK` on process 1 differs from that"
    )
    assert run_ranks(2, error_of, "tests.models.strided:CROSS") == ["", ""]


def test_pattern_that_changes_between_calls_is_refused() -> None:
    turns = cycle((1, 2))
    changing = CustomPattern(
        lambda query, key: abs(query - key) < next(turns), lambda n: np.eye(n, dtype=bool), block=4
    )
    with pytest.raises(
        UserError, match=r"its mask differs between two calls with the same positions\): compute it from the positions"
    ):
        pattern_fingerprint(changing, 10)


def test_fingerprint_covers_mask_and_block_mask() -> None:
    expected = pattern_fingerprint(CROSS, 40)
    changed_patterns = [
        CustomPattern(lambda query, key: (query - key) % 6 == 0, CROSS.block_mask, block=4),
        CustomPattern(CROSS.mask, lambda n: np.ones((n, n), bool), block=4),
    ]
    assert (
        len({expected, pattern_fingerprint(CROSS, 44), *(pattern_fingerprint(other, 40) for other in changed_patterns)})
        == 4
    )
    assert pattern_fingerprint(CustomPattern(CROSS.mask, CROSS.block_mask, block=4), 40) == expected
