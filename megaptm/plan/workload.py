"""Workload of a training step for the planner: model, sequence lengths, layout, and software."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from megaptm.config import Config, Layout, OptimizerConfig, resolve_spec
from megaptm.config.objective_fit import sequence_lengths
from megaptm.config.sections.extensions import used_sections
from megaptm.errors import UserError
from megaptm.layers.kernel_choice import FUSED, ComputeDevice, attention_works, choose_kernel
from megaptm.models.contrast_costs import ContrastHeadCosts
from megaptm.models.head_costs import HeadCosts, head_costs
from megaptm.models.model_costs import PartCosts, count_part_costs
from megaptm.plan.count import step_flops
from megaptm.plan.extra_costs import ExtraCosts
from megaptm.plan.software import MEGAPTM, Software
from megaptm.spec import LayerlessSpec, ModelSpec

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of a weight or activation by precision."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Workload of a training step: inputs of the formulas of memory and time."""

    spec: ModelSpec
    lengths: Mapping[str, int]
    """Sequence length of each stack in the workload."""
    layout: Layout
    batch: int
    """Number of samples of a step, over all data ranks."""
    precision: str = "bf16"
    recompute: Literal["none", "selective", "attention", "full"] = "none"
    """Recomputation in the backward pass: none, attention between queries and values (Megatron's selective
    recomputation; not in megaptm), attention with its projections, or full layers."""
    has_mask: bool = False
    """Whether attention takes a mask of all query-key pairs (documents, padding, an order), beyond a causal one."""
    num_predicted: int | None = None
    """Number of predicted positions per sequence; None: all."""
    appended: int = 0
    """Number of positions per sequence after those of its text: `InputSpec.is_appended`."""
    trained_heads: tuple[str, ...] | None = None
    """Heads that have a loss and therefore gradients; None: all."""
    software: Software = MEGAPTM
    optimizer: OptimizerConfig | None = None
    """Optimizer of the run. None: one with two state elements per weight."""
    measures_norms: bool = False
    """Whether some steps keep a copy of the float32 weights during the update (`train.norms_every`)."""
    measures_logits: bool = False
    """Whether some steps compute the attention logits of each layer (`train.attention_logits_every`)."""
    extra_costs: tuple[ExtraCosts, ...] = ()
    """Costs of extensions of the run."""

    @property
    def offloads_moments(self) -> bool:
        """Whether the moments of the optimizer are in host memory between updates."""
        return self.optimizer is not None and self.optimizer.offload

    def by_recompute(self, layers: range) -> dict[str, Sequence[int]]:
        """Group consecutive layers of a stack by kind of recomputation."""
        if self.recompute == "none":
            return {"none": layers}
        again = self.layout.recomputed(layers)
        return {"none": tuple(layer for layer in layers if layer not in again), self.recompute: again}

    @property
    def element_bytes(self) -> int:
        """Return the bytes of a weight or an activation in the workload's precision."""
        return BYTES[self.precision]

    @property
    def microbatches(self) -> int:
        """Return the number of micro-batches of one process in a step."""
        return self.batch // (self.layout.data * self.layout.microbatch)

    @cached_property
    def own_lengths(self) -> Mapping[str, int]:
        """Return the number of positions of a sequence that each context rank has: stack -> positions."""
        return {name: length // self.layout.context for name, length in self.lengths.items()}

    @property
    def own_predicted(self) -> int | None:
        """Return the number of predicted positions of a sequence on each context rank; None: all of its positions."""
        return None if self.num_predicted is None else -(-self.num_predicted // self.layout.context)

    @property
    def tokens_per_sample(self) -> int:
        """Return the number of tokens of a sample, over all stacks."""
        return sum(self.lengths.values())

    @property
    def stage_positions(self) -> int:
        """Return the number of positions per sample that are sent between pipeline stages, with all residual streams of
        each stack."""
        return sum(self.spec.family.stacks[name].residual.streams * length for name, length in self.lengths.items())

    @property
    def tokens(self) -> int:
        """Return the number of trained tokens of a step, in all stacks."""
        return self.batch * self.tokens_per_sample

    @property
    def sequence_parts(self) -> int:
        """Return the number of ranks that divide the sequence of the residual stream."""
        return self.layout.tensor if self.layout.sequence_parallel else 1

    @property
    def needs_features_pass(self) -> bool:
        """Whether contrastive losses of the workload need one more forward pass of all samples (`parallel.contrast`):
        if a data rank has several micro-batches."""
        return bool(self.contrastive_heads) and self.microbatches > 1

    @cached_property
    def heads(self) -> dict[str, HeadCosts]:
        """Return the heads of the workload's family, by name."""
        return head_costs(self.spec)

    @cached_property
    def contrastive_heads(self) -> list[ContrastHeadCosts]:
        """Return the heads with contrastive losses, for which each data rank compares its samples with all others."""
        trained = self.spec.family.heads if self.trained_heads is None else self.trained_heads
        return [head for name, head in self.heads.items() if isinstance(head, ContrastHeadCosts) and name in trained]

    @property
    def samples_per_rank(self) -> int:
        """Return the number of samples of a data rank."""
        return self.batch // self.layout.data

    def part_costs(self) -> PartCosts:
        """Return the costs by which the model's layers are divided into pipeline stages."""
        return count_part_costs(
            self.spec,
            self.lengths,
            num_predicted=self.num_predicted,
            appended=self.appended,
            heads=self.spec.family.heads if self.trained_heads is None else self.trained_heads,
            recompute=self.layout.recompute,
            recompute_every=self.layout.recompute_every,
        )

    @property
    def flops(self) -> int:
        """Return the model FLOPs of a step on all devices, without recomputation and extra costs."""
        return step_flops(
            self.spec, rows=self.batch, lengths=self.lengths, num_predicted=self.num_predicted, appended=self.appended
        )


def _needs_mask(config: Config, spec: ModelSpec) -> bool:
    """Whether the kernel of any attention reads a mask of all query-key pairs on a GPU, because of documents or an
    order."""
    batch, configured, gpu = config.batch_spec, config.train.attention_kernel, ComputeDevice("cuda")
    return any(
        FUSED in (configured, choose_kernel(work, gpu).kernel)
        for work in attention_works(spec, batch, config.train.precision, context=config.layout.context)
        if work.documents or work.ordered
    )


def make_workload(config: Config) -> Workload:
    """Return the workload of a training config, as megaptm runs it."""
    spec = resolve_spec(config)
    if isinstance(spec, LayerlessSpec):
        raise UserError(
            f"{config.model.family} has no layers to plan for: it has {spec.parameters:,} parameters in {spec.bytes:,} "
            f"bytes, {'on each data rank' if spec.is_replicated else 'divided among data ranks'}; measure its "
            "speed with a few steps of `megaptm train`."
        )
    objective = config.built_objective
    batch = config.batch_spec
    return Workload(
        spec=spec,
        lengths=sequence_lengths(batch, spec.family),
        layout=config.layout,
        batch=config.train.batch,
        precision=config.train.precision,
        recompute=config.layout.recompute,
        has_mask=_needs_mask(config, spec),
        num_predicted=batch.num_predicted,
        appended=batch.num_appended,
        trained_heads=tuple(objective.losses),
        optimizer=config.optimizer,
        measures_norms=config.train.norms_every is not None,
        measures_logits=config.train.attention_logits_every is not None,
        extra_costs=tuple(
            costs for section in used_sections(config) if (costs := section.extra_costs(config)) is not None
        ),
        software=replace(
            MEGAPTM,
            compiled=config.train.compile is not False,
            gradient_overlap=config.communication.overlap_grad_reduce,
            boundary_overlap=config.communication.overlap_p2p_comm,
        ),
    )
