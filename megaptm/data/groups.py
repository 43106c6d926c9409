"""Groups of a corpus, by domain and by bucket of a quality score. Each shard has documents of one group, so that a part
of a mix is a set of shards."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from megaptm.data.shards import Corpus
from megaptm.errors import UserError, nearest_name_advice
from megaptm.mixture import MixPart


def select_shards(corpus: Corpus, split: str, part: MixPart) -> np.ndarray | None:
    """Return the rows of the shard table that a part of a mix reads, int64 ascending; None for all shards."""
    if part.quality is None and not part.domains:
        return None
    if (groups := corpus.manifest.made_from.get("groups")) is None:
        raise UserError(
            f"data.mix: {corpus.name} was built without groups, so a mix cannot select{part.selection}: build it with "
            "the key `groups` in its recipe."
        )
    edges, domains, counts = groups["quality"], groups["domains"], groups["shards"].get(split, [])
    buckets = _bucket_range(corpus, edges, part)
    numbers = range(len(domains))
    if part.domains:
        if unknown := [name for name in part.domains if name not in domains]:
            raise UserError(
                f"data.mix: {corpus.name} has no domain {unknown[0]}; {nearest_name_advice(unknown[0], domains)}"
            )
        numbers = [domains.index(name) for name in part.domains]  # type: ignore[assignment]
    per_domain = max(1, len(edges) - 1)
    if len(counts) != per_domain * len(domains) or sum(counts) != len(corpus.split(split).shards):
        raise UserError(f"{corpus.name} has other shards than its groups: build the corpus again.")
    starts = [0, *accumulate(counts)]
    selected = sorted(domain * per_domain + bucket for domain in numbers for bucket in buckets)
    rows = [np.arange(starts[group], starts[group + 1]) for group in selected]
    return np.concatenate([np.empty(0, np.int64), *rows])


def _bucket_range(corpus: Corpus, edges: list[float], part: MixPart) -> range:
    if part.quality is None:
        return range(max(1, len(edges) - 1))
    low, high = part.quality
    if not (low in edges and high in edges):
        shown = ", ".join(f"{edge:g}" for edge in edges) or "none"
        raise UserError(
            f"data.mix: quality [{low:g}, {high:g}] of {corpus.name} must be a range of two edges of its buckets, "
            f"which are {shown}: use these, or build it with others (groups.quality)."
        )
    return range(edges.index(low), edges.index(high))


def refuse_shared_documents(corpus: Corpus, split: str, parts: tuple[MixPart, ...]) -> None:
    """Raise `UserError` if two parts of a mix read the same documents of a corpus."""
    rows = [select_shards(corpus, split, part) for part in parts]
    if len(parts) < 2:
        return
    everything = np.arange(len(corpus.split(split).shards))
    chosen = np.concatenate([everything if selected is None else selected for selected in rows])
    if len(np.unique(chosen)) < len(chosen):
        shown = " and ".join(part.selection.strip() or "all documents" for part in parts)
        raise UserError(
            f"data.mix: the parts of {corpus.name} have documents in common ({shown}): make their ranges of quality "
            "and their domains separate."
        )
