"""What the loader delivers beside what a training step consumes: packed GPT rows of 512 tokens.

    python benchmarks/loader.py [--seconds 3]

A corpus of random documents (about 450 tokens each, as files of source text have) is written, then read through
`Loader` with a thread and with a worker process, packed with per-document attention, and compared with the tokens that
the training step of `benchmarks/step.py` takes in on the same machine in the same run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import step as step_benchmark
import torch

from megaptm.data import Loader, ShardWriter, open_mix, write_manifest
from megaptm.objectives import SpecialTokens

LENGTH, BATCH = 512, 8
VOCABULARY = 50257


def write_corpus(folder: Path) -> SpecialTokens:
    rng = np.random.default_rng(0)
    shards = []
    for number in range(8):
        with ShardWriter(folder / f"train-{number:06d}.tar", dtype="uint16") as writer:
            for document in range(500):
                tokens = rng.integers(1, VOCABULARY, rng.integers(50, 850))
                writer.add(number * 500 + document, tokens, text_bytes=4 * len(tokens))
        shards.append(writer.close())
    tokenizer = {"kind": "byte-bpe", "vocabulary": VOCABULARY, "fingerprint": "random"}
    write_manifest(
        folder, dtype="uint16", splits={"train": shards}, tokenizer=tokenizer, made_from={}, fields=["tokens"]
    )
    return SpecialTokens(
        size=VOCABULARY,
        pad=None,
        end=0,
        begin=None,
        cls=None,
        sep=None,
        mask=None,
        sentinels=(),
        specials=frozenset({0}),
    )


def tokens_per_second(folder: Path, special: SpecialTokens, *, workers: int, seconds: float) -> float:
    mix = open_mix({str(folder): 1.0}, objective="causal-lm", sequence=LENGTH, seed=0, special=special)
    with Loader(mix, batch=BATCH, microbatch=BATCH, workers=workers) as loader:
        next(loader)  # opens shards, starts the worker
        begun, rows = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            next(loader)
            rows += BATCH
        return rows * LENGTH / (time.perf_counter() - begun)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=3.0)
    options = arguments.parse_args()
    torch.set_num_threads(2)

    from megaptm.parallel.groups import join

    join(rank=0, world=1, local_rank=0, init_method="tcp://127.0.0.1:29535")
    consumed = {}
    for precision in ("fp32", "bf16"):
        seconds = step_benchmark.median_seconds({precision: step_benchmark.ours(precision)}, rounds=3)[precision]
        consumed[precision] = step_benchmark.ROWS * step_benchmark.LENGTH / seconds
        print(f"{'a training step, ' + precision:<32}{consumed[precision]:>14,.0f} tokens/s")
    with tempfile.TemporaryDirectory() as folder:
        special = write_corpus(Path(folder))
        delivered = {}
        for workers, name in ((0, "loader, thread"), (1, "loader, one worker process")):
            delivered[name] = tokens_per_second(Path(folder), special, workers=workers, seconds=options.seconds)
            print(f"{name:<32}{delivered[name]:>14,.0f} tokens/s")
    for precision, tokens in consumed.items():
        ratio = min(delivered.values()) / tokens
        print(f"METRIC loader_over_step_{precision} {ratio:.0f} ratio goal >=20")


if __name__ == "__main__":
    main()
