"""Megatron Energon over megaptm's shards: its shuffling and packing. {"folder", "shards", "length", "batch",
"seconds"}"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, stateless
from megatron.energon.flavors.webdataset import BaseWebdatasetFactory
from megatron.energon.task_encoder.cooking import Cooker, basic_sample_keys
from packing import END, per_second

PADDING = -1


def cook(sample: dict) -> dict:
    return {**basic_sample_keys(sample), "tokens": np.load(io.BytesIO(sample["tokens.npy"]))}


class Packing(DefaultTaskEncoder):
    """Documents are packed whole if they fit, otherwise in pieces; documents of a buffer are packed in order while they
    fit."""

    decoder = None
    cookers = (Cooker(stateless(cook)),)

    def __init__(self, length: int):
        super().__init__()
        self.length = length

    @stateless
    def encode_sample(self, sample: dict):
        tokens = np.append(sample.pop("tokens").astype(np.int64), END)
        for at in range(0, len(tokens), self.length + 1):
            yield {**sample, "tokens": tokens[at : at + self.length + 1]}

    def select_samples_to_pack(self, samples: list) -> list:
        packs, room = [[]], self.length + 1
        for sample in samples:
            if len(sample["tokens"]) > room:
                packs.append([])
                room = self.length + 1
            packs[-1].append(sample)
            room -= len(sample["tokens"])
        return packs

    @stateless
    def pack_selected_samples(self, samples: list) -> dict:
        row = np.full(self.length + 1, PADDING)
        tokens = np.concatenate([sample["tokens"] for sample in samples])
        row[: len(tokens)] = tokens
        text = torch.from_numpy(row)
        return {**basic_sample_keys(samples[0]), "tokens": text[:-1], "labels": text[1:]}

    @stateless
    def batch(self, samples: list) -> dict:
        return {field: torch.stack([sample[field] for sample in samples]) for field in ("tokens", "labels")}


def prepare(options: dict) -> None:
    folder = Path(options["folder"])
    shards = [Path(shard) for shard in options["shards"]]
    for shard in shards:
        (folder / shard.name).symlink_to(shard)
    BaseWebdatasetFactory.prepare_dataset(
        folder, [shard.name for shard in shards], split_parts_ratio=[("train", 1.0)], workers=2
    )
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {}\n"
    )


def main() -> None:
    options = json.loads(sys.argv[1])
    prepare(options)
    done = []
    for workers in (0, 1):
        dataset = get_train_dataset(
            options["folder"],
            batch_size=options["batch"],
            shuffle_buffer_size=1000,
            max_samples_per_sequence=100,
            packing_buffer_size=100,
            task_encoder=Packing(options["length"]),
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        )
        done.append(per_second(get_loader(dataset), options["length"], options["seconds"]))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
