"""Packed GPT sequences per second, compared with the needs of a training step and with other loaders.

    python benchmarks/loader.py [--seconds 3] [--peers FOLDER] [--only step|peers|s3]

A corpus of random documents (about 450 tokens each, as in files of source text) is written, then read through `Loader`
with a thread and with a worker process, packed with document masks into sequences of 512 tokens. The training step is
that of `benchmarks/step.py`. Peers read the same tar files, or the same documents in their own format, in the
consumer itself and with one worker process, as megaptm does for this comparison, and deliver only tokens and labels,
without positions and documents. Finally the same corpus is read from an S3 server on this machine, with a full cache.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common.alone import join_alone
from common.environments import CACHE, find_python, run_peer
from common.options import Options
from common.s3 import serve

from megaptm.data import Loader, ShardWriter, open_mix, write_manifest
from megaptm.data.loader import batch_to_tensors, stack_samples
from megaptm.objectives import SpecialTokens

LENGTH, BATCH = 512, 8
VOCABULARY = 50257
DOCUMENTS = 2500
"""Per shard."""
MODES = {0: "thread", 1: "worker process"}
PEER_MODES = {0: "consumer", 1: "worker process"}

# Peer -> name of its environment (None: megaptm's), minimum ratio.
PEERS: dict[str, tuple[str | None, float]] = {
    "webdataset": (None, 2),
    "energon": ("energon", 2),
    "megatron": (None, 1),
    "streaming": ("streaming", 2),
}


def write_corpus(folder: Path, num_shards: int) -> SpecialTokens:
    rng = np.random.default_rng(0)
    shards = []
    for index in range(num_shards):
        with ShardWriter(folder / f"train-{index:06d}.tar", dtype="uint16") as writer:
            for document in range(DOCUMENTS):
                tokens = rng.integers(1, VOCABULARY, rng.integers(50, 850))
                writer.add(index * DOCUMENTS + document, tokens, text_bytes=4 * len(tokens))
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


def measure_loader(corpus: str, special: SpecialTokens, *, workers: int, seconds: float) -> float:
    mix = open_mix({corpus: 1.0}, objective="causal-lm", sequence=LENGTH, seed=0, special=special)
    with Loader(mix, batch=BATCH, microbatch=BATCH, workers=workers) as loader:
        next(loader)  # opens shards, starts the worker
        start, samples = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            next(loader)
            samples += BATCH
        return samples / (time.perf_counter() - start)


def measure_without_loader(corpus: str, special: SpecialTokens, seconds: float) -> float:
    """Return samples per second of a consumer that makes its own batches, as peers without workers do."""
    mix = open_mix({corpus: 1.0}, objective="causal-lm", sequence=LENGTH, seed=0, special=special)
    batch_to_tensors(stack_samples(mix, range(BATCH)))
    start, samples = time.perf_counter(), BATCH
    while time.perf_counter() - start < seconds:
        batch_to_tensors(stack_samples(mix, range(samples, samples + BATCH)))
        samples += BATCH
    return (samples - BATCH) / (time.perf_counter() - start)


def measure_as_peers(corpus: str, special: SpecialTokens, seconds: float) -> list[float]:
    rates = [
        measure_without_loader(corpus, special, seconds),
        measure_loader(corpus, special, workers=1, seconds=seconds),
    ]
    print_row("megaptm", rates, PEER_MODES)
    return rates


def measure_megaptm(corpus: str, special: SpecialTokens, seconds: float) -> list[float]:
    return [measure_loader(corpus, special, workers=workers, seconds=seconds) for workers in MODES]


def print_row(name: str, rates: list[float], modes: dict[int, str] = MODES) -> None:
    print(
        f"{name:<32}" + "".join(f"{rate:>10,.0f} samples/s ({modes[mode]})" for mode, rate in enumerate(rates)),
        flush=True,
    )


def compare_with_step(delivered: list[float], *, short: bool) -> list[str]:
    import step as step_benchmark

    torch.set_num_threads(2)
    join_alone()
    shape = step_benchmark.SHORT if short else step_benchmark.Shape()
    metrics = []
    for precision in ("fp32", "bf16"):
        seconds = step_benchmark.median_seconds({precision: step_benchmark.megaptm_step(precision, shape)}, rounds=3)[
            precision
        ]
        consumed = step_benchmark.BATCH * shape.length / seconds
        print(f"{'a training step, ' + precision:<32}{consumed:>10,.0f} tokens/s")
        ratio = min(delivered) * LENGTH / consumed
        metrics.append(f"METRIC loader_over_step_{precision} {ratio:.0f} ratio goal >=20")
    return metrics


def compare_with_peers(
    folder: Path, measure: Callable[[], list[float]], seconds: float, environments: Path | None
) -> list[str]:
    """`environments` is the folder of the peers' environments; None skips peers that need one."""
    metrics = []
    for name, (environment, goal) in PEERS.items():
        if environment is not None and environments is None:
            continue
        python = sys.executable if environment is None else find_python(environment, environments)
        if python is None:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            shards = [str(shard) for shard in sorted(folder.glob("*.tar"))]
            arguments = {"shards": shards, "length": LENGTH, "batch": BATCH, "seconds": seconds}
            rates = run_peer(python, f"loader_{name}", folder=scratch, vocabulary=VOCABULARY, **arguments)
        print_row(name, rates, PEER_MODES)
        own_rates = measure()  # measured again for each peer: machines are noisy
        ratio = min(own / peer for own, peer in zip(own_rates, rates, strict=True))
        metrics.append(f"METRIC loader_over_{name} {ratio:.2f} ratio goal >={goal}")
    return metrics


def compare_with_s3(folder: Path, special: SpecialTokens, local: list[float], seconds: float) -> list[str]:
    with tempfile.TemporaryDirectory() as cache, serve(folder, cache) as url:
        for name in ("from S3, into the cache", "from S3, cached"):
            rates = measure_megaptm(url, special, seconds)
            print_row(name, rates)
    ratio = min(remote / here for remote, here in zip(rates, local, strict=True))
    return [f"METRIC loader_s3_cached_over_local {ratio:.2f} ratio goal >=0.5"]


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--seconds", default=3.0, short=0.2)
    arguments.add("--shards", default=8, short=2)
    arguments.add("--peers", default=CACHE / "peers", short=None, type=Path, help="folder of the peers' environments")
    arguments.add_argument("--only", choices=("step", "peers", "s3"))
    options = arguments.read()

    metrics = []
    with tempfile.TemporaryDirectory() as corpus:
        folder = Path(corpus)
        special = write_corpus(folder, options.shards)
        delivered = measure_megaptm(corpus, special, options.seconds)
        print_row("megaptm", delivered)
        if options.only in (None, "peers"):
            metrics += compare_with_peers(
                folder, lambda: measure_as_peers(corpus, special, options.seconds), options.seconds, options.peers
            )
        if options.only in (None, "s3"):
            metrics += compare_with_s3(folder, special, delivered, options.seconds)
        if options.only in (None, "step"):
            metrics += compare_with_step(delivered, short=options.short)
    print("\n".join(metrics))


if __name__ == "__main__":
    main()
