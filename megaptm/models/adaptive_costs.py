"""Costs of adaptive input and softmax (arXiv:1609.04309, arXiv:1809.10853). The vocabulary, most frequent token first,
is cut into clusters, each with a narrower table than the one before."""

# D width of the hidden states

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megaptm.layers.costs import LinearShape
from megaptm.spec import ModelSpec, TokenInput


@dataclass(frozen=True)
class Cluster:
    """Token ids with a table of their own."""

    first: int
    rows: int
    width: int


def clusters(spec: ModelSpec) -> list[Cluster]:
    """Return the clusters of the vocabulary; empty if it has one table."""
    cutoffs, size = spec.size.cutoffs, spec.size
    if not cutoffs:
        return []
    edges = [0, *cutoffs, spec.vocabulary]
    return [
        Cluster(first, edges[number + 1] - first, size.table_width // size.division**number)
        for number, first in enumerate(edges[:-1])
    ]


def cluster_mistakes(spec: ModelSpec) -> Iterator[str]:
    """Yield an error message for each setting of a model that clusters do not support."""
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
    mistakes = {
        "several stacks": len(family.stacks) > 1,
        "inputs besides tokens": family.inputs != (TokenInput(),),
        "output.tied=False": not family.output.tied,
        "a norm of the inputs": bool(family.embedding.norm),
        "a second stream of queries": any(block.query_stream for block in family.stacks.values()),
        "positions at the input": any(block.position in ("learned", "sinusoid") for block in family.stacks.values()),
        "output.bias=False": not family.output.bias,
        "z_loss": bool(family.loss.z_loss),
        "label_smoothing": bool(family.loss.label_smoothing),
    }
    if named := [word for word, is_so in mistakes.items() if is_so]:
        yield f"model.cutoffs do not go with {named[0]}: change either."


def cluster_projections(spec: ModelSpec) -> list[LinearShape]:
    """Return the projections from cluster tables to the hidden states: one each if their widths differ, else one or
    none."""
    if spec.size.division > 1:
        return [LinearShape(linear.width, spec.width, False) for linear in clusters(spec)]
    return [LinearShape(spec.size.table_width, spec.width, False)] if spec.size.table_width != spec.width else []


def token_parameters(spec: ModelSpec, *, embeds: bool = True) -> int:
    """Return the parameters of cluster tables and projections.

    A chunk that only has the tied output (`embeds=False`) does not need the first of several projections: the softmax
    has another one instead.
    """
    linears = cluster_projections(spec)
    if not embeds and spec.size.division > 1:
        linears = linears[1:]
    return sum(linear.rows * linear.width for linear in clusters(spec)) + sum(linear.weights for linear in linears)


def projections(spec: ModelSpec) -> list[tuple[int, int]]:
    """Return inputs and outputs of each product of the softmax. The first product also has one output per further
    cluster, after its tokens."""
    first, *tail_clusters = clusters(spec)
    return [
        (first.width, first.rows + len(tail_clusters)),
        *((cluster.width, cluster.rows) for cluster in tail_clusters),
    ]
