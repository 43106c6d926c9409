"""Peak memory of a computation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch


def peak_bytes(compute: Callable[[], object]) -> int:
    """Return the maximum that torch has allocated for CPU tensors at a time, beyond the start."""
    with torch.profiler.profile(profile_memory=True) as profiled:
        result = compute()
    del result
    taken = [event.nbytes() for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(taken))
