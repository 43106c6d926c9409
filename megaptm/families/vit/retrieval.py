"""Retrieval among pairs of images and texts: recall of the other half of each pair."""

# N pairs

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.table import Table
from torch import Tensor

from megaptm.console import Console
from megaptm.data import Mix
from megaptm.data.loader import batch_to_tensors, stack_samples

RECALLS = (1, 5, 10)
BATCH_PAIRS = 64
"""Number of pairs of images and texts per forward pass; they need little memory without gradients."""
MAX_PAIRS = 5000
TIE = 1e-6
"""Maximum difference of two cosines that count as equal; the order of sums changes them by about that much."""


@dataclass(frozen=True)
class Retrieval:
    """Result of retrieval among all pairs of images and texts: recall at 1, 5, 10."""

    pairs: int
    texts_of_images: dict[int, float]
    images_of_texts: dict[int, float]

    def to_json(self) -> dict[str, object]:
        """Return the result of retrieval between images and texts as JSON values."""
        return {"retrieval": asdict(self)}

    def show(self, console: Console) -> None:
        table = Table(box=None, pad_edge=False)
        table.add_column(f"retrieval among {self.pairs:,} pairs")
        for k in RECALLS:
            table.add_column(f"recall@{k}", justify="right")
        table.add_row("text of an image", *(f"{self.texts_of_images[k]:.1%}" for k in RECALLS))
        table.add_row("image of a text", *(f"{self.images_of_texts[k]:.1%}" for k in RECALLS))
        table.add_row("chance", *(f"{min(1, k / self.pairs):.1%}" for k in RECALLS))
        console.print(table)


def measure_recall(scores_NN: Tensor) -> Retrieval:
    """Measure the recall of retrieval between images and texts from similarities [N, N]; correct pairs are on the
    diagonal."""
    recalls = []
    for scores in (scores_NN, scores_NN.t()):
        better = (scores > scores.diagonal()[:, None] + TIE).sum(-1)
        recalls.append({k: float((better < k).float().mean()) for k in RECALLS})
    return Retrieval(len(scores_NN), *recalls)


def read_batches(mix: Mix, number: int) -> Iterator[dict[str, Tensor]]:
    """Yield batches of the first samples of a mix, for retrieval."""
    for start in range(0, number, BATCH_PAIRS):
        yield batch_to_tensors(stack_samples(mix, range(start, min(start + BATCH_PAIRS, number))))
