"""Samples per second of each objective, with its noise, compared with the needs of a training step of its family.

    python benchmarks/noise.py [--families bert t5] [--objectives deshuffling] [--seconds 2] [--layers 4] [--width 768]

Random documents of about 450 tokens, with sentences, words, capitals and parts, are read by each objective that a
family was published with, in sequences of 512 tokens, by one thread and without prefetching: samples per second of CPU
time. The step is that of `benchmarks/families.py`, megaptm's engine in fp32 on one thread, measured in the same way.
For families with a generator, BERT's step is used, which is faster. Objectives whose samples continue earlier ones
(Transformer-XL, XLNet) are skipped.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common.alone import join_alone
from common.options import Options
from common.rounds import median_seconds
from families import make_batch, make_spec, megaptm_step

from megaptm.data import ShardWriter, open_mix, write_manifest
from megaptm.data.loader import batch_to_tensors, stack_samples
from megaptm.families import CATALOGUE
from megaptm.objectives import OBJECTIVES, SpecialTokens, build_objective
from megaptm.objectives.objective import BaseObjective

LENGTH, BATCH = 512, 8
VOCABULARY, SPECIALS = 30_522, 262
FIELDS = ("tokens", "sentences", "words", "capitals", "parts")
SPECIAL = SpecialTokens(
    size=VOCABULARY,
    pad=0,
    end=1,
    begin=2,
    cls=3,
    sep=4,
    mask=5,
    sentinels=tuple(range(SPECIALS - 1, 5, -1)),
    specials=frozenset(range(SPECIALS)),
)
SIMILAR = "masked-lm-ngrams-similar-words-sentence-order"


def find_similar(word: tuple[int, ...]) -> np.ndarray:
    """Return similar words [words, tokens] for MacBERT."""
    return (np.array([word]) + np.arange(1, 9)[:, None]) % (VOCABULARY - SPECIALS) + SPECIALS


def build_named_objective(name: str) -> BaseObjective:
    """Return the objective of a name. MacBERT's uses `find_similar`."""
    if name != SIMILAR:
        return OBJECTIVES[name]
    masks = {
        "hide": "ngrams",
        "length_weights": [0.4, 0.3, 0.2, 0.1],
        "show": "similar-words",
        "similar": "noise:find_similar",
    }
    return build_objective({"masked-lm": masks, "sentence-order": {}})


def write_corpus(folder: Path, documents: int) -> None:
    rng = np.random.default_rng(0)
    with ShardWriter(folder / "train-000000.tar", "uint16", FIELDS) as writer:
        for key in range(documents):
            tokens = rng.integers(SPECIALS, VOCABULARY, rng.integers(50, 850))
            annotations = {
                "sentences": np.union1d([0], np.flatnonzero(rng.random(len(tokens)) < 0.05)),
                "words": np.union1d([0], np.flatnonzero(tokens % 3)),
                "capitals": np.flatnonzero(tokens % 10 == 0),
                "parts": np.array([0, len(tokens) // 2]),
            }
            writer.add(key, tokens, annotations, text_bytes=4 * len(tokens))
    write_manifest(
        folder,
        dtype="uint16",
        fields=FIELDS,
        splits={"train": [writer.close()]},
        tokenizer={"kind": "wordpiece", "vocabulary": VOCABULARY, "fingerprint": "random"},
        made_from={},
    )


def measure_objective(corpus: str, objective: BaseObjective, seconds: float) -> float:
    """Return samples per second of CPU time."""
    mix = open_mix({corpus: 1.0}, objective=objective, sequence=LENGTH, seed=0, special=SPECIAL)
    batch_to_tensors(stack_samples(mix, range(BATCH)))
    start, samples = time.process_time(), BATCH
    while time.process_time() - start < seconds:
        batch_to_tensors(stack_samples(mix, range(samples, samples + BATCH)))
        samples += BATCH
    return (samples - BATCH) / (time.process_time() - start)


def measure_step(family: str, *, layers: int, width: int, rounds: int) -> float:
    table = CATALOGUE[family]
    spec = make_spec("bert" if table.sampled else family, layers=layers, width=width, length=LENGTH)
    samples = 2
    batch = make_batch(spec, spec.family.heads, samples, LENGTH)
    step = megaptm_step(spec, spec.family.heads, "fp32", batch)
    return samples / median_seconds({"step": step}, rounds, time.process_time)["step"]


def select_objectives(families: list[str], names: list[str]) -> dict[str, list[str]]:
    """Return family -> its published objectives. Each objective is listed once, for the first family that has it."""
    objectives: dict[str, list[str]] = {}
    listed: set[str] = set()
    for family, table in CATALOGUE.items():
        if families and family not in families:
            continue
        new = [
            name
            for name in table.objectives
            if name not in listed and (not names or name in names) and OBJECTIVES[name].unit != "lane"
        ]
        listed |= {*new}
        if new:
            objectives[family] = new
    return objectives


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--seconds", default=2.0, short=0.2)
    arguments.add("--layers", default=4, short=2, help="number of layers of all stacks together")
    arguments.add("--width", default=768, short=64)
    arguments.add("--rounds", default=3, short=1)
    arguments.add("--documents", default=4000, short=400)
    arguments.add("--families", default=[], short=["bert", "t5"], nargs="+", type=str, help="default: all")
    arguments.add("--objectives", default=[], short=[], nargs="+", type=str, help="default: all")
    options = arguments.read()
    torch.set_num_threads(1)
    join_alone()
    metrics = []
    with tempfile.TemporaryDirectory() as corpus:
        write_corpus(Path(corpus), options.documents)
        print(f"{'samples per CPU second':<56}{'made':>8}{'needed':>8}{'ratio':>8}")
        for family, names in select_objectives(options.families, options.objectives).items():
            needed = measure_step(family, layers=options.layers, width=options.width, rounds=options.rounds)
            for name in names:
                made = measure_objective(corpus, build_named_objective(name), options.seconds)
                print(f"{f'{family}: {name}':<56}{made:>8,.0f}{needed:>8.2f}{made / needed:>8,.0f}", flush=True)
                metrics.append(f"METRIC noise_{name.replace('-', '_')}_over_step {made / needed:.1f} ratio goal >=20")
    print("\n".join(metrics))


if __name__ == "__main__":
    main()
