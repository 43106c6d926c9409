"""Keys of the section `model` for models with adaptive token tables."""

from __future__ import annotations

from typing import Annotated

from pydantic import Strict

from megaptm.section import Count, Section


class ClusterKeys(Section):
    """Keys of the vocabulary's clusters in the section `model`."""

    cutoffs: Annotated[tuple[Count, ...], Strict(False)] | None = None
    """Adaptive input and softmax: first id of each further cluster, with ids sorted by frequency; [] for one cluster.
    Default: from `size`."""
    division: Count | None = None
    """Factor by which the table width decreases from cluster to cluster. Default: from `size`."""


MODEL_KEYS = ClusterKeys
