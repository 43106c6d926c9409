"""megatron-core's GPTDataset over the same documents in its memory-mapped files. {"folder", "shards", "length", ...}"""

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import torch
import webdataset
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron.core.datasets.utils import Split
from packing import END, per_second
from torch.utils.data import DataLoader

ROWS = 500_000
"""More samples than are read in a few seconds."""


def write(options: dict, prefix: str) -> int:
    builder, documents = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16), 0
    for sample in webdataset.WebDataset(options["shards"], shardshuffle=False):
        tokens = np.append(np.load(io.BytesIO(sample["tokens.npy"])), np.uint16(END))
        builder.add_document(tokens, [len(tokens)])
        documents += 1
    builder.finalize(f"{prefix}.idx")
    return documents


def main() -> None:
    options = json.loads(sys.argv[1])
    prefix = f"{options['folder']}/megatron"
    documents = write(options, prefix)
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=options["length"],
        split="1",
        path_to_cache=f"{options['folder']}/megatron-cache",
        # Its fastest settings: nothing is reset at document ends, so positions are computed once.
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        tokenizer=SimpleNamespace(eod=END, vocab_size=options["vocabulary"], unique_identifiers={"name": "random"}),
    )
    low_level = GPTDataset.build_low_level_dataset(prefix, config)
    indices = np.arange(documents, dtype=np.int32)
    dataset = GPTDataset(low_level, prefix, indices, ROWS, Split.train, config)
    torch.set_num_threads(1)
    loaders = (DataLoader(dataset, batch_size=options["batch"], num_workers=workers) for workers in (0, 1))
    print(json.dumps([per_second(loader, options["length"], options["seconds"]) for loader in loaders]))


if __name__ == "__main__":
    main()
