"""Costs of a teacher (docs/distillation.md): weights, forward pass, and compared tensors."""

from __future__ import annotations

from dataclasses import replace

from megaptm.bricks import heads, sublayers
from megaptm.bricks.head import ROWS_PROJECTED
from megaptm.plan import costs
from megaptm.plan.costs import OperationTime
from megaptm.plan.machine import Machine
from megaptm.plan.stages import parameters, stages
from megaptm.plan.workload import Workload
from megaptm.spec import Distillation, ModelSpec, change


def parameters_held(work: Workload) -> int:
    """Return the parameters of the full teacher on each rank; 0 if its logits are read from files."""
    if work.distillation is not None and work.distillation.cached:
        return 0
    (local,) = stages(replace(_whole(work), layout=work.layout.model_copy(update={"pipeline": 1, "virtual": 1})))
    counted = parameters(_whole(work), local)
    return counted.trained + counted.frozen


def memory(work: Workload) -> float:
    """Return the bytes on each rank.

    - Teacher weights.
    - Compared hidden states of teacher and student, in float32.
    - Attention scores for the student's backward pass.
    - Logits of both, for the positions that are projected at once.
    """
    if (wanted := work.distillation) is None:
        return 0.0
    total, places = float(work.element * parameters_held(work)), 0
    for stack, length in work.lengths.items():
        places, ours, theirs = work.layout.microbatch * length, work.spec.size_of(stack), wanted.teacher.size_of(stack)
        kept = len(wanted.layers[stack]) * wanted.asks("hidden") + wanted.asks("embeddings") + wanted.asks("cosine")
        total += kept * places * theirs.width * (work.element + 4)
        if wanted.asks("scores"):
            pairs = places * length * ours.heads / work.layout.tensor
            # One difference and two masks; temporarily the scores of both.
            total += pairs * (6 * len(wanted.layers[stack]) + 12)
    if wanted.asks("logits"):
        words = work.spec.padded_vocabulary / work.layout.tensor
        total += min(places, ROWS_PROJECTED) * words * 4 * 4 + 4 * words * work.spec.size.table_width
    return total


def flops(work: Workload) -> int:
    """Return the FLOPs of a step on all devices beyond the student's own: the teacher's forward pass, and the student's
    extra projections, scores and logits at all positions, forward and backward."""
    if (wanted := work.distillation) is None:
        return 0
    forward, learned = 0 if wanted.cached else _taught(work).flops // 3, 0
    for stack, length in work.lengths.items():
        layers = len(wanted.layers[stack])
        if wanted.projection != "none":
            maps = layers * wanted.asks("hidden") + wanted.asks("embeddings")
            learned += maps * length * work.spec.size_of(stack).width * wanted.teacher.size_of(stack).width
        if wanted.asks("scores"):
            learned += layers * _scored(work.spec, stack, length)
            forward += 2 * work.batch * layers * _scored(wanted.teacher, stack, length)
    if wanted.asks("logits"):
        head = heads(work.spec)[_head(wanted, work.spec)]
        learned += head.multiply_adds(work.lengths[head.stack])
    return forward + 6 * work.batch * learned


def seconds(machine: Machine, work: Workload) -> OperationTime:
    """Return the seconds of a step on the slowest rank."""
    if work.distillation is None:
        return OperationTime()
    taught = _taught(work)
    (local,) = stages(taught)
    run = not work.distillation.cached
    passes = costs.stage(machine, taught, local).forward * (work.microbatches * run)
    more = (flops(work) - taught.flops // 3 * run) / work.layout.processes
    return passes + OperationTime(products=more / (machine.peak(work.precision) * machine.efficiency.matmul))


def _scored(spec: ModelSpec, stack: str, length: int) -> int:
    """Return the multiply-adds of a layer's scores and of the projections of queries, keys and values."""
    sub = sublayers(spec.family.stacks[stack].at(0), spec.size_of(stack))[0]
    maps = sum(one.weights for name, one in sub.brick.maps.items() if name != "output")
    return length * maps + length * length * spec.size_of(stack).heads * spec.size_of(stack).key_width


def _whole(work: Workload) -> Workload:
    """Return the workload of the teacher alone, without trained heads."""
    assert work.distillation is not None
    alone = {"trained_heads": (), "num_predicted": None, "distillation": None, "recompute": "none"}
    return replace(work, spec=work.distillation.teacher, **alone)  # type: ignore[arg-type]


def _taught(work: Workload) -> Workload:
    """Return the workload of the computed part of the teacher: stacks, and the head whose logits are compared."""
    whole, wanted = _whole(work), work.distillation
    assert wanted is not None
    asked = (_head(wanted, work.spec),) if wanted.asks("logits") else ()
    return replace(whole, spec=replace(whole.spec, family=change(whole.spec.family, heads=asked)))


def _head(wanted: Distillation, student: ModelSpec) -> str:
    found = wanted.head_of(student)
    assert found is not None, "config has refused it"
    return found
