"""Costs of a teacher (docs/distillation.md): weights, forward pass, and compared tensors."""

from __future__ import annotations

from dataclasses import replace

from megaptm.bricks import heads, sublayers
from megaptm.bricks.head import ROWS_PROJECTED
from megaptm.plan import costs
from megaptm.plan.costs import OperationTime
from megaptm.plan.machine import Machine
from megaptm.plan.stages import count_rank_parameters, stage_chunks
from megaptm.plan.workload import Workload
from megaptm.spec import Distillation, ModelSpec, change


def count_teacher_parameters(work: Workload) -> int:
    """Return the parameters of the full teacher on each rank; 0 if its logits are read from files."""
    if work.distillation is not None and work.distillation.cached:
        return 0
    (local,) = stage_chunks(
        replace(_teacher_workload(work), layout=work.layout.model_copy(update={"pipeline": 1, "virtual": 1}))
    )
    counted = count_rank_parameters(_teacher_workload(work), local)
    return counted.trained + counted.frozen


def teacher_bytes(work: Workload) -> float:
    """Return the bytes on each rank.

    - Teacher weights.
    - Compared hidden states of teacher and student, in float32.
    - Attention scores for the student's backward pass.
    - Logits of both, for the positions that are projected at once.
    """
    if (distillation := work.distillation) is None:
        return 0.0
    total, positions = float(work.element_bytes * count_teacher_parameters(work)), 0
    for stack, length in work.lengths.items():
        positions, student_size, teacher_size = (
            work.layout.microbatch * length,
            work.spec.size_of(stack),
            distillation.teacher.size_of(stack),
        )
        num_states = (
            len(distillation.layers[stack]) * distillation.asks("hidden")
            + distillation.asks("embeddings")
            + distillation.asks("cosine")
        )
        total += num_states * positions * teacher_size.width * (work.element_bytes + 4)
        if distillation.asks("scores"):
            pairs = positions * length * student_size.heads / work.layout.tensor
            # One difference and two masks; temporarily the scores of both.
            total += pairs * (6 * len(distillation.layers[stack]) + 12)
    if distillation.asks("logits"):
        words = work.spec.padded_vocabulary / work.layout.tensor
        total += min(positions, ROWS_PROJECTED) * words * 4 * 4 + 4 * words * work.spec.size.table_width
    return total


def teacher_flops(work: Workload) -> int:
    """Return the FLOPs of a step on all devices beyond the student's own: the teacher's forward pass, and the student's
    extra projections, scores and logits at all positions, forward and backward."""
    if (distillation := work.distillation) is None:
        return 0
    forward, student_products = 0 if distillation.cached else _computed_workload(work).flops // 3, 0
    for stack, length in work.lengths.items():
        layers = len(distillation.layers[stack])
        if distillation.projection != "none":
            maps = layers * distillation.asks("hidden") + distillation.asks("embeddings")
            student_products += (
                maps * length * work.spec.size_of(stack).width * distillation.teacher.size_of(stack).width
            )
        if distillation.asks("scores"):
            student_products += layers * _score_products(work.spec, stack, length)
            forward += 2 * work.batch * layers * _score_products(distillation.teacher, stack, length)
    if distillation.asks("logits"):
        head = heads(work.spec)[_compared_head(distillation, work.spec)]
        student_products += head.multiply_adds(work.lengths[head.stack])
    return forward + 6 * work.batch * student_products


def teacher_seconds(machine: Machine, work: Workload) -> OperationTime:
    """Return the seconds of a step on the slowest rank."""
    if work.distillation is None:
        return OperationTime()
    taught = _computed_workload(work)
    (local,) = stage_chunks(taught)
    run = not work.distillation.cached
    passes = costs.time_stage(machine, taught, local).forward * (work.microbatches * run)
    more = (teacher_flops(work) - taught.flops // 3 * run) / work.layout.processes
    return passes + OperationTime(products=more / (machine.peak(work.precision) * machine.efficiency.matmul))


def _score_products(spec: ModelSpec, stack: str, length: int) -> int:
    """Return the multiply-adds of a layer's scores and of the projections of queries, keys and values."""
    sub = sublayers(spec.family.stacks[stack].at(0), spec.size_of(stack))[0]
    maps = sum(linear.weights for name, linear in sub.brick.maps.items() if name != "output")
    return length * maps + length * length * spec.size_of(stack).heads * spec.size_of(stack).key_width


def _teacher_workload(work: Workload) -> Workload:
    """Return the workload of the teacher alone, without trained heads."""
    assert work.distillation is not None
    alone = {"trained_heads": (), "num_predicted": None, "distillation": None, "recompute": "none"}
    return replace(work, spec=work.distillation.teacher, **alone)  # type: ignore[arg-type]


def _computed_workload(work: Workload) -> Workload:
    """Return the workload of the computed part of the teacher: stacks, and the head whose logits are compared."""
    teacher, distillation = _teacher_workload(work), work.distillation
    assert distillation is not None
    heads = (_compared_head(distillation, work.spec),) if distillation.asks("logits") else ()
    return replace(teacher, spec=replace(teacher.spec, family=change(teacher.spec.family, heads=heads)))


def _compared_head(distillation: Distillation, student: ModelSpec) -> str:
    head = distillation.head_of(student)
    assert head is not None, "config has refused it"
    return head
