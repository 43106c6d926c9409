"""Comparison of custom attention patterns between ranks before the first training step. Patterns are user code."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.errors import UserError
from megaptm.layers.custom_pattern import load_pattern, pattern_fingerprint, pattern_words
from megaptm.parallel.background import run_on_all_ranks
from megaptm.parallel.collectives import all_gather_object
from megaptm.spec import ModelSpec


def refuse_other_patterns(spec: ModelSpec, lengths: Mapping[str, int]) -> None:
    """Raise UserError on all ranks if a custom attention pattern on any rank differs from that of rank 0. All ranks
    call this.

    Ranks with different patterns would train parts of different models. `lengths`: stack -> sequence length.
    """
    stacks = spec.family.stacks.items()
    own = sorted({(word, lengths[name]) for name, block in stacks for word in pattern_words(block)})
    if not own:
        return
    fingerprints = run_on_all_ranks(lambda: [pattern_fingerprint(load_pattern(word), length) for word, length in own])
    by_rank = all_gather_object(fingerprints)
    for rank, of_rank in enumerate(by_rank):
        for (word, _), fingerprint_here, fingerprint_of_0 in zip(own, of_rank, by_rank[0], strict=True):
            if fingerprint_here != fingerprint_of_0:
                raise UserError(
                    f"Block.attention: the pattern `{word}` on process {rank} differs from that on process 0. It must "
                    "depend on positions only, use the same file on all machines, and sample with a fixed seed."
                )
