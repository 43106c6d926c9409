"""Plain webdataset over our tars: shuffled, npy decoded, rows cut. {"shards": [...], "length", "batch", "seconds"}"""

import io
import json
import sys

import numpy as np
import webdataset
from packing import batches, per_second, rows
from torch.utils.data import DataLoader, IterableDataset


class Rows(IterableDataset):
    def __init__(self, given: dict):
        self.given = given

    def __iter__(self):
        given = self.given
        # Every worker reads all shards, so that one shard list serves any number of workers.
        samples = webdataset.WebDataset(
            given["shards"], shardshuffle=100, nodesplitter=None, workersplitter=None, empty_check=False
        )
        documents = (np.load(io.BytesIO(sample["tokens.npy"])) for sample in samples.shuffle(1000).repeat())
        return batches(rows(documents, given["length"]), given["batch"])


def main() -> None:
    given = json.loads(sys.argv[1])
    for workers in (0, 1):
        loader = DataLoader(Rows(given), batch_size=None, num_workers=workers)
        given[f"workers {workers}"] = per_second(loader, given["length"], given["seconds"])
    print(json.dumps([given["workers 0"], given["workers 1"]]))


if __name__ == "__main__":
    main()
