"""Distillation losses between student and teacher on the same batch."""

# S sequence, B batch, D width, H heads, V vocabulary

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.batch import IGNORED
from megaptm.distillation.soft_targets import LargestLogits, SoftTargetLoss, soft_class_loss
from megaptm.distillation.spec import LOSS, Distillation
from megaptm.layers.split import Linear, UsesTensorRanks
from megaptm.losses.token import Projected
from megaptm.models.head_costs import HEADS
from megaptm.models.heads import LanguageHead, RowClassHead
from megaptm.models.loss import Loss, num_labels
from megaptm.models.model import Model
from megaptm.models.output import States
from megaptm.spec import EMBEDDED, HeadInput, ModelSpec


class StudentAndTeacher(NamedTuple):
    """Batch of a distillation, and the outputs of student and teacher for it."""

    student: Model
    student_states: States
    teacher: Model
    teacher_states: States
    batch: dict[str, Tensor]

    def states(self, stack: str, student_layer: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return the outputs of a student layer and of the teacher layer that it is compared with, gathered over the
        sequence-parallel ranks."""
        return (
            self.student.gather_sequence(self.student_states.inner[HeadInput(stack, student_layer)]),
            self.teacher.gather_sequence(self.teacher_states.inner[HeadInput(stack, layer)]),
        )


class DistillationLosses(UsesTensorRanks, nn.Module):
    """Distillation losses, each summed over positions, and projections to the teacher's width.

    - `logits`: see `SoftTargetLoss`; `classes`: the same for sequence classes.
    - `cosine`: one minus the cosine of the last hidden states (Sanh et al., 2019).
    - `embeddings`, `hidden`: mean squared error of hidden states, summed over layers.
    - `scores`: mean squared error of attention scores over heads and keys, summed over layers (Jiao et al., 2020,
      section 3.1).
    """

    def __init__(self, spec: ModelSpec, distillation: Distillation) -> None:
        super().__init__()
        self.spec, self.distillation = spec, distillation
        self.last = next(reversed(spec.family.stacks))
        hooks = [
            hook
            for hook in ("embeddings", "hidden")
            if distillation.has_weight(hook) and distillation.projection != "none"
        ]
        self.maps = {hook: hook if distillation.projection == "by-kind" else "shared" for hook in hooks}
        """Hidden states that are compared (`HOOKS`) -> projection to the teacher's width."""
        inputs, outputs = spec.size_of(self.last).width, distillation.teacher.size_of(self.last).width
        for name in dict.fromkeys(self.maps.values()):
            self.add_module(name, Linear(inputs, outputs, bias=True))
        if distillation.has_weight("logits"):
            head = distillation.head_of(spec)
            assert head is not None, "config has refused it"
            self.head = head
            self.soft = SoftTargetLoss(
                spec.vocabulary, temperature=distillation.temperature, soft=distillation.logit_loss
            )

    def losses(
        self, student: Model, student_states: States, teacher: Model | None, batch: dict[str, Tensor]
    ) -> dict[str, Loss]:
        """Return the distillation losses by name, as (sum, number of positions). Without a teacher the batch has its
        largest logits, `teacher_ids` and `teacher_logits` [B, S, K]."""
        if teacher is None:
            name = f"{LOSS}logits"
            return {
                name: (self._cached_logits(student, student_states, batch), self.count_positions(name, batch).float())
            }
        with torch.no_grad():
            teacher_states = teacher.states(batch)
        both = StudentAndTeacher(student, student_states, teacher, teacher_states, batch)
        of_hook = {
            "logits": self._logit_losses,
            "classes": self._class_losses,
            "cosine": self._cosine_losses,
            "embeddings": self._embedding_losses,
            "hidden": self._hidden_losses,
            "scores": self._score_losses,
        }
        losses = {f"{LOSS}{hook}": torch.stack([*of_hook[hook](both)]).sum() for hook in self.distillation.weights}
        return {name: (loss, self.count_positions(name, batch).float()) for name, loss in losses.items()}

    def count_positions(self, name: str, batch: dict[str, Tensor]) -> Tensor:
        """Return the number of positions of a distillation loss."""
        hook = name.removeprefix(LOSS)
        if hook == "logits":
            return self._target_positions(batch).sum()
        if hook == "classes":
            return torch.stack(
                [num_labels(batch, HEADS[name].label_field) for name in self.distillation.questions]
            ).sum()
        prefixes = self.spec.family.prefixes
        stacks = [self.last] if hook == "cosine" else [*prefixes]
        return torch.stack([_real_positions(batch, prefixes[stack]).sum() for stack in stacks]).sum()

    def _cached_logits(self, student: Model, student_states: States, batch: dict[str, Tensor]) -> Tensor:
        projected = head_projection(student, self.head, student_states)
        words = len(projected.weight)
        ids, values = (batch[name].transpose(0, 1).flatten(0, 1) for name in ("teacher_ids", "teacher_logits"))
        cached = LargestLogits(ids.long(), values, first=self.soft.ranks.rank * words, words=words)
        return self.soft(projected, cached, self._target_positions(batch).t().flatten())

    def _logit_losses(self, both: StudentAndTeacher) -> Iterator[Tensor]:
        student_logits = head_projection(both.student, self.head, both.student_states)
        with torch.no_grad():
            teacher_logits = head_projection(both.teacher, self.head, both.teacher_states)
        yield self.soft(student_logits, teacher_logits, self._target_positions(both.batch).t().flatten())

    def _class_losses(self, both: StudentAndTeacher) -> Iterator[Tensor]:
        questions = [name for name in self.distillation.questions if HEADS[name].label_field in both.batch]
        if not questions:  # a batch of another task
            yield next(iter(both.student_states.streams.values())).new_zeros(())
        for name in questions:
            student_BC = _class_logits(both.student, name, both.student_states)
            with torch.no_grad():
                teacher_BC = _class_logits(both.teacher, name, both.teacher_states)
            losses_B = soft_class_loss(
                student_BC, teacher_BC, temperature=self.distillation.temperature, soft=self.distillation.logit_loss
            )
            yield torch.where(both.batch[HEADS[name].label_field] != IGNORED, losses_B, 0.0).sum()

    def _cosine_losses(self, both: StudentAndTeacher) -> Iterator[Tensor]:
        student_states, teacher_states = (
            both.student.gather_sequence(both.student_states.streams[self.last]),
            both.teacher.gather_sequence(both.teacher_states.streams[self.last]),
        )
        apart_SB = 1 - F.cosine_similarity(student_states.float(), teacher_states.float(), dim=-1)
        yield self._sum_over_positions(apart_SB, self.last, both.batch)

    def _embedding_losses(self, both: StudentAndTeacher) -> Iterator[Tensor]:
        for stack in self.spec.family.stacks:
            apart_SB = self.squared_error("embeddings", *both.states(stack, EMBEDDED, EMBEDDED))
            yield self._sum_over_positions(apart_SB, stack, both.batch)

    def _hidden_losses(self, both: StudentAndTeacher) -> Iterator[Tensor]:
        for stack, layers in self.distillation.layers.items():
            for student_layer, layer in enumerate(layers):
                apart_SB = self.squared_error(
                    "hidden", *both.states(stack, student_layer, layer)
                ) * self.distillation.weight_of(student_layer)
                yield self._sum_over_positions(apart_SB, stack, both.batch)

    def _score_losses(self, both: StudentAndTeacher) -> Iterator[Tensor]:
        for stack, layers in self.distillation.layers.items():
            heads, batch = self.spec.size_of(stack).heads, both.batch
            for student_layer, layer in enumerate(layers):
                read = (
                    both.student_states.inner[HeadInput(stack, student_layer - 1)],
                    both.teacher_states.inner[HeadInput(stack, layer - 1)],
                )
                student_BHSS = both.student.attention_scores(stack, student_layer, read[0], batch)
                with torch.no_grad():
                    teacher_BHSS = both.teacher.attention_scores(stack, layer, read[1], batch)
                apart_BS = (
                    (student_BHSS - teacher_BHSS).square().mean(-1).sum(1)
                    / heads
                    * self.distillation.weight_of(student_layer)
                )
                yield self.ranks.reduce(self._sum_over_positions(apart_BS.t(), stack, batch))

    def squared_error(self, hook: str, student_SBD: Tensor, teacher_SBD: Tensor) -> Tensor:
        """Return the mean squared error between projected student states and teacher states, [S, B]."""
        if hook in self.maps:
            student_SBD = cast(Linear, self._modules[self.maps[hook]])(student_SBD)
        return (student_SBD.float() - teacher_SBD.float()).square().mean(-1)

    def _sum_over_positions(self, values_SB: Tensor, stack: str, batch: dict[str, Tensor]) -> Tensor:
        """Return the sum of a distillation loss over positions that are not padding."""
        real_SB = _real_positions(batch, self.spec.family.prefixes[stack]).t()
        return torch.where(real_SB, values_SB, 0.0).sum()

    def _target_positions(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the positions whose logits student and teacher compare, [B, S]."""
        prefix = self.spec.family.prefixes[self.spec.head_inputs(self.head)[0].stack]
        return distilled_positions(batch, prefix, self.distillation.positions)


def add_distillation_losses(model: Model, distillation: Distillation) -> DistillationLosses:
    """Add the distillation losses of a student and their projections to its model, as the module `distill`."""
    losses = DistillationLosses(model.spec, distillation)
    model.add_module("distill", losses)
    model.keep_layers(distillation.compared_student_layers(model.spec))
    return losses


def _real_positions(batch: Mapping[str, Tensor], prefix: str) -> Tensor:
    """Return the positions of a stream that are not padding, [B, S]."""
    documents = batch.get(f"{prefix}document_ids")
    return torch.ones_like(batch[f"{prefix}tokens"], dtype=torch.bool) if documents is None else documents != 0


def distilled_positions(batch: Mapping[str, Tensor], prefix: str, positions: str) -> Tensor:
    """Return the positions whose logits student and teacher compare, [B, S]. `positions`: `all` but padding, or
    only the target positions."""
    real_BS = _real_positions(batch, prefix)
    if positions == "all":
        return real_BS
    if "labels" not in batch:  # a batch of another task
        return torch.zeros_like(real_BS)
    labeled = (batch["labels"] != IGNORED).long()
    if "masked_positions" in batch:
        labeled = torch.zeros_like(real_BS, dtype=torch.long).scatter_add_(1, batch["masked_positions"], labeled)
    return labeled > 0


def head_projection(model: Model, head: str, states: States) -> Projected:
    """Return the vocabulary projection of a head, positions in order (S, B)."""
    assert model.head is not None
    return cast(LanguageHead, model.head[head]).vocabulary_projection(_head_input(model, head, states), model.table)


def _class_logits(model: Model, head: str, states: States) -> Tensor:
    """Return the class logits of a head of student or teacher, [B, C]."""
    assert model.head is not None
    return cast(RowClassHead, model.head[head]).logits(_head_input(model, head, states), tied=None)


def _head_input(model: Model, head: str, states: States) -> Tensor:
    """Return the hidden states that a head of student or teacher reads, gathered over the sequence-parallel ranks."""
    reading = model.spec.head_inputs(head)[0]
    return model.gather_sequence(states.inner[reading] if reading in states.inner else states.streams[reading.stack])
