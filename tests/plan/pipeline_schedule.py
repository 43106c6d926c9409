"""Timeline of the pipeline schedule, 1F1B or interleaved: start and end of each pass on each stage.

The order on a stage is megatron-core's: some forward passes fill the pipeline, then forward and backward passes
alternate, then the remaining backward passes follow (arXiv:2104.04473, section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """Pass of one micro-batch through one chunk."""

    stage: int
    chunk: int
    microbatch: int
    backward: bool
    start: float
    stop: float


def timeline(
    *, stages: int, chunks: int, microbatches: int, forward: Sequence[float], backward: Sequence[float]
) -> list[Pass]:
    """Return all passes of a step; `forward` and `backward` are seconds of one chunk on each stage."""
    orders = [order(stage, stages=stages, chunks=chunks, microbatches=microbatches) for stage in range(stages)]
    done: dict[tuple[int, int, bool], float] = {}  # (index of the chunk in the model, micro-batch, backward) -> end
    free, next_index, passes = [0.0] * stages, [0] * stages, []
    last = stages * chunks - 1
    waiting = sum(map(len, orders))
    while waiting:
        before = waiting
        for stage in range(stages):
            while next_index[stage] < len(orders[stage]):
                chunk, microbatch, is_backward = orders[stage][next_index[stage]]
                part = chunk * stages + stage
                needs = _needs(part, microbatch, is_backward, last)
                if any(need not in done for need in needs):
                    break
                start = max([free[stage], *(done[need] for need in needs)])
                stop = start + (backward if is_backward else forward)[stage]
                done[part, microbatch, is_backward] = free[stage] = stop
                passes.append(Pass(stage, chunk, microbatch, is_backward, start, stop))
                next_index[stage] += 1
                waiting -= 1
        assert waiting < before, "a schedule that waits for itself"
    return passes


def order(stage: int, *, stages: int, chunks: int, microbatches: int) -> list[tuple[int, int, bool]]:
    """Return (chunk, micro-batch, backward) in the order in which a stage runs them."""
    forwards = [_chunk_and_microbatch(step, stages, chunks, microbatches) for step in range(microbatches * chunks)]
    backwards = [(chunks - 1 - chunk, microbatch) for chunk, microbatch in forwards]
    ahead = (stages - stage - 1) if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = min(ahead, len(forwards))
    turns = [(*forwards[step], False) for step in range(ahead)]
    for step in range(len(forwards) - ahead):
        turns += [(*forwards[ahead + step], False), (*backwards[step], True)]
    return turns + [(*backwards[step], True) for step in range(len(forwards) - ahead, len(forwards))]


def _chunk_and_microbatch(step: int, stages: int, chunks: int, microbatches: int) -> tuple[int, int]:
    """Return chunk and micro-batch of the n-th forward pass. Groups of `stages` micro-batches go through the chunks in
    turn."""
    if chunks == 1:
        return 0, step
    group, within = divmod(step, stages * chunks)
    chunk, offset = divmod(within, stages)
    return chunk, group * stages + offset


def _needs(part: int, microbatch: int, is_backward: bool, last: int) -> list[tuple[int, int, bool]]:
    """Return the passes that must end before this one: that of the previous chunk (forward), or the own forward pass
    and that of the next chunk (backward)."""
    if not is_backward:
        return [(part - 1, microbatch, False)] if part else []
    own = (part, microbatch, False)
    return [own] if part == last else [own, (part + 1, microbatch, True)]
