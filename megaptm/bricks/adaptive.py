"""Adaptive input and softmax (arXiv:1609.04309, arXiv:1809.10853), in numbers: the vocabulary, most frequent first, is
cut into clusters, each with a table narrower than the one before."""

# D width of the stream

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megaptm.bricks.brick import Map
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class Cluster:
    """Ids that have a table of their own."""

    first: int
    rows: int
    width: int


def clusters(spec: ModelSpec) -> list[Cluster]:
    """Of the vocabulary; none where it has one table."""
    cutoffs, size = spec.size.cutoffs, spec.size
    if not cutoffs:
        return []
    edges = [0, *cutoffs, spec.vocabulary]
    return [
        Cluster(first, edges[number + 1] - first, size.table_width // size.division**number)
        for number, first in enumerate(edges[:-1])
    ]


def cluster_mistakes(spec: ModelSpec) -> Iterator[str]:
    """A sentence for each thing of a model with clusters that does not go with them."""
    family, cutoffs, size = spec.family, spec.size.cutoffs, spec.size
    edges = [0, *cutoffs, spec.vocabulary]
    if edges != sorted(set(edges)):
        yield (
            f"model.cutoffs ({[*cutoffs]}) must rise from above 0 to below the vocabulary of {spec.vocabulary:,}: "
            "correct them."
        )
    if size.table_width < size.division ** len(cutoffs):
        yield (
            f"model.division ({size.division}): a table {size.table_width} wide is divided by it for each cluster, and "
            "the last has no width left: lower it."
        )
    wrong = {
        "several stacks": len(family.stacks) > 1,
        "inputs besides tokens": family.inputs != ("token",),
        "tied=False": not family.tied,
        "a norm of the inputs": family.embedding_norm,
        "a second stream of queries": any(block.query_stream for block in family.stacks.values()),
        "positions at the input": any(block.position in ("learned", "sinusoid") for block in family.stacks.values()),
        "output_bias=False": not family.output_bias,
        "z_loss": bool(family.z_loss),
        "label_smoothing": bool(family.label_smoothing),
    }
    if named := [word for word, is_so in wrong.items() if is_so]:
        yield f"model.cutoffs do not go with {named[0]}: change either."


def cluster_maps(spec: ModelSpec) -> list[Map]:
    """From tables to the stream: one for each where their widths differ, or one for all, or none."""
    if spec.size.division > 1:
        return [Map(one.width, spec.width, False) for one in clusters(spec)]
    return [Map(spec.size.table_width, spec.width, False)] if spec.size.table_width != spec.width else []


def token_parameters(spec: ModelSpec, *, embeds: bool = True) -> int:
    """Of tables and maps of the clusters. What only reads them, of a tied output, has no use for the first map where
    each has its own: the softmax has another in its place."""
    maps = cluster_maps(spec)
    if not embeds and spec.size.division > 1:
        maps = maps[1:]
    return sum(one.rows * one.width for one in clusters(spec)) + sum(one.weights for one in maps)


def projections(spec: ModelSpec) -> list[tuple[int, int]]:
    """Width and rows of each product of the softmax: in the first a cluster is a row, behind the words."""
    first, *others = clusters(spec)
    return [(first.width, first.rows + len(others)), *((one.width, one.rows) for one in others)]
