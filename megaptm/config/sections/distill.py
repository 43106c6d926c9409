"""The section `distill`: a teacher, and what is learned of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from megaptm.config.sections.base import Section
from megaptm.objectives.objective import Weight


class DistillConfig(Section):
    """A teacher that a model learns from, beside its objective; weights of 0 are no losses (docs/distillation.md)."""

    teacher: str
    """Folder of the run that the teacher is of; a model of Hugging Face's becomes one by `megaptm import hf`."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Of which checkpoint; absent: the newest when the run begins."""
    model: dict[str, Any] = {}
    """Keys of a section `model`: what the teacher is. Absent: what its run says, where that is there."""
    cached: str | None = None
    """Folder of the teacher's largest logits of all samples of the run (`megaptm cache-logits`): the student reads
    them, and no teacher is run."""
    objective: Weight = 1.0
    """What weights of the objective's own losses are multiplied by."""
    logits: Weight = 0.0
    """Of what the teacher says of each word (`soft`)."""
    answers: Weight = 0.0
    """Of what the teacher says of each question of the objective that has classes of rows (`soft`)."""
    cosine: Weight = 0.0
    """Of the angle between the states that the last stacks give."""
    embeddings: Weight = 0.0
    """Of the square of what the states that stacks read lack to the teacher's."""
    hidden: Weight = 0.0
    """Of the same of what layers give, summed over layers."""
    scores: Weight = 0.0
    """Of the same of attention's scores before the softmax, summed over layers."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """What logits of both, of words and of classes, are divided by before the softmax."""
    soft: Literal["kl", "cross-entropy"] = "kl"
    """kl: divergence times the squared temperature, a mean over places (DistilBERT); cross-entropy: a mean over places
    and words (TinyBERT)."""
    places: Literal["all", "asked"] = "all"
    """Places whose logits are compared: all that are no padding, or those that the objective asks about."""
    layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)] = ()
    """Of each layer of a stack, the teacher's (0 is the first) whose states and scores it is compared with; absent: the
    last of each of as many equal groups."""
    layer_weights: Annotated[tuple[Weight, ...], Strict(False)] = ()
    """Of each layer of a stack, what its losses are multiplied by; absent: 1."""
    projection: Literal["none", "shared", "by-kind"] = "none"
    """Learned maps from the width of the student's states to the teacher's: one for all, or one for embeddings and one
    for hidden states."""
    initial_layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)] = ()
    """The teacher's layers (0 is the first) that those of a stack begin as, with its tables and heads; absent: it
    begins as it does without a teacher."""
