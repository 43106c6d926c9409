"""Imports of megatron-core that no engine uses: DTensor, FSDP and torch's checkpoint format.

They import sympy and a thousand other modules, which is a third of the CPU seconds in which a rank starts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

OPTIONAL = (
    "torch.distributed._tensor",
    "torch.distributed.fsdp",
    "megatron.core.distributed.fsdp.src.megatron_fsdp",
)
"""Modules without which megatron-core works: it catches the ImportError."""
CHECKPOINT = "torch.distributed.checkpoint"
"""Module that megatron-core requires, but uses only for checkpoints of FSDP."""


@contextmanager
def skip_unused_imports() -> Iterator[None]:
    """Fail imports of these modules while megatron-core is imported. Modules that are already imported stay."""
    checkpoint = ModuleType(CHECKPOINT)
    vars(checkpoint)["default_planner"] = None
    replacements: dict[str, Any] = {**dict.fromkeys(OPTIONAL), CHECKPOINT: checkpoint}
    added = [name for name in replacements if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update((name, replacements[name]) for name in added)
    try:
        yield
    finally:
        for name in added:
            del modules[name]
