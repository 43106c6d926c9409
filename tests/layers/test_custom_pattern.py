"""Custom attention patterns: cost, choice of kernels, and messages about mistakes.

That kernels equal the dense mask is tested in test_sparse.py and test_kernels.py; that a family trains with a custom
pattern in all layouts, with the other variants (tests/models/grammar.py).
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

from megaptm.config import load_config, resolve_model
from megaptm.errors import UserError
from megaptm.layers.custom_pattern import CustomPattern, load_pattern
from megaptm.layers.kernel_choice import AttentionWork, ComputeDevice, choose_kernel
from megaptm.layers.layer_costs import sublayers
from megaptm.layers.stack import Stack
from megaptm.spec import AttentionSpec, Block, PatternSpec, Size
from tests import ROOT
from tests.layers.on_a_gpu import ALL_PACKAGES
from tests.models.strided import CROSS, NEAR_OR_FIRST, every_third, near_or_first

SIZE = Size(layers=1, width=32, heads=2, ffn=64)
PATTERN_NAME = "tests.models.strided:NEAR_OR_FIRST"
GPU = ComputeDevice("cuda", ALL_PACKAGES)


def test_cost_counts_pairs_of_attended_blocks() -> None:
    """Blocks of two positions: each of the 32 attends to itself, its neighbors and the first."""
    costs = sublayers(Block(attention=PatternSpec(pattern=PATTERN_NAME)), SIZE)[0].costs
    blocks = 2 + 3 + 29 * 4 + 3
    assert costs.pairs(64, 64) == 4 * blocks
    assert costs.computes_only_tiles(64)
    assert CROSS.pairs(40) == 4 * 4 * (2 * 10)


def test_mask_and_block_mask_are_combined() -> None:
    positions, table = np.arange(40), CROSS.table(40)
    attended = CROSS.attends(0, positions[:, None], positions[None], table)
    blocks = (positions[:, None] // 4 == positions // 4) | (positions[:, None] // 4 == 9 - positions // 4)
    assert (attended == (every_third(positions[:, None], positions) & blocks)).all()


def test_example_of_the_page_works_in_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/configs.md").read_text(encoding="utf-8")
    [example] = [code for code in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "SINKS" in code]
    monkeypatch.setitem(sys.modules, "mine", module := ModuleType("mine"))
    exec(compile(example, "docs/configs.md", "exec"), vars(module))
    spec = resolve_model(load_config("gpt2/tiny", ["model.family=mine:SPARSE"]))
    assert spec.name == "sparse"
    assert spec.family.last_block.attention == (PatternSpec(pattern="mine:SINKS"), AttentionSpec())
    assert load_pattern("mine:SINKS").pairs(256) == (1 + 2 + 3 + 3) * 64 * 64


def test_pattern_does_not_wait_for_the_device() -> None:
    """The host never reads a value of a tensor: it would wait for the device in each tile of each layer."""
    positions, operations = torch.arange(40), []

    class RecordedOperations(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operations.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with RecordedOperations():
        CROSS.attends(positions.new_zeros(()), positions[:, None], positions, torch.ones(1, 10, 10, dtype=torch.bool))
    assert "index" in operations
    assert "_local_scalar_dense" not in operations


def test_kernels_that_support_custom_patterns() -> None:
    options: dict[str, Any] = {"queries": 64, "key_width": 16, "precision": "bf16", "pattern": NEAR_OR_FIRST}
    work = AttentionWork(**options)
    assert choose_kernel(work, GPU).kernel == "flex"
    assert choose_kernel(work, ComputeDevice("cpu")).kernel == "tiles"
    with pytest.raises(UserError, match="it supports only window patterns"):
        choose_kernel(work, GPU, "flash-attn")


TURNS = cycle((True, False))


def unseeded_blocks(blocks: int) -> np.ndarray:
    """Return another block mask on each call, as a mask without a seed would."""
    return np.full((blocks, blocks), next(TURNS)) | np.eye(blocks, dtype=bool)


def broken(mask: Any = near_or_first, block_mask: Any = None) -> CustomPattern:
    return CustomPattern(mask, block_mask, block=4, name="mine:BROKEN")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (broken(lambda query, key: query > key), r"\(position 0 does not attend to itself\): let every"),
        (broken(lambda query, key: query - key), r"its mask is int64 \[10\]\): return bool \[10\]"),
        (broken(lambda query, key: True), "its mask is bool"),
        (broken(lambda query, key: query.__iadd__(1) >= key), "the mask of `mine:BROKEN` failed .*read-only"),
        (broken(lambda query, key: query.near(key)), "the mask of `mine:BROKEN` failed"),
        (
            broken(block_mask=lambda number: np.ones((2, 2), bool)),
            r"bool \[2, 2\]\): return a bool array \[3, 3\] for 3 blocks",
        ),
        (broken(block_mask=lambda number: [[True]]), "its block mask is list"),
        (broken(block_mask=lambda number: ~np.eye(number, dtype=bool)), "block 0 does not attend to itself"),
        (broken(block_mask=unseeded_blocks), "its block mask differs between two calls.: use a fixed seed"),
        (broken(block_mask=lambda number: 1 / 0), "the block mask of `mine:BROKEN` failed"),
    ],
)
def test_invalid_pattern_is_rejected(pattern: CustomPattern, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pattern.pairs(10)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.models.strided:SPARSE", "has no pattern `SPARSE`"),
        ("tests.models.strided:near_or_first", "is not a `megaptm.layers.custom_pattern.CustomPattern`"),
        ("tests.models.strided:LOOKED_UP", "its mask returns a bool ndarray for torch tensors"),
        ("tests.models.strided:TOO_LARGE_BLOCKS", "the block of .* is 1000000000: give a whole number from 1 to 4,096"),
        ("mine", "must be written `package.module:pattern`"),
    ],
)
def test_invalid_pattern_name_is_rejected(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Stack(Block(attention=PatternSpec(pattern=name)), SIZE, range(1), dropout=0.0)
