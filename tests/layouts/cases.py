"""Tiny models, fixed batches, and the training steps that every layout must agree on. Imported by worker processes."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.common.batches import (
    TokenSampler,
    family_size_options,
    make_input_fields,
    make_label_fields,
    sample_classes,
    small_patterns,
)
from megaptm.batch import IGNORED
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.config import CommunicationConfig, Layout, LossScaleConfig, OptimizerConfig
from megaptm.families import CATALOGUE
from megaptm.models.head_costs import HeadCosts
from megaptm.spec import Family, ModelSpec, Size, change
from tests.engines import filled_engine
from tests.models.grammar import VARIANTS, variant
from tests.models.own import own_case
from tests.models.tiny import scaffold_sizes, tiny_size_options

VOCABULARY = 150  # pads to 256: a tensor rank can hold nothing but padding
ROWS = 8
LENGTH = 16


ADAM = OptimizerConfig(lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, clip=1.0)

WEIGHTS = {"sentence-order": 0.5, "pairs": 0.7, "exit": 0.3}
"""Loss weights other than 1."""

KINDS = ("gpt2", "bert", "t5")
"""A family of each kind of model, for tests that do not depend on the family."""


def tiny(family: str, *, dropout: float = 0.0, layers: int = 4) -> ModelSpec:
    if (own := own_case(family)) is not None:
        return own.spec(dropout=dropout, layers=layers)
    if family in VARIANTS:
        return variant(tiny(VARIANTS[family].base, dropout=dropout, layers=layers), family)
    table = small_patterns(CATALOGUE[family], window=(4, 2), block=1, chunk=4, hashed_chunk=4)
    # Four layers in all, so that every schedule has something to cut.
    narrow = Size(layers=layers // len(table.stacks), width=16, heads=2, ffn=32)
    stacks = scaffold_sizes(table, narrow)
    numbers = tiny_size_options(table) | family_size_options(table, embedding=16, band=5, memory=24)
    size = Size(layers=layers // len(table.stacks), width=32, heads=4, ffn=64, stacks=stacks, **numbers)
    # With initial weights of 0.02 a recurrence cache or hashes would affect only the fifth digit of the loss.
    if size.cached_positions or "lsh" in table.last_block.kinds:
        table = change(table, init={"rule": "fan-in"})
    if table.last_block.norm.position == "sandwich":
        # Norms of small outputs amplify rounding errors.
        table = change(table, init={"std": 0.1})
    return ModelSpec(family=table, size=size, vocabulary=VOCABULARY, context=LENGTH, dropout=dropout)


def losses_of(family: str) -> dict[str, float]:
    """Return head -> loss weight."""
    return {name: WEIGHTS.get(name, 1.0) for name in table_of(family).heads}


def table_of(family: str) -> Family:
    if (own := own_case(family)) is not None:
        return own.spec().family
    return VARIANTS[family].family if family in VARIANTS else CATALOGUE[family]


def batch(family: str, step: int) -> dict[str, Tensor]:
    """Return the global batch of a step: packed sequences with documents and padding, equal in every layout. The number
    of labels differs between samples, so that a mean of means would be wrong."""
    if (own := own_case(family)) is not None and own.batch is not None:
        return own.batch(ROWS, step)
    table, generator = table_of(family), torch.Generator().manual_seed(100 + step)
    draw = TokenSampler(generator, VOCABULARY)

    def draw_positions() -> tuple[Tensor, Tensor]:
        target_positions = torch.stack([torch.randperm(LENGTH - 3, generator=generator)[:3] for _ in range(ROWS)])
        has_label = torch.ones_like(target_positions, dtype=torch.bool)
        if table.has_queries:  # tensor ranks divide a sequence with its queries
            target_positions, has_label = (
                torch.cat([tensor, torch.zeros_like(tensor[:, :1])], 1) for tensor in (target_positions, has_label)
            )
        has_label[1::4, 2] = False
        return target_positions, has_label

    def draw_labels(head: type[HeadCosts]) -> Tensor:
        if head.contrasts:
            matched = torch.full((ROWS,), LENGTH // 2)  # start of the second document, for heads that need it
            matched[1::3] = IGNORED
            return matched
        classes = draw.classes(head.classes, ROWS)
        if head.name != "next-sentence":  # every pair has a label
            classes[1::4] = IGNORED
        return classes

    documents = {}
    # The decoder's sequences are half as long as the encoder's.
    lengths, padding = (LENGTH, LENGTH // 2), (3, 1)
    for index, (prefix, length) in enumerate(zip(dict.fromkeys(table.prefixes.values()), lengths, strict=False)):
        numbers = torch.ones(ROWS, length, dtype=torch.int64)
        numbers[:, length // 2 :] = 2
        numbers[index::3, -padding[index] :] = 0
        documents[prefix] = numbers
    fields = make_input_fields(table, documents, draw)
    if len(documents) == 1:
        fields["positions"] = torch.arange(LENGTH).expand(ROWS, -1).clone()
    if table.segments:
        fields["segments"] = (fields["document_ids"] == 2).long() % table.segments
    for name, tasks in sample_classes(table).items():
        fields[name] = torch.arange(ROWS) % tasks
    fields |= make_label_fields(table, fields, draw, positions=draw_positions, row_labels=draw_labels)
    if any(size.memory for size in table.sizes.values()):
        # The recurrence cache spans documents. Some sequences start anew, others continue.
        del fields["document_ids"]
        fields["reset_state"] = torch.zeros(ROWS, dtype=torch.int64)
        fields["reset_state"][step % ROWS :: 3] = 1
    return fields


def micro_batches(fields: dict[str, Tensor], layout: Layout, data_rank: int) -> list[dict[str, Tensor]]:
    share = len(fields["tokens"]) // layout.data
    local = {name: field[data_rank * share : (data_rank + 1) * share] for name, field in fields.items()}
    return [
        {name: field[start : start + layout.microbatch] for name, field in local.items()}
        for start in range(0, share, layout.microbatch)
    ]


def train_steps(
    family: str,
    layout: Layout,
    steps: int = 2,
    precision: str = "fp32",
    communication: CommunicationConfig | None = None,
    rows: tuple[int, ...] = (ROWS,),
    layers: int = 4,
    optimizer: OptimizerConfig = ADAM,
    loss_scale: float = 65536.0,
) -> dict[str, Any]:
    """Return losses and gradient norms of `steps` steps, and the losses of an evaluation. `rows`: their batch sizes."""
    engine = filled_engine(
        tiny(family, layers=layers),
        layout,
        optimizer,
        losses=losses_of(family),
        seed=7,
        precision=precision,
        communication=communication,
        loss_scale=LossScaleConfig(initial=loss_scale),
        global_tokens="global_tokens" in batch(family, 0),
    )
    results = []
    for step in range(steps):
        fields = {name: field[: rows[step % len(rows)]] for name, field in batch(family, step).items()}
        batches = micro_batches(fields, layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        results.append(engine.train_step(batches, step=step, lr=optimizer.lr))
    held_out = micro_batches(batch(family, 99), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
    return {
        "losses": [result.loss for result in results],
        "norms": [result.gradient_norm for result in results],
        "evaluation": engine.evaluate(held_out).losses,
    }


def count_read_elements(layout: Layout, folder: str, step: int) -> dict[str, int]:
    """Return the number of elements of each kind (weights, moments) that this rank reads to restore a checkpoint."""
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.checkpoint.tensors import TensorReader
    from megaptm.parallel.build import build_engine

    class Counting(TensorReader):
        def read(self, name: str, offset: Any = None, block: Any = None) -> Tensor:
            tensor = super().read(name, offset, block)
            read[name.partition("/")[0]] += tensor.numel()
            return tensor

    read: Counter[str] = Counter()
    engine = build_engine(tiny("gpt2"), layout, ADAM, losses=losses_of("gpt2"), seed=7)
    checkpoint = CheckpointStore(Path(folder)).load(step)
    engine.restore(Counting(checkpoint.folder, checkpoint.files), step=step)
    return dict(read)


def opened_groups(layout: Layout, minutes: float) -> list[tuple[tuple[int, ...], float | None]]:
    """Return ranks and timeout in minutes of each process group that an engine opens; None: torch's default."""
    groups: list[tuple[tuple[int, ...], float | None]] = []
    really = dist.new_group

    def new_group(ranks: list[int], timeout: timedelta | None = None, **kwargs: Any) -> Any:
        groups.append((tuple(ranks), timeout.total_seconds() / 60 if timeout is not None else None))
        return really(ranks, timeout=timeout, **kwargs)

    with patch.object(dist, "new_group", new_group):
        filled_engine(tiny("t5"), layout, ADAM, losses=losses_of("t5"), seed=7, timeout_minutes=minutes)
    return groups


def evaluate_untrained(family: str, layout: Layout) -> dict[str, float]:
    """Return the losses of an engine before its first step."""
    engine = filled_engine(tiny(family, dropout=0.1), layout, ADAM, losses=losses_of(family), seed=7)
    batches = micro_batches(batch(family, 0), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
    return engine.evaluate(batches).losses


def train_and_save(
    family: str,
    layout: Layout,
    folder: str,
    start: int,
    steps: int,
    precision: str = "fp32",
    dropout: float = 0.0,
    extra_steps: int = 0,
    optimizer: OptimizerConfig = ADAM,
    compiles: bool = False,
) -> dict[str, Any]:
    """Resume from the checkpoint of step `start` in `folder` (0: start anew), train `steps` steps, save.

    With `extra_steps` the checkpoint is written asynchronously, while that many more steps are trained.
    """
    from megaptm.checkpoint.host_staging import HostStaging
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.parallel.background import Background
    from megaptm.parallel.build import build_engine
    from megaptm.parallel.collectives import barrier

    spec, losses = tiny(family, dropout=dropout), losses_of(family)
    engine = build_engine(spec, layout, optimizer, losses=losses, seed=7, precision=precision, compiles=compiles)
    store = CheckpointStore(Path(folder), keep=9, fence=lambda: True)
    if start:
        engine.restore(store.load(start).reader, step=start)
    else:
        engine.init_weights()
    background, trained, results = Background(), threading.Event(), []
    end, rank = start + steps, engine.ranks.world

    def write(pieces: list[TensorPiece]) -> None:
        assert trained.wait(300)
        store.write(end, rank, pieces)

    def commit() -> None:
        if rank == 0:
            with patch("megaptm.checkpoint.store.RANKS_PER_INDEX", 2):  # several indexes
                store.commit(end, {}, ranks=layout.processes)

    def save() -> None:
        if rank == 0:
            store.prepare(end)
        barrier()
        pieces = list(engine.pieces())
        background.begin(partial(write, HostStaging().copy_pieces(pieces) if extra_steps else pieces), commit)

    for step in range(start, end + extra_steps):
        if step == end:
            save()
        batches = micro_batches(batch(family, step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        results.append(engine.train_step(batches, step=step, lr=optimizer.lr))
        background.advance()
    if not extra_steps:
        save()
    assert store.steps()[:1] != [end]
    trained.set()
    background.finish()
    return {"losses": [result.loss for result in results], "norms": [result.gradient_norm for result in results]}
