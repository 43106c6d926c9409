"""Difference between two checkpoints: steps, config keys, and distances of the weights by group of layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from megaptm.config.yamls import flatten_keys
from megaptm.models.weight_groups import group_weights
from megaptm.run.changes import name_corpora
from megaptm.run.checkpoint import RunCheckpoint
from megaptm.storage import quote_value


@dataclass
class GroupDistance:
    """Squared norms of a group of weights in both checkpoints, and of their difference."""

    square_a: float = 0.0
    square_b: float = 0.0
    square_difference: float = 0.0

    def to_json(self) -> dict[str, float]:
        """Return the norms, and the norm of the difference over that of the first checkpoint."""
        a, b, difference = (square**0.5 for square in (self.square_a, self.square_b, self.square_difference))
        return {"norm_a": a, "norm_b": b, "distance": difference, "relative": difference / a if a else float("nan")}


@dataclass
class CheckpointDifference:
    """Difference between two checkpoints A and B."""

    steps: tuple[int, int]
    samples: tuple[int | None, int | None]
    config: dict[str, tuple[Any, Any]]
    """Values of the keys that differ. A key that only one of them has is None in the other."""
    groups: dict[str, GroupDistance] = field(default_factory=dict)
    """Distances of the weights that both have with one shape."""
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    other_shapes: list[str] = field(default_factory=list)

    @classmethod
    def between(cls, a: RunCheckpoint, b: RunCheckpoint) -> CheckpointDifference:
        """Compare two checkpoints. Weights are read one at a time."""
        corpora = [each.checkpoint.state.get("corpora") for each in (a, b)]
        keys_a, keys_b = (name_corpora(_recipe(each), *corpora) for each in (a, b))
        changed = {
            key: (keys_a.get(key), keys_b.get(key))
            for key in sorted({*keys_a, *keys_b})
            if keys_a.get(key) != keys_b.get(key)
        }
        samples = (a.checkpoint.state.get("samples"), b.checkpoint.state.get("samples"))
        result = cls((a.step, b.step), samples, changed)
        result._add_weights(a, b)
        return result

    def _add_weights(self, a: RunCheckpoint, b: RunCheckpoint) -> None:
        weights_a, weights_b = a.weights(), b.weights()
        names_a, names_b = [*weights_a], [*weights_b]  # `in` would read the tensor
        both = {*names_a} & {*names_b}
        self.only_a = [name for name in names_a if name not in both]
        self.only_b = [name for name in names_b if name not in both]
        for name, group in group_weights(name for name in names_a if name in both).items():
            value_a, value_b = weights_a[name], weights_b[name]
            if value_a.shape != value_b.shape:
                self.other_shapes.append(name)
                continue
            sums = self.groups.setdefault(group, GroupDistance())
            sums.square_a += value_a.double().square().sum().item()
            sums.square_b += value_b.double().square().sum().item()
            sums.square_difference += (value_b.double() - value_a).square().sum().item()

    def to_json(self) -> dict[str, Any]:
        """Return the difference as values of JSON."""
        groups = {name: distance.to_json() for name, distance in self.groups.items()}
        return asdict(self) | {"groups": groups}

    def lines(self) -> Iterator[str]:
        """Yield the difference as lines of text."""
        yield _format_numbers("steps", self.steps)
        yield _format_numbers("samples", self.samples)
        yield f"config: {len(self.config) or 'no'} changed keys"
        for key, (before, after) in self.config.items():
            yield f"  {key}: {quote_value(before)} -> {quote_value(after)}"
        width = max(map(len, self.groups), default=0)
        yield f"weights: {'group':{width}}  {'norm A':>10}  {'norm B':>10}  {'|B - A|':>10}  |B - A| / |A|"
        for name, distance in self.groups.items():
            norms = distance.to_json()
            columns = "  ".join(f"{norms[key]:>10.4g}" for key in ("norm_a", "norm_b", "distance"))
            yield f"         {name:{width}}  {columns}  {norms['relative']:>13.2%}"
        for label, names in (("only in A", self.only_a), ("only in B", self.only_b), ("shapes", self.other_shapes)):
            if names:
                yield f"{label}: {', '.join(names[:5])}{f' and {len(names) - 5:,} more' if len(names) > 5 else ''}"


def _recipe(checkpoint: RunCheckpoint) -> dict[str, Any]:
    """Return the flat config that a checkpoint was trained with. The checkpoint of an import has no config: return that
    of the run."""
    saved = checkpoint.checkpoint.state.get("config")
    return flatten_keys(saved if isinstance(saved, dict) else checkpoint.config.model_dump(mode="json"))


def _format_numbers(label: str, numbers: tuple[int | None, int | None]) -> str:
    before, after = (f"{number:,}" if isinstance(number, int) else "unknown" for number in numbers)
    return f"{label}: {before} -> {after}"
