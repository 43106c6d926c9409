"""A pattern of the user's own: what it costs, which kernels take it, and what is said where it is broken.

That each kernel gives what its whole mask gives is in test_sparse.py and test_kernels.py; that a family trains with one
on all layouts, with the other variants of tables (tests/models/grammar.py).
"""

from __future__ import annotations

import re
import sys
from itertools import cycle
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from megaptm.bricks import brick_of
from megaptm.bricks.custom_pattern import CustomPattern, load_pattern
from megaptm.bricks.kernels import AttentionWork, ComputeDevice, choose
from megaptm.config import load, resolve_model
from megaptm.errors import UserError
from megaptm.layers.layer import Stack
from megaptm.spec import AttentionSpec, Block, PatternSpec, Size
from tests import ROOT
from tests.layers.on_a_gpu import ALL_PACKAGES
from tests.models.strided import CROSS, NEAR_OR_FIRST, every_third, near_or_first

SIZE = Size(layers=1, width=32, heads=2, ffn=64)
WORD = "tests.models.strided:NEAR_OR_FIRST"
GPU = ComputeDevice("cuda", ALL_PACKAGES)


def test_it_costs_the_pairs_of_its_blocks() -> None:
    """Blocks of two: each its own, its neighbors and the first, of 32."""
    brick = brick_of("attention", "pattern", Block(attention=PatternSpec(pattern=WORD)), SIZE)
    blocks = 2 + 3 + 29 * 4 + 3
    assert brick.pairs(64, 64) == 4 * blocks
    assert brick.tiled(64)
    assert CROSS.pairs(40) == 4 * 4 * (2 * 10)


def test_what_it_sees_is_what_its_mask_and_its_blocks_say() -> None:
    places, table = np.arange(40), CROSS.table(40)
    seen = CROSS.sees(0, places[:, None], places[None], table)
    blocks = (places[:, None] // 4 == places // 4) | (places[:, None] // 4 == 9 - places // 4)
    assert (seen == (every_third(places[:, None], places) & blocks)).all()


def test_the_example_of_the_page_is_one_with_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    [example] = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/configs.md").read_text(encoding="utf-8"), re.M | re.S
    )
    monkeypatch.setitem(sys.modules, "mine", module := ModuleType("mine"))
    exec(compile(example, "docs/configs.md", "exec"), vars(module))
    spec = resolve_model(load("gpt2/tiny", ["model.family=mine:SPARSE"]))
    assert (spec.name, spec.family.last_block.attention) == (
        "sparse",
        (PatternSpec(pattern="mine:SINKS"), AttentionSpec()),
    )
    assert load_pattern("mine:SINKS").pairs(256) == (1 + 2 + 3 + 3) * 64 * 64


def test_nothing_is_asked_of_a_gpu() -> None:
    """Of no number of a tensor, which the host would wait for in each tile of each layer."""
    places, asked = torch.arange(40), []

    class Asked(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Asked():
        CROSS.sees(places.new_zeros(()), places[:, None], places, torch.ones(1, 10, 10, dtype=torch.bool))
    assert "index" in asked
    assert "_local_scalar_dense" not in asked


def test_kernels_take_it_that_can_say_it() -> None:
    asked: dict[str, Any] = {"queries": 64, "key_width": 16, "precision": "bf16", "pattern": NEAR_OR_FIRST}
    work = AttentionWork(**asked)
    assert choose(work, GPU).kernel == "flex"
    assert choose(work, ComputeDevice("cpu")).kernel == "tiles"
    for kernel in ("flash-attn", "transformer-engine"):
        with pytest.raises(UserError, match="it knows windows and no other pattern"):
            choose(work, GPU, kernel)


TURNS = cycle((True, False))


def drawn(number: int) -> np.ndarray:
    """As if by chance, each time others."""
    return np.full((number, number), next(TURNS)) | np.eye(number, dtype=bool)


def broken(mask: Any = near_or_first, block_mask: Any = None) -> CustomPattern:
    return CustomPattern(mask, block_mask, block=4, name="mine:BROKEN")


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (broken(lambda query, key: query > key), r"\(place 0 does not see itself\): let each see itself"),
        (broken(lambda query, key: query - key), r"its mask says int64 \[10\]\): give bool \[10\]"),
        (broken(lambda query, key: True), "its mask says bool"),
        (broken(lambda query, key: query.__iadd__(1) >= key), "the mask of `mine:BROKEN` failed .*read-only"),
        (broken(lambda query, key: query.near(key)), "the mask of `mine:BROKEN` failed"),
        (
            broken(block_mask=lambda number: np.ones((2, 2), bool)),
            r"bool \[2, 2\]\): of 3 blocks give an array, bool \[3, 3\]",
        ),
        (broken(block_mask=lambda number: [[True]]), "its block mask is list"),
        (broken(block_mask=lambda number: ~np.eye(number, dtype=bool)), "block 0 does not see itself"),
        (broken(block_mask=drawn), "its block mask is another each time.: draw it by a seed"),
        (broken(block_mask=lambda number: 1 / 0), "the block mask of `mine:BROKEN` failed"),
    ],
)
def test_what_is_broken_is_said(pattern: CustomPattern, told: str) -> None:
    with pytest.raises(UserError, match=told):
        pattern.pairs(10)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("tests.models.strided:SPARSE", "has no pattern `SPARSE`"),
        ("tests.models.strided:near_or_first", "is not a `megaptm.bricks.custom_pattern.CustomPattern`"),
        ("tests.models.strided:LOOKED_UP", "of torch's tensors its mask gives a bool ndarray"),
        ("tests.models.strided:TOO_LARGE_BLOCKS", "the block of .* is 1000000000: give a whole number from 1 to 4,096"),
        ("mine", "must be written `package.module:pattern`"),
    ],
)
def test_a_word_that_names_none_is_refused(word: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Stack(Block(attention=PatternSpec(pattern=word)), SIZE, range(1), dropout=0.0)
