"""Groups of weights, by which norms and distances are reported. Does not import torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

GROUPS_PER_STACK = 4
"""Maximum number of groups of consecutive layers of a stack."""


def group_weights(names: Iterable[str]) -> dict[str, str]:
    """Return the group of each weight, in order: `embed`, `decoder.0-2` for layers 0 to 2, `decoder` for the rest of a
    stack, `head`."""
    names = sorted(set(names), key=_sort_key)
    num_layers: dict[str, int] = defaultdict(int)
    for name in names:
        stack, layer, *_ = [*name.split("."), ""]
        if layer.isdecimal():
            num_layers[stack] = max(num_layers[stack], int(layer) + 1)
    groups = {}
    for name in names:
        stack, layer, *_ = [*name.split("."), ""]
        groups[name] = stack
        if layer.isdecimal():
            size = -(-num_layers[stack] // GROUPS_PER_STACK)
            first = int(layer) // size * size
            last = min(first + size, num_layers[stack]) - 1
            groups[name] = f"{stack}.{first}" if first == last else f"{stack}.{first}-{last}"
    return groups


def _sort_key(name: str) -> tuple[str, int, str]:
    stack, layer, *_ = [*name.split("."), ""]
    return stack, int(layer) if layer.isdecimal() else -1, name
