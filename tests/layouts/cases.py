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

from megaptm.checkpoint.tensors import Piece
from megaptm.config import CommunicationConfig, Layout, OptimizerConfig
from megaptm.families import CATALOGUE
from megaptm.spec import ModelSpec, Size
from tests.models.grammar import VARIANTS, variant

VOCABULARY = 150  # pads to 256: a tensor rank can hold nothing but padding
ROWS = 8
LENGTH = 16


ADAM = OptimizerConfig(lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, clip=1.0)

LOSSES = {
    "gpt2": {"lm": 1.0},
    "bert": {"mlm": 1.0, "next-sentence": 1.0},
    "t5": {"lm": 1.0},
}


MORE = {"sentence-order": 0.5, "pairs": 0.7, "exit": 0.3}
"""Of heads that variants add."""

KINDS = ("gpt2", "bert", "t5")
"""A family of each kind: for what depends on the kind of model, and not on the family."""


def base_of(family: str) -> str:
    """The family whose batches and losses a variant takes."""
    return VARIANTS[family].base if family in VARIANTS else family


def tiny(family: str, *, dropout: float = 0.0, layers: int = 4) -> ModelSpec:
    if family in VARIANTS:
        return variant(tiny(base_of(family), dropout=dropout, layers=layers), family)
    # Four layers in all, so that every schedule has something to cut.
    size = Size(layers=layers // 2 if family == "t5" else layers, width=32, heads=4, ffn=64)
    return ModelSpec(family=CATALOGUE[family], size=size, vocabulary=VOCABULARY, context=LENGTH, dropout=dropout)


def losses_of(family: str) -> dict[str, float]:
    """Those of its base, and of heads that a variant adds."""
    more = VARIANTS[family].family.heads if family in VARIANTS else ()
    return LOSSES[base_of(family)] | {name: weight for name, weight in MORE.items() if name in more}


def batch(family: str, step: int) -> dict[str, Tensor]:
    """The global batch of a step: packed rows with documents and padding, the same whoever asks."""
    losses, family, g = losses_of(family), base_of(family), torch.Generator().manual_seed(100 + step)

    def ids(rows: int, length: int) -> Tensor:
        return torch.randint(0, VOCABULARY, (rows, length), generator=g)

    documents = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    documents[:, LENGTH // 2 :] = 2
    documents[::3, -3:] = 0
    positions = torch.arange(LENGTH).expand(ROWS, -1).clone()
    fields = {"tokens": ids(ROWS, LENGTH), "document_ids": documents, "positions": positions}
    if family == "gpt2":
        fields["labels"] = ids(ROWS, LENGTH).masked_fill(documents == 0, -100)
    if family == "bert":
        asked = torch.stack([torch.randperm(LENGTH - 3, generator=g)[:3] for _ in range(ROWS)])
        labels = ids(ROWS, 3)
        labels[1::4, 2] = -100  # uneven counts, so that a mean of means would be wrong
        fields |= {
            "segments": (documents == 2).long(),
            "masked_positions": asked,
            "labels": labels,
            "next_sentence": torch.randint(0, 2, (ROWS,), generator=g),
        }
    if family == "t5":
        half = LENGTH // 2
        decoder = torch.ones(ROWS, half, dtype=torch.int64)
        decoder[:, half // 2 :] = 2
        decoder[1::3, -1:] = 0
        fields |= {
            "decoder_tokens": ids(ROWS, half),
            "decoder_document_ids": decoder,
            "labels": ids(ROWS, half).masked_fill(decoder == 0, -100),
        }
        del fields["positions"]
    if "sentence-order" in losses:
        fields["sentence_order"] = torch.randint(0, 2, (ROWS,), generator=g)
        fields["sentence_order"][1::4] = -100
    if "pairs" in losses:
        fields["pairs"] = torch.zeros(ROWS, dtype=torch.int64)
        fields["pairs"][1::3] = -100
    return fields


def micro_batches(fields: dict[str, Tensor], layout: Layout, data_rank: int) -> list[dict[str, Tensor]]:
    share = len(fields["tokens"]) // layout.data
    mine = {name: field[data_rank * share : (data_rank + 1) * share] for name, field in fields.items()}
    return [
        {name: field[start : start + layout.microbatch] for name, field in mine.items()}
        for start in range(0, share, layout.microbatch)
    ]


def train_steps(
    family: str,
    layout: Layout,
    steps: int = 5,
    precision: str = "fp32",
    communication: CommunicationConfig | None = None,
    rows: tuple[int, ...] = (ROWS,),
    layers: int = 4,
) -> dict[str, Any]:
    """Losses and gradient norms of `steps` steps, and the losses of an evaluation; a step takes the next of `rows`."""
    from megaptm.parallel.engine import Engine

    engine = Engine(
        tiny(family, layers=layers),
        layout,
        ADAM,
        losses=losses_of(family),
        seed=7,
        precision=precision,
        communication=communication,
    )
    results = []
    for step in range(steps):
        fields = {name: field[: rows[step % len(rows)]] for name, field in batch(family, step).items()}
        batches = micro_batches(fields, layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        results.append(engine.step(batches, step=step, lr=ADAM.lr))
    held_out = micro_batches(batch(family, 99), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
    return {
        "losses": [result.loss for result in results],
        "norms": [result.gradient_norm for result in results],
        "evaluation": engine.evaluate(held_out).losses,
    }


def read_back(layout: Layout, folder: str, step: int) -> dict[str, int]:
    """How many elements this rank reads of all weights, and of all first moments, to restore a checkpoint."""
    from megaptm.checkpoint.store import Store
    from megaptm.checkpoint.tensors import Reader
    from megaptm.parallel import state
    from megaptm.parallel.engine import Engine

    class Counting(Reader):
        def read(self, name: str, offset: Any = None, block: Any = None) -> Tensor:
            found = super().read(name, offset, block)
            read[name.partition("/")[0]] += found.numel()
            return found

    read: Counter[str] = Counter()
    engine = Engine(tiny("gpt2"), layout, ADAM, losses=LOSSES["gpt2"], seed=7, filled=False)
    checkpoint = Store(Path(folder)).load(step)
    state.restore(engine, Counting(checkpoint.folder, checkpoint.files), step=step)
    return dict(read)


def time_limits(layout: Layout, minutes: float) -> list[float | None]:
    """Minutes after which each group that an engine opens gives up; None: torch's own limit."""
    from megaptm.parallel.engine import Engine

    limits: list[float | None] = []
    really = dist.new_group

    def new_group(*args: Any, timeout: timedelta | None = None, **kwargs: Any) -> Any:
        limits.append(timeout.total_seconds() / 60 if timeout is not None else None)
        return really(*args, timeout=timeout, **kwargs)

    with patch.object(dist, "new_group", new_group):
        Engine(tiny("t5"), layout, ADAM, losses=LOSSES["t5"], seed=7, timeout_minutes=minutes)
    return limits


def evaluate_at_once(family: str, layout: Layout) -> dict[str, float]:
    """Losses of an engine that has not made a step."""
    from megaptm.parallel.engine import Engine

    engine = Engine(tiny(family, dropout=0.1), layout, ADAM, losses=losses_of(family), seed=7)
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
    meanwhile: int = 0,
) -> dict[str, Any]:
    """Continue from the checkpoint of step `start` in `folder` (0: begin), train `steps` steps, save.

    With `meanwhile` the checkpoint is written after so many more steps, from a copy.
    """
    from megaptm.checkpoint.host_staging import HostStaging
    from megaptm.checkpoint.store import Store
    from megaptm.parallel import state
    from megaptm.parallel.background import Background
    from megaptm.parallel.collectives import barrier
    from megaptm.parallel.engine import Engine

    engine = Engine(
        tiny(family, dropout=dropout),
        layout,
        ADAM,
        losses=losses_of(family),
        seed=7,
        precision=precision,
        filled=not start,
    )
    store = Store(Path(folder), keep=9, fence=lambda: True)
    if start:
        state.restore(engine, store.load(start).reader, step=start)
    background, trained, results = Background(), threading.Event(), []
    end, rank = start + steps, engine.ranks.world

    def write(pieces: list[Piece]) -> None:
        assert trained.wait(300)
        store.write(end, rank, pieces)

    def commit() -> None:
        if rank == 0:
            store.commit(end, {}, ranks=layout.processes)

    def save() -> None:
        if rank == 0:
            store.prepare(end)
        barrier()
        pieces = list(state.pieces(engine))
        background.begin(partial(write, HostStaging().take(pieces) if meanwhile else pieces), commit)

    for step in range(start, end + meanwhile):
        if step == end:
            save()
        batches = micro_batches(batch(family, step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        results.append(engine.step(batches, step=step, lr=ADAM.lr))
        background.advance()
    if not meanwhile:
        save()
    assert store.steps()[:1] != [end]
    trained.set()
    background.finish()
    return {"losses": [result.loss for result in results], "norms": [result.gradient_norm for result in results]}
