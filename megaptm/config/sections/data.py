"""The section `data`: what is read, and how it is mixed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from megaptm.config.sections.base import Count, Section
from megaptm.objectives.objective import RowLength


class DataConfig(Section):
    """What is read."""

    mix: Annotated[dict[str, Annotated[float, Field(gt=0.0)]], Field(min_length=1)]
    """Corpus folder or URL -> weight; weights count tokens and need not sum to one."""
    size_exponent: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Power of a corpus's number of documents by which its weight is multiplied; weights then count documents. 1: each
    is as likely (T5), or 1 / a temperature; mT5: 0.3. Absent: weights count tokens, whatever a corpus holds."""
    size_limits: dict[str, Count] = {}
    """Corpus -> documents above which it counts as if it had so many, for size_exponent (T5's artificial limit)."""
    sequence: RowLength
    """Tokens of one row (T5: of the encoder's row; the decoder's follows)."""
    epochs: Count | None = None
    """How often any text may be read; steps that need more are refused before the start. Absent: as often as needed."""
    dupe_factor: Count | None = None
    """Epochs after which the same rows come again, with the same noise: 1 for masks that never change, 10 for BERT's
    data, written in ten copies. Absent: each epoch has an order and noise of its own (RoBERTa's dynamic masks)."""
    document_mask: bool = True
    """Whether attention stops at document borders within a row; absent: yes, but where rows go on from step to step."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 1
    """Background processes that prepare samples, for each process that reads; 0: none, read in the training process."""
    verify: Literal["hash", "size", "none"] = "hash"
    """How a shard is compared with the manifest when it is first read: every byte (a second a GB), or its size."""
    cache: str | None = None
    """Folder of this machine that keeps shards of corpora at URLs; absent: ~/.cache/megaptm."""
    cache_bytes: Count = 64 << 30
    """What it may hold; the shards used least recently leave."""
    patience: Annotated[float, Field(gt=0.0, le=1500.0)] = 600.0
    """Seconds to wait for a server that does not answer, before the run saves and stops; processes wait 30 minutes
    for each other, so it must be less."""
