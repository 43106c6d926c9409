"""What a teacher costs its student (docs/distillation.md): its weights, its forward pass, and what is compared."""

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
    """Of the whole teacher on each rank; none of one whose logits are read."""
    if work.distillation is not None and work.distillation.cached:
        return 0
    (local,) = stages(replace(_whole(work), layout=work.layout.model_copy(update={"pipeline": 1, "virtual": 1})))
    counted = parameters(_whole(work), local)
    return counted.trained + counted.frozen


def memory(work: Workload) -> float:
    """Bytes on each rank: weights of the teacher; its states and the student's that are compared, in float32; scores of
    attention that the student's backward pass needs; logits of both, as many rows at once as are projected."""
    if (wanted := work.distillation) is None:
        return 0.0
    total, places = float(work.element * parameters_held(work)), 0
    for stack, length in work.lengths.items():
        places, ours, theirs = work.layout.microbatch * length, work.spec.size_of(stack), wanted.teacher.size_of(stack)
        kept = len(wanted.layers[stack]) * wanted.asks("hidden") + wanted.asks("embeddings") + wanted.asks("cosine")
        total += kept * places * theirs.width * (work.element + 4)
        if wanted.asks("scores"):
            pairs = places * length * ours.heads / work.layout.tensor
            # A difference, and two masks of what is hidden; for a moment scores of both.
            total += pairs * (6 * len(wanted.layers[stack]) + 12)
    if wanted.asks("logits"):
        words = work.spec.padded_vocabulary / work.layout.tensor
        total += min(places, ROWS_PROJECTED) * words * 4 * 4 + 4 * words * work.spec.size.table_width
    return total


def flops(work: Workload) -> int:
    """Operations of a step on all devices besides the student's own: the teacher's forward pass, and backward what of
    the student is computed for it: maps, scores, and words at all places."""
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
    """Of a step on the slowest rank."""
    if work.distillation is None:
        return OperationTime()
    taught = _taught(work)
    (local,) = stages(taught)
    run = not work.distillation.cached
    passes = costs.stage(machine, taught, local).forward * (work.microbatches * run)
    more = (flops(work) - taught.flops // 3 * run) / work.layout.processes
    return passes + OperationTime(products=more / (machine.peak(work.precision) * machine.efficiency.matmul))


def _scored(spec: ModelSpec, stack: str, length: int) -> int:
    """Multiply-adds of the scores of a layer, and of what makes queries and keys, with the values beside them."""
    sub = sublayers(spec.family.stacks[stack].at(0), spec.size_of(stack))[0]
    maps = sum(one.weights for name, one in sub.brick.maps.items() if name != "output")
    return length * maps + length * length * spec.size_of(stack).heads * spec.size_of(stack).key_width


def _whole(work: Workload) -> Workload:
    """The teacher alone, of whom nothing is trained."""
    assert work.distillation is not None
    alone = {"trained_heads": (), "num_predicted": None, "distillation": None, "recompute": "none"}
    return replace(work, spec=work.distillation.teacher, **alone)  # type: ignore[arg-type]


def _taught(work: Workload) -> Workload:
    """Of it what is computed: stacks, and the head whose words are compared."""
    whole, wanted = _whole(work), work.distillation
    assert wanted is not None
    asked = (_head(wanted, work.spec),) if wanted.asks("logits") else ()
    return replace(whole, spec=replace(whole.spec, family=change(whole.spec.family, heads=asked)))


def _head(wanted: Distillation, student: ModelSpec) -> str:
    found = wanted.head_of(student)
    assert found is not None, "config has refused it"
    return found
