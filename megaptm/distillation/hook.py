"""Teacher of a run: a full model on the layout's tensor ranks that reads each micro-batch and is not trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from megaptm.batch import MicroBatch
from megaptm.checkpoint.tensors import TensorReader
from megaptm.config import CommunicationConfig, Config, Layout
from megaptm.distillation.losses import add_distillation_losses
from megaptm.distillation.rules import resolve_distillation
from megaptm.distillation.run import needs_teacher_weights, teacher_run
from megaptm.distillation.spec import LOSS, Distillation
from megaptm.errors import UserError
from megaptm.layers.kernel_choice import AUTO
from megaptm.models.loss import Loss
from megaptm.models.model import Model
from megaptm.models.output import ModelOutput
from megaptm.parallel.background import run_on_all_ranks
from megaptm.parallel.compiled import compile_layers, should_compile
from megaptm.parallel.groups import Ranks
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.initial import Initializer
from megaptm.parallel.model import ParallelModel
from megaptm.parallel.stage import build_stages, transformer_config
from megaptm.run.rank import RankEnvironment
from megaptm.train.engines import open_verified_weights


def build_hook(config: Config, rank_env: RankEnvironment) -> DistillationHook:
    """Build the training hook of a config with distillation. All ranks call this and verify the teacher."""
    return DistillationHook(
        resolve_distillation(config),
        open_verified_weights(teacher_run(config), rank_env) if needs_teacher_weights(config) else None,
        global_tokens=config.batch_spec.has_global_tokens,
        attention_kernel=config.train.attention_kernel,
        compiles=should_compile(config.train.compile),
    )


class DistillationHook(EngineHook):
    """Losses of a student with respect to a teacher, or to cached logits of one."""

    teacher: Model | None = None
    """This rank's part of the teacher. None if the batches have its logits."""

    def __init__(
        self,
        distillation: Distillation,
        reader: TensorReader | None,
        *,
        global_tokens: bool = False,
        attention_kernel: str = AUTO,
        compiles: bool = False,
    ) -> None:
        """Create the losses. `reader`: the teacher's checkpoint; None if its logits are cached. The options are those
        of the student."""
        self._distillation, self._reader = distillation, reader
        self._options: dict[str, Any] = {
            "global_tokens": global_tokens,
            "attention_kernel": attention_kernel,
            "compiles": compiles,
        }

    def extend_model(self, model: Model) -> None:
        self._losses = add_distillation_losses(model, self._distillation)

    def attach(self, model: ParallelModel) -> None:
        if self._distillation.cached:
            return
        assert self._reader is not None, "a student needs its teacher's weights"
        self.teacher = build_teacher(
            self._distillation,
            model.layout,
            model.ranks,
            reader=self._reader,
            precision=model.precision,
            **self._options,
        )

    def model_initializer(self) -> Initializer | None:
        if not self._distillation.initial:
            return None
        assert self._reader is not None, "a student cannot start from cached logits"
        return _teacher_initializer(self._distillation, self._reader)

    def loss_weights(self, weights: dict[str, float]) -> dict[str, float]:
        return self._distillation.with_loss_weights(weights)

    def count_labels(self, loss: str, batch: MicroBatch) -> Tensor | None:
        return self._losses.count_positions(loss, batch) if loss.startswith(LOSS) else None

    def extra_losses(self, model: Model, batch: MicroBatch, output: ModelOutput) -> dict[str, Loss]:
        assert output.states is not None
        return self._losses.losses(model, output.states, self.teacher, batch)


@torch.no_grad()
def build_teacher(
    distillation: Distillation,
    layout: Layout,
    ranks: Ranks,
    *,
    precision: str,
    reader: TensorReader,
    global_tokens: bool = False,
    attention_kernel: str = AUTO,
    compiles: bool = False,
) -> Model:
    """Build this rank's part of the teacher, frozen, with the weights of a checkpoint of any layout."""
    spec, layout = distillation.teacher, layout.model_copy(update={"recompute": "none"})
    config = transformer_config(spec, layout, CommunicationConfig(), precision)
    (stage,) = build_stages(
        spec, layout, ranks, config, losses=(), global_tokens=global_tokens, kernel=attention_kernel
    )

    def read() -> None:
        with torch.no_grad():  # grad mode is per thread
            for placement, parameter in stage.placed_parameters():
                weight = reader.read(f"weight/{placement.name}", placement.offset, tuple(parameter.shape))
                parameter.copy_(weight)

    run_on_all_ranks(read)  # a failure to read on one rank is raised on all
    teacher: Model = stage.model
    teacher.keep_layers(distillation.compared_teacher_layers())
    if compiles:
        compile_layers(teacher, lambda line: None)
    return teacher.requires_grad_(False).eval()


def _teacher_initializer(distillation: Distillation, reader: TensorReader) -> Initializer:
    """Return an initializer of the student from the teacher's tables, heads and chosen layers. Tables are cut to their
    first rows.

    Parameters that the teacher does not have keep their default value.
    """
    names = {*reader.names()}

    def initializer(name: str, default: Tensor) -> Tensor:
        stack, _, in_stack = name.partition(".")
        layer, _, leaf = in_stack.partition(".")
        if stack in distillation.layers and layer.isdecimal():
            name = f"{stack}.{distillation.initial[int(layer)]}.{leaf}"
        if f"weight/{name}" not in names:
            return default
        value = reader.read(f"weight/{name}")
        if value.shape[1:] != default.shape[1:] or len(value) < len(default):
            raise UserError(
                f"distill.initial_layers: {name} has the shape {[*value.shape]} in the teacher and "
                f"{[*default.shape]} in the student. Make them equal, or remove distill.initial_layers."
            )
        return value[: len(default)]

    return initializer
