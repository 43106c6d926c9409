"""Composed objectives: several tasks, with shares of samples and weights of losses that may change by step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from megaptm.batch import BatchField, BatchSpec
from megaptm.errors import UserError
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.objectives.objective import BaseObjective, Prompt, Sample, SampleObjective, loss_weights_at
from megaptm.objectives.vocabulary import SpecialTokens

TASK_IDS = "task_ids"
"""Batch field with the task id of each sample."""


@dataclass(frozen=True)
class StepValue:
    """Piecewise constant function of the step."""

    steps: tuple[int, ...]
    """First step of each value of the function; the first of them is 0."""
    values: tuple[float, ...]

    def at(self, step: int) -> float:
        return self.values[bisect_right(self.steps, step) - 1]

    def changes_before(self, step: int) -> tuple[tuple[int, float], ...]:
        """Return the pairs (first step, value) of the function before a step."""
        return tuple(pair for pair in zip(self.steps, self.values, strict=True) if pair[0] < step)


CONSTANT_ONE = StepValue((0,), (1.0,))


@dataclass(frozen=True)
class Task:
    """Task of a composed objective, and its share of the samples."""

    label: str
    objective: SampleObjective
    share: StepValue = CONSTANT_ONE
    task_id: int | None = None
    """Task id of the task's samples, for models with task embeddings."""
    corpora: tuple[str, ...] = ()
    """Corpora of the mix that the task reads. Empty: all."""

    def with_task_id(self, sample: Sample) -> Sample:
        """Return a sample with its task id."""
        return sample if self.task_id is None else {**sample, TASK_IDS: np.array(self.task_id, dtype=np.int64)}


@dataclass(frozen=True)
class Composed(BaseObjective):
    """Several tasks that each make a share of the samples.

    A sample has the fields of all tasks at their largest size. Fields that its task does not use have no labels.
    """

    tasks: tuple[Task, ...]
    weights_by_step: Mapping[str, StepValue]
    """Weight of each loss as a function of the step, except for losses whose weight a custom task computes."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return "+".join(task.label for task in self.tasks)

    @property
    def losses(self) -> Mapping[str, float]:  # type: ignore[override]
        own = {loss: weight for task in self.tasks for loss, weight in task.objective.losses.items()}
        return own | {loss: weight.at(0) for loss, weight in self.weights_by_step.items()}

    @property
    def template(self) -> tuple[str, str]:  # type: ignore[override]
        return max(self.tasks, key=lambda task: task.objective.num_segments).objective.template

    @property
    def prompts(self) -> tuple[Prompt, ...]:  # type: ignore[override]
        return (*dict.fromkeys(prompt for task in self.tasks for prompt in task.objective.prompts),)

    @property
    def blobs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*dict.fromkeys(name for task in self.tasks for name in task.objective.blobs),)

    @property
    def needs_own_batches(self) -> bool:  # type: ignore[override]
        return any(task.objective.needs_own_batches for task in self.tasks)

    @property
    def predicts_every_token(self) -> bool:  # type: ignore[override]
        return all(task.objective.predicts_every_token for task in self.tasks)

    def task_for_prompt(self, kind: Prompt) -> SampleObjective:
        return self._task_for_prompt(kind).objective

    def text_fields(self, length: int) -> Sample:
        task = self._task_for_prompt("masks")
        return task.with_task_id(task.objective.text_fields(length))

    def _task_for_prompt(self, kind: Prompt) -> Task:
        return next((task for task in self.tasks if kind in task.objective.prompts), self.tasks[0])

    def for_validation(self) -> Self:
        tasks = tuple(replace(task, objective=task.objective.for_validation()) for task in self.tasks)
        return self if tasks == self.tasks else replace(self, tasks=tasks)

    def weights(self, step: int) -> Mapping[str, float]:
        own = {loss: weight for task in self.tasks for loss, weight in loss_weights_at(task.objective, step).items()}
        return own | {loss: weight.at(step) for loss, weight in self.weights_by_step.items()}

    @property
    def num_segments(self) -> int:  # type: ignore[override]
        return max(task.objective.num_segments for task in self.tasks)

    @property
    def resets_positions(self) -> bool:  # type: ignore[override]
        return any(task.objective.resets_positions for task in self.tasks)

    @property
    def is_supervised(self) -> bool:
        return any(task.objective.is_supervised for task in self.tasks)

    def raw_length(self, sequence: int) -> int:
        return min(task.objective.raw_length(sequence) for task in self.tasks)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        specs = {task.label: task.objective.batch_spec(sequence, document_mask) for task in self.tasks}
        (label, first), *other_specs = specs.items()
        streams, all_fields = dict(first.streams), dict(first.fields)
        for other, spec in other_specs:
            both_predict = "labels" in spec.fields and "labels" in all_fields
            one_masks = (spec.num_predicted is None) == ("masked_positions" in all_fields)
            if {*spec.streams} != {*streams} or (both_predict and one_masks):
                raise UserError(
                    f"objective: {label} and {other} cannot share a batch: they have different streams, or only one of "
                    "them predicts all positions."
                )
            streams = {prefix: max(length, spec.streams[prefix]) for prefix, length in streams.items()}
            for name, field in spec.fields.items():
                all_fields[name] = max(field, all_fields.get(name, field), key=lambda field: field.shape)
        if any(task.task_id is not None for task in self.tasks):
            all_fields[TASK_IDS] = BatchField((), is_input=True)
        return BatchSpec(streams, all_fields)

    def check(self, special: SpecialTokens, sequence: int) -> None:
        tasks = [task.objective for task in self.tasks]
        modes = max((task.mode for task in tasks if isinstance(task, EncoderDecoder)), default=0)
        for task in tasks:
            task.check(special, sequence)
            if isinstance(task, EncoderDecoder):  # spans of one task must not use sentinels of another one's mode
                task.check_sentinels(special, sequence, modes)


def objective_tasks(objective: BaseObjective) -> tuple[Task, ...]:
    """Return the tasks of an objective. A single task has no label; an objective that reads no text has none."""
    if isinstance(objective, Composed):
        return objective.tasks
    return (Task("", objective),) if isinstance(objective, SampleObjective) else ()


def values_by_step(objective: BaseObjective) -> dict[tuple[str, str], StepValue]:
    """Return the shares and weights of an objective by step: ("share", task) and ("weight", loss) -> configured
    values."""
    if not isinstance(objective, Composed):
        return {("weight", loss): StepValue((0,), (weight,)) for loss, weight in objective.losses.items()}
    shares = {("share", task.label): task.share for task in objective.tasks}
    return shares | {("weight", loss): weight for loss, weight in objective.weights_by_step.items()}
