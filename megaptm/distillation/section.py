"""Section `distill`: the teacher and the distillation losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, Strict

from megaptm.objectives.objective import Weight
from megaptm.section import ExtensionSection

if TYPE_CHECKING:
    from megaptm.distillation.costs import TeacherCosts
    from megaptm.distillation.hook import DistillationHook
    from megaptm.distillation.run import DistillationRun
    from megaptm.run.rank import RankEnvironment


class DistillConfig(ExtensionSection):
    """Teacher from which a model learns in addition to its objective; a weight of 0 disables a loss
    (docs/distillation.md)."""

    key = "distill"
    meaning = "Teacher and distillation losses (docs/distillation.md)."
    replaced = ("model",)
    moved = ("teacher", "cached_logits")

    teacher: str
    """Folder of the teacher's run; `megaptm import hf` makes one from a Hugging Face model."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Step of the teacher's checkpoint. Default: the newest when the run starts."""
    model: dict[str, Any] = {}  # noqa: RUF012
    """Keys of a section `model` that describe the teacher. Default: from its run, if it exists."""
    cached_logits: str | None = None
    """Folder of the teacher's largest logits for all samples of the run (`megaptm cache-logits`), used instead of
    running the teacher."""
    objective: Weight = 1.0
    """Factor on the objective's own losses."""
    logits: Weight = 0.0
    """Weight of the loss between word logits of student and teacher (`logit_loss`)."""
    classes: Weight = 0.0
    """Weight of the loss between logits of the objective's questions with sequence classes (`logit_loss`)."""
    cosine: Weight = 0.0
    """Weight of the cosine distance between the final hidden states."""
    embeddings: Weight = 0.0
    """Weight of the MSE between student and teacher embeddings."""
    hidden: Weight = 0.0
    """Weight of the MSE between hidden states, summed over layers."""
    scores: Weight = 0.0
    """Weight of the MSE between attention scores before the softmax, summed over layers."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Temperature by which all logits of student and teacher are divided before the softmax."""
    logit_loss: Literal["kl", "cross-entropy"] = "kl"
    """kl: divergence times the squared temperature, averaged over positions (DistilBERT); cross-entropy: averaged over
    positions and words (TinyBERT)."""
    positions: Literal["all", "target"] = "all"
    """Positions whose logits are compared: all except padding, or target positions of the objective."""
    layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)] = ()
    """Teacher layer (0 is the first) for each student layer of a stack, for hidden and scores. Default: with n student
    layers, the last of each of n equal groups of teacher layers."""
    layer_weights: Annotated[tuple[Weight, ...], Strict(False)] = ()
    """Weight of each student layer of a stack in its losses. Default: 1."""
    projection: Literal["none", "shared", "by-kind"] = "none"
    """Learned projections from the student's width to the teacher's: one for all, or one each for embeddings and hidden
    states."""
    initial_layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)] = ()
    """Teacher layers (0 is the first) that initialize the student's layers of a stack, along with tables and heads.
    Default: the usual initialization."""

    def with_filled_values(self, config: Any) -> Any:
        from megaptm.distillation.rules import with_teacher

        return with_teacher(config, self)

    def errors(self, config: Any) -> Iterator[str]:
        from megaptm.distillation.rules import distill_errors

        return distill_errors(config, self)

    def with_resolved_sizes(self, config: Any) -> Any:
        from megaptm.distillation.rules import with_resolved_teacher

        return with_resolved_teacher(config)

    def run_hook(self) -> DistillationRun:
        from megaptm.distillation.run import DistillationRun

        return DistillationRun()

    def extra_costs(self, config: Any) -> TeacherCosts:
        from megaptm.distillation.costs import TeacherCosts
        from megaptm.distillation.rules import resolve_distillation

        return TeacherCosts(resolve_distillation(config))

    def build_hook(self, config: Any, rank_env: RankEnvironment) -> DistillationHook:
        from megaptm.distillation.hook import build_hook

        return build_hook(config, rank_env)


SECTION = DistillConfig


def distill_section(config: Any) -> DistillConfig | None:
    """Return the section of a config, if it has one."""
    section: DistillConfig | None = config.distill
    return section
