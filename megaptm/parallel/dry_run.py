"""Dry run: any rank of any layout, built and run without memory. Shapes and counts are real, values are not.

The process groups are torch's fake ones of full size, whose collectives return at once. Weights and activations are
fake tensors (or `meta` tensors), which only have a shape. Rank 511 of 1,024 of a 175B model takes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from megaptm.batch import BatchSpec
from megaptm.config import CommunicationConfig, Layout
from megaptm.layers.split import Dropout
from megaptm.models.model import Model, stream_lengths
from megaptm.parallel.context import TARGETS, ContextHook, context_ranks, divide_sequences
from megaptm.parallel.groups import Ranks, close_groups, open_groups
from megaptm.parallel.recurrence_cache import RecurrenceCache
from megaptm.parallel.split import mark_parameters, split_model
from megaptm.parallel.stage import Stage, rank_chunks, transformer_config
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class DryRank:
    """Parameters and FLOPs of one rank of a layout, from a dry run."""

    rank: int
    stage: int
    data: int
    tensor: int
    parameters: int
    """Number of elements of all weights of a rank, including vocabulary padding."""
    flops: int
    """FLOPs of matrix products in one micro-batch, forward and backward, as torch counts them, without
    recomputation."""


def dry_run(
    spec: ModelSpec,
    layout: Layout,
    *,
    precision: str,
    batch: BatchSpec,
    ranks: Iterable[int],
) -> Iterator[DryRank]:
    """Build the given ranks of a layout without memory, and run micro-batches with the fields of `batch` on them."""
    for rank in ranks:
        with _fake_process_group(layout, rank) as own:
            yield _dry_rank(spec, layout, precision, batch, rank, own)


@contextmanager
def _fake_process_group(layout: Layout, rank: int) -> Iterator[Ranks]:
    """Open a fake process group of the layout's size in which this process is `rank` and no other process exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=layout.processes, store=FakeStore())  # type: ignore[no-untyped-call]
    try:
        yield open_groups(layout)
    finally:
        close_groups()
        dist.destroy_process_group()


def _dry_rank(spec: ModelSpec, layout: Layout, precision: str, batch: BatchSpec, rank: int, ranks: Ranks) -> DryRank:
    samples = _make_samples(spec, layout, batch, ranks)
    with _without_memory(layout):
        stages = _build_chunks(spec, layout, precision, ranks)
        fields = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in samples.items()}
        # torch counts fused attention kernels differently on each device; unfused products are the same on all.
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            for stage in stages:
                _forward_and_backward(stage, fields, layout)
    return DryRank(
        rank=rank,
        stage=ranks.pipeline,
        data=ranks.data,
        tensor=ranks.tensor,
        parameters=sum(parameter.numel() for stage in stages for parameter in stage.parameters()),
        flops=counter.get_total_flops(),
    )


def _make_samples(spec: ModelSpec, layout: Layout, batch: BatchSpec, ranks: Ranks) -> dict[str, Tensor]:
    """Return a micro-batch of zeros; of context ranks, their part of one whose target positions are evenly spread."""
    samples = {
        name: torch.zeros(layout.microbatch, *field.shape, dtype=getattr(torch, field.dtype))
        for name, field in batch.fields.items()
    }
    if ranks.context_size == 1:
        return samples
    if (number := batch.num_predicted) is not None:
        spread = torch.arange(number) * samples["tokens"].shape[1] // number
        samples[TARGETS] = spread.expand(layout.microbatch, -1)
    return ContextHook(spec, context_ranks(ranks)).prepare_batch(samples)


def _without_memory(layout: Layout) -> AbstractContextManager[object]:
    # Fake tensors claim to be on a CPU, where the loss of one tensor rank reads the number of labels, which needs
    # values. Meta tensors have no device, which megatron-core's split embedding and gathers do not support.
    return torch.device("meta") if layout.tensor == layout.context == 1 else FakeTensorMode(allow_non_fake_inputs=True)


def _build_chunks(spec: ModelSpec, layout: Layout, precision: str, ranks: Ranks) -> list[Stage]:
    """Build the pipeline chunks of a rank as `parallel.stage.build_stages` does, without values."""
    config = transformer_config(spec, layout, CommunicationConfig(), precision)
    made = []
    standard = torch.get_default_dtype()
    torch.set_default_dtype(config.params_dtype)
    try:
        for index, chunk in enumerate(rank_chunks(spec, layout, ranks)):
            model = Model(spec, chunk)
            placements = split_model(model, config, ranks=ranks.tensor_size, rank=ranks.tensor)
            divide_sequences(model, ranks)
            mark_parameters(model, config, placements)
            made.append(Stage(_without_randomness(model), config, placements, index))
    finally:
        torch.set_default_dtype(standard)
    return made


def _without_randomness(model: Model) -> Model:
    for module in model.modules():
        if isinstance(module, Dropout):
            module.rng = nullcontext
    return model.eval()


def _forward_and_backward(stage: Stage, batch: dict[str, Tensor], layout: Layout) -> None:
    stream = None
    if not stage.model.chunk.first:
        length = sum(stream_lengths(batch, stage.model.spec.family).values())
        length //= layout.tensor if layout.sequence_parallel else 1
        stream = torch.zeros(length, layout.microbatch, stage.model.spec.width, dtype=stage.config.params_dtype)
        stream.requires_grad_()
    arguments: dict[str, Any] = {}
    if stage.model.spec.has_recurrence_cache:
        cache = RecurrenceCache(stage.model)
        cache.begin(layout.microbatch)
        arguments = {"caches": cache.next_samples(layout.microbatch)}
    output = stage.model(batch, stream, **arguments)
    total = output.stream if output.stream is not None else torch.stack([loss for loss, _ in output.losses.values()])
    total.sum().backward()
