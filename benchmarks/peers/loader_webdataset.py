"""Plain webdataset over megaptm's shards: shuffled, npy decoded, cut into samples. {"shards": [...], "length", "batch",
"seconds"}"""

import io
import json
import sys

import numpy as np
import webdataset
from packing import batches, per_second, rows
from torch.utils.data import DataLoader, IterableDataset


class Rows(IterableDataset):
    def __init__(self, options: dict):
        self.options = options

    def __iter__(self):
        options = self.options
        # Each worker reads all shards, so that one shard list serves any number of workers.
        samples = webdataset.WebDataset(
            options["shards"], shardshuffle=100, nodesplitter=None, workersplitter=None, empty_check=False
        )
        documents = (np.load(io.BytesIO(sample["tokens.npy"])) for sample in samples.shuffle(1000).repeat())
        return batches(rows(documents, options["length"]), options["batch"])


def main() -> None:
    options = json.loads(sys.argv[1])
    for workers in (0, 1):
        loader = DataLoader(Rows(options), batch_size=None, num_workers=workers)
        options[f"workers {workers}"] = per_second(loader, options["length"], options["seconds"])
    print(json.dumps([options["workers 0"], options["workers 1"]]))


if __name__ == "__main__":
    main()
