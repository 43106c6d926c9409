"""Common part of the peers' loaders: documents are concatenated and cut into samples, and timed."""

import time
from collections.abc import Iterable, Iterator

import numpy as np
import torch

END = 0
"""Id at the end of a document."""


def rows(documents: Iterable[np.ndarray], length: int) -> Iterator[dict[str, torch.Tensor]]:
    """Tokens and labels, int64 [length]."""
    held: list[np.ndarray] = []
    count, end = 0, np.array([END], dtype=np.uint16)
    for document in documents:
        held += (document, end)
        count += len(document) + 1
        if count > length:
            stream = torch.from_numpy(np.concatenate(held).astype(np.int64))
            at = 0
            while count - at > length:
                yield {"tokens": stream[at : at + length], "labels": stream[at + 1 : at + length + 1]}
                at += length
            held, count = [stream[at:].numpy()], count - at


def batches(samples: Iterator[dict[str, torch.Tensor]], batch: int) -> Iterator[dict[str, torch.Tensor]]:
    while True:
        selected = [next(samples) for _ in range(batch)]
        yield {field: torch.stack([sample[field] for sample in selected]) for field in selected[0]}


def per_second(loader: Iterable[dict[str, torch.Tensor]], length: int, seconds: float) -> float:
    """Return samples per second after the first batch; a partly filled sample counts by its filled part."""
    loader = iter(loader)
    next(loader)
    tokens, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        tokens += int((next(loader)["tokens"] >= 0).sum())
    return tokens / length / (time.perf_counter() - started)
