"""Costs of adaptive input and softmax (arXiv:1609.04309, arXiv:1809.10853). The vocabulary, most frequent token first,
is cut into clusters, each with a narrower table than the one before."""

# D width of the hidden states

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from megaptm.families.transformer_xl.spec import adaptive_cutoffs, adaptive_division
from megaptm.layers.costs import LinearShape
from megaptm.losses.token_costs import LossBytes, projection_bytes
from megaptm.models.embed_costs import TokenCosts
from megaptm.models.head_costs import LanguageHeadCosts
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class Cluster:
    """Cluster of token ids with a table of their own (Transformer-XL)."""

    first: int
    rows: int
    width: int


def clusters(spec: ModelSpec) -> list[Cluster]:
    """Return the clusters of Transformer-XL's adaptive vocabulary; empty if it has one table."""
    cutoffs, size = adaptive_cutoffs(spec.size), spec.size
    if not cutoffs:
        return []
    edges = [0, *cutoffs, spec.vocabulary]
    return [
        Cluster(first, edges[number + 1] - first, size.table_width // adaptive_division(size) ** number)
        for number, first in enumerate(edges[:-1])
    ]


def cluster_errors(spec: ModelSpec) -> Iterator[str]:
    """Yield an error message for each setting of a model that Transformer-XL's adaptive clusters do not support."""
    family, cutoffs, size = spec.family, adaptive_cutoffs(spec.size), spec.size
    edges = [0, *cutoffs, spec.vocabulary]
    if edges != sorted(set(edges)):
        yield (
            f"model.cutoffs ({[*cutoffs]}) must be ascending, above 0 and below the vocabulary of {spec.vocabulary:,}: "
            "correct them."
        )
    if size.table_width < adaptive_division(size) ** len(cutoffs):
        yield (
            f"model.division ({adaptive_division(size)}): it divides the table width {size.table_width} once per "
            "cluster, which leaves no width for the last cluster: lower it."
        )
    mistakes = {
        "several stacks": len(family.stacks) > 1,
        "inputs besides tokens": len(family.inputs) > 1,
        "output.tied=False": not family.output.tied,
        "a norm of the inputs": bool(family.embedding.norm),
        "queries beside the text": family.has_queries,
        "positions at the input": any(block.position in ("learned", "sinusoid") for block in family.stacks.values()),
        "output.bias=False": not family.output.bias,
        "z_loss": bool(family.loss.z_loss),
        "label_smoothing": bool(family.loss.label_smoothing),
    }
    if named := [word for word, is_so in mistakes.items() if is_so]:
        yield f"model.cutoffs cannot be combined with {named[0]}: change either."


def cluster_projections(spec: ModelSpec) -> list[LinearShape]:
    """Return the projections from an adaptive vocabulary's cluster tables to the hidden states: one each if their
    widths differ, else one or none."""
    if adaptive_division(spec.size) > 1:
        return [LinearShape(linear.width, spec.width, False) for linear in clusters(spec)]
    return [LinearShape(spec.size.table_width, spec.width, False)] if spec.size.table_width != spec.width else []


def _token_parameters(spec: ModelSpec, *, embeds: bool = True) -> int:
    """Return the number of parameters of an adaptive vocabulary's cluster tables and projections.

    A chunk that only has the tied output (`embeds=False`) does not need the first of several projections: the softmax
    has another one instead.
    """
    linears = cluster_projections(spec)
    if not embeds and adaptive_division(spec.size) > 1:
        linears = linears[1:]
    return sum(linear.rows * linear.width for linear in clusters(spec)) + sum(linear.weights for linear in linears)


def projections(spec: ModelSpec) -> list[tuple[int, int]]:
    """Return inputs and outputs of each matrix product of the adaptive softmax. The first product also has one output
    per further cluster, after its tokens."""
    first, *tail_clusters = clusters(spec)
    return [
        (first.width, first.rows + len(tail_clusters)),
        *((cluster.width, cluster.rows) for cluster in tail_clusters),
    ]


class AdaptiveTokenCosts(TokenCosts):
    """Linear layers and costs of adaptive token tables: one per cluster, replicated on tensor ranks. Without cutoffs,
    one table."""

    @property
    def module(self) -> str:  # type: ignore[override]
        return "megaptm.families.transformer_xl.adaptive:AdaptiveTokens" if clusters(self.spec) else ""

    @property
    def heads(self) -> Mapping[str, str]:  # type: ignore[override]
        costs = "megaptm.families.transformer_xl.adaptive_costs:AdaptiveHeadCosts"
        return {"lm": costs} if clusters(self.spec) else {}

    @property
    def parameters(self) -> int:
        return _token_parameters(self.spec) if clusters(self.spec) else super().parameters

    @property
    def applied_linears(self) -> tuple[tuple[LinearShape, bool], ...]:
        """Return the projections of adaptive input: every position is projected on each cluster."""
        return tuple((linear, True) for linear in cluster_projections(self.spec)) if clusters(self.spec) else ()

    def rank_parameters(self, tensor: int, *, embeds: bool) -> int:
        if not clusters(self.spec):
            return super().rank_parameters(tensor, embeds=embeds)
        return _token_parameters(self.spec, embeds=embeds)

    def largest_table(self, tensor: int) -> int:
        return max(
            (cluster.rows * cluster.width for cluster in clusters(self.spec)), default=super().largest_table(tensor)
        )

    def matrices(self, *, embeds: bool, projects: bool) -> list[LinearShape]:
        if not (of_clusters := clusters(self.spec)):
            return super().matrices(embeds=embeds, projects=projects)
        return [
            *(LinearShape(cluster.width, cluster.rows, False) for cluster in of_clusters),
            *cluster_projections(self.spec)[not embeds and adaptive_division(self.spec.size) > 1 :],
            *([LinearShape(self.spec.size.table_width, len(of_clusters) - 1, False)] if projects else []),
        ]


class AdaptiveHeadCosts(LanguageHeadCosts):
    """Linear layers and costs of the adaptive softmax. Clusters are computed one after the other, and replicated on
    tensor ranks."""

    module = "megaptm.families.transformer_xl.adaptive:AdaptiveHead"
    rows = 0

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {"narrow": LinearShape(self.width, self.table_width, False)} if cluster_projections(self.spec) else {}

    @property
    def other_parameters(self) -> int:
        """Return the number of biases and cluster rows of the adaptive softmax: one bias per token, and one row with a
        bias per cluster after the first."""
        return self.spec.vocabulary + len(adaptive_cutoffs(self.spec.size)) * (self.spec.size.table_width + 1)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, logit_bytes: int | None) -> LossBytes:
        """Return the bytes of the adaptive softmax's loss for all clusters, with the gradients of all their tables."""
        losses = [
            projection_bytes(positions, inputs, outputs, element, tensor=1, logit_bytes=logit_bytes)
            for inputs, outputs in projections(self.spec)
        ]
        hidden = 2 * positions * self.width * element
        return LossBytes(hidden + sum(loss.saved for loss in losses), max(loss.transient for loss in losses))

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Return the projections of the adaptive softmax: each cluster projects all positions, also on the widths of
        narrower tables."""
        products = projections(self.spec)
        linears = [(self.width, width) for width, _ in products[1:]] if cluster_projections(self.spec) else []
        return [*products, *linears]

    def rank_projections(self, tensor: int) -> list[tuple[int, float]]:
        return [*self.projections]

    def rank_vocabulary(self, tensor: int) -> float:
        return float(sum(outputs for _, outputs in projections(self.spec)))
