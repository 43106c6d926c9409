"""How much memory a computation takes at a time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch


def peak_bytes(compute: Callable[[], object]) -> int:
    """The most that torch has allocated for tensors on the CPU at a time, beyond what there was before."""
    with torch.profiler.profile(profile_memory=True) as profiled:
        kept = compute()
    del kept
    taken = [one.nbytes() for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    return max(accumulate(taken))
