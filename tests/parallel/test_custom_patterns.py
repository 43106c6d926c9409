"""What patterns of the user's own say is compared among processes."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from megaptm.bricks.custom_pattern import CustomPattern, fingerprint
from megaptm.errors import UserError
from megaptm.parallel.custom_patterns import refuse_other_patterns
from megaptm.spec import change
from tests.models.strided import CROSS
from tests.models.tiny import tiny_spec
from tests.ranks import run_ranks


def told(word: str) -> str:
    """What a rank says of a GPT-2 that sees by this pattern."""
    spec = tiny_spec("gpt2")
    table = change(spec.family, stacks={"decoder": change(spec.family.last_block, attention=(word, "dot"))})
    try:
        refuse_other_patterns(replace(spec, family=table), {"decoder": 40})
    except UserError as error:
        return str(error)
    return ""


def test_a_pattern_that_is_another_on_another_process_is_refused_on_all() -> None:
    said = run_ranks(2, told, "tests.models.strided:OF_RANK")
    assert said[0] == said[1]
    assert said[0].startswith(
        "Block.attention: the pattern `tests.models.strided:OF_RANK` says on process 1 what it does"
    )
    assert run_ranks(2, told, "tests.models.strided:CROSS") == ["", ""]


def test_a_mask_that_changes_from_call_to_call_is_broken() -> None:
    turns = cycle((1, 2))
    drawn = CustomPattern(lambda query, key: abs(query - key) < next(turns), lambda n: np.eye(n, dtype=bool), block=4)
    with pytest.raises(
        UserError, match=r"its mask says something else each time\): let it say what follows from places"
    ):
        fingerprint(drawn, 10)


def test_pairs_and_blocks_are_both_compared() -> None:
    one = fingerprint(CROSS, 40)
    others = [
        CustomPattern(lambda query, key: (query - key) % 6 == 0, CROSS.block_mask, block=4),
        CustomPattern(CROSS.mask, lambda n: np.ones((n, n), bool), block=4),
    ]
    assert len({one, fingerprint(CROSS, 44), *(fingerprint(other, 40) for other in others)}) == 4
    assert fingerprint(CustomPattern(CROSS.mask, CROSS.block_mask, block=4), 40) == one
