"""A mix of corpora as PyTorch's data sets are: samples by number, tensors, an end."""

from __future__ import annotations

from torch.utils.data import Dataset

from megaptm.batch import MicroBatch
from megaptm.data.loader import as_tensors
from megaptm.data.mix import Mix


class MixDataset(Dataset):
    """The samples that read no text more than `epochs` times, in the order in which a run reads them: already shuffled.

    Each is a field -> tensor, as the objective says (`batch`), so that a `DataLoader` makes batches of them.
    """

    def __init__(self, mix: Mix, *, epochs: int = 1) -> None:
        self.mix, self.epochs = mix, epochs
        self._length = mix.samples_in(epochs)  # it deals the block where the last epoch ends: milliseconds

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> MicroBatch:
        if not -self._length <= number < self._length:
            raise IndexError(f"sample {number} of {self._length}")
        return as_tensors(self.mix.sample(number % self._length))
