"""Costs of a teacher (docs/distillation.md): weights, forward pass, and compared tensors. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from megaptm.distillation.spec import SOFT_LOGIT_BYTES, Distillation
from megaptm.layers.layer_costs import sublayers
from megaptm.losses.token_costs import num_rows_projected
from megaptm.models.head_costs import head_costs
from megaptm.plan import costs
from megaptm.plan.costs import OperationTime
from megaptm.plan.count import count_parameters
from megaptm.plan.extra_costs import ExtraCosts
from megaptm.plan.machine import Machine
from megaptm.plan.stages import count_rank_parameters, stage_chunks
from megaptm.plan.workload import Workload
from megaptm.spec import ModelSpec, change


@dataclass(frozen=True)
class TeacherCosts(ExtraCosts):
    """Costs of a teacher that reads each micro-batch, and of the losses with respect to it."""

    distillation: Distillation
    name = "teacher"

    def count_parameters(self, work: Workload) -> int:
        """Return the parameters of the full teacher on each rank; 0 if its logits are read from files."""
        if self.distillation.cached:
            return 0
        teacher = self._teacher_workload(work)
        (local,) = stage_chunks(replace(teacher, layout=work.layout.model_copy(update={"pipeline": 1, "virtual": 1})))
        counted = count_rank_parameters(teacher, local)
        return counted.trained + counted.frozen

    def bytes(self, work: Workload) -> float:
        """Return the bytes that the teacher takes on each rank.

        - Teacher weights.
        - Compared hidden states of teacher and student, in float32.
        - Attention scores for the student's backward pass.
        - Logits of both, for the positions that are projected at once.
        """
        distillation = self.distillation
        total, positions = float(work.element_bytes * self.count_parameters(work)), 0
        for stack, length in work.lengths.items():
            positions, student_size, teacher_size = (
                work.layout.microbatch * length,
                work.spec.size_of(stack),
                distillation.teacher.size_of(stack),
            )
            num_states = (
                len(distillation.layers[stack]) * distillation.has_weight("hidden")
                + distillation.has_weight("embeddings")
                + distillation.has_weight("cosine")
            )
            total += num_states * positions * teacher_size.width * (work.element_bytes + 4)
            if distillation.has_weight("scores"):
                pairs = positions * length * student_size.heads / work.layout.tensor
                # One difference and two masks; temporarily the scores of both.
                total += pairs * (6 * len(distillation.layers[stack]) + 12)
        if distillation.has_weight("logits"):
            words = work.spec.padded_vocabulary / work.layout.tensor
            rows = num_rows_projected(positions, words, SOFT_LOGIT_BYTES)
            total += rows * words * SOFT_LOGIT_BYTES + 4 * words * work.spec.size.table_width
        return total

    def flops(self, work: Workload) -> int:
        """Return the FLOPs of a step that distillation adds on all devices: the teacher's forward pass, and the
        student's extra projections, scores and logits at all positions, forward and backward."""
        distillation = self.distillation
        forward, student_products = 0 if distillation.cached else self._computed_workload(work).flops // 3, 0
        for stack, length in work.lengths.items():
            layers = len(distillation.layers[stack])
            if distillation.projection != "none":
                projections = layers * distillation.has_weight("hidden") + distillation.has_weight("embeddings")
                student_products += (
                    projections * length * work.spec.size_of(stack).width * distillation.teacher.size_of(stack).width
                )
            if distillation.has_weight("scores"):
                student_products += layers * _score_products(work.spec, stack, length)
                forward += 2 * work.batch * layers * _score_products(distillation.teacher, stack, length)
        if distillation.has_weight("logits"):
            head = head_costs(work.spec)[self._compared_head(work.spec)]
            student_products += head.multiply_adds(work.lengths[head.stack])
        return forward + 6 * work.batch * student_products

    def seconds(self, machine: Machine, work: Workload) -> OperationTime:
        """Return the seconds that the teacher adds to a step on the slowest rank."""
        taught = self._computed_workload(work)
        (local,) = stage_chunks(taught)
        run = not self.distillation.cached
        passes = costs.time_stage(machine, taught, local).forward * (work.microbatches * run)
        more = (self.flops(work) - taught.flops // 3 * run) / work.layout.processes
        return passes + OperationTime(products=more / (machine.peak_flops(work.precision) * machine.efficiency.matmul))

    def summary(self, work: Workload) -> str:
        """Return the teacher's name, parameters and FLOPs for the head of a plan."""
        teacher = self.distillation.teacher
        return (
            f"teacher {teacher.name}: {count_parameters(teacher, with_heads=True):,} parameters, "
            f"{self.flops(work):.3g} more FLOPs a step"
        )

    def _teacher_workload(self, work: Workload) -> Workload:
        """Return the workload of the teacher alone, without trained heads."""
        alone = {"trained_heads": (), "num_predicted": None, "extra_costs": (), "recompute": "none"}
        return replace(work, spec=self.distillation.teacher, **alone)  # type: ignore[arg-type]

    def _computed_workload(self, work: Workload) -> Workload:
        """Return the workload of the computed part of the teacher: stacks, and the head whose logits are compared."""
        teacher = self._teacher_workload(work)
        heads = (self._compared_head(work.spec),) if self.distillation.has_weight("logits") else ()
        return replace(teacher, spec=replace(teacher.spec, family=change(teacher.spec.family, heads=heads)))

    def _compared_head(self, student: ModelSpec) -> str:
        head = self.distillation.head_of(student)
        assert head is not None, "config has refused it"
        return head


def _score_products(spec: ModelSpec, stack: str, length: int) -> int:
    """Return the multiply-adds of a teacher layer's attention scores and of the projections of queries, keys and
    values."""
    sub = sublayers(spec.family.stacks[stack].at(0), spec.size_of(stack))[0]
    weights = sum(linear.weights for name, linear in sub.costs.linears.items() if name != "output")
    return length * weights + length * length * spec.size_of(stack).heads * spec.size_of(stack).key_width
