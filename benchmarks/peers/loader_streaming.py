"""MosaicML streaming over the same documents in its own shards. {"folder", "shards", "length", "batch", "seconds"}"""

import io
import json
import sys
import tarfile

import numpy as np
from packing import batches, per_second, rows
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader, IterableDataset


class Rows(IterableDataset):
    def __init__(self, documents: StreamingDataset, options: dict):
        self.documents = documents
        self.options = options

    def __iter__(self):
        return batches(rows(self._endless(), self.options["length"]), self.options["batch"])

    def _endless(self):
        while True:
            yield from (sample["tokens"] for sample in self.documents)


def write(options: dict, out: str) -> None:
    with MDSWriter(out=out, columns={"tokens": "ndarray:uint16"}) as writer:
        for shard in options["shards"]:
            with tarfile.open(shard) as tar:
                for member in tar:
                    writer.write({"tokens": np.load(io.BytesIO(tar.extractfile(member).read()))})


def main() -> None:
    options = json.loads(sys.argv[1])
    out = f"{options['folder']}/streaming"
    write(options, out)
    done = []
    for workers in (0, 1):
        documents = StreamingDataset(local=out, shuffle=True, batch_size=options["batch"])
        loader = DataLoader(Rows(documents, options), batch_size=None, num_workers=workers)
        done.append(per_second(loader, options["length"], options["seconds"]))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
