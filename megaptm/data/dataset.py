"""Mix of corpora as a finite, map-style PyTorch data set of tensors."""

from __future__ import annotations

from torch.utils.data import Dataset

from megaptm.batch import MicroBatch
from megaptm.data.loader import batch_to_tensors
from megaptm.data.mix import Mix


class MixDataset(Dataset):
    """Samples that read no text more than `epochs` times, in the shuffled order of a run.

    Each sample is field -> tensor, as in the objective's `batch_spec`, so that a `DataLoader` can collate them.
    """

    def __init__(self, mix: Mix, *, epochs: int = 1) -> None:
        self.mix, self.epochs = mix, epochs
        self._length = mix.samples_in(epochs)  # samples the block where the last epoch ends, in milliseconds

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> MicroBatch:
        if not -self._length <= index < self._length:
            raise IndexError(f"sample {index} of {self._length}")
        return batch_to_tensors(self.mix.sample(index % self._length))
