"""Comparison of custom attention patterns between processes before the first step. Patterns are user code."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.bricks.custom_pattern import fingerprint, load_pattern, pattern_words
from megaptm.errors import UserError
from megaptm.parallel.background import together
from megaptm.parallel.collectives import all_gather_object
from megaptm.spec import ModelSpec


def refuse_other_patterns(spec: ModelSpec, lengths: Mapping[str, int]) -> None:
    """Raise UserError on all ranks if a pattern differs from that of rank 0 on any rank. All ranks call this.

    Ranks with different patterns would train parts of different models. `lengths`: stack -> sequence length.
    """
    stacks = spec.family.stacks.items()
    own = sorted({(word, lengths[name]) for name, block in stacks for word in pattern_words(block)})
    if not own:
        return
    mine = together(lambda: [fingerprint(load_pattern(word), length) for word, length in own])
    for rank, theirs in enumerate(told := all_gather_object(mine)):
        for (word, _), here, first in zip(own, theirs, told[0], strict=True):
            if here != first:
                raise UserError(
                    f"Block.attention: the pattern `{word}` says on process {rank} what it does not say on process 0: "
                    "let it follow from places alone, from the same file on all machines, and draw by a seed."
                )
