"""Rows per second of each objective, its noise included, compared with the needs of a training step of its family.

    python benchmarks/noise.py [--families bert t5] [--objectives deshuffling] [--seconds 2] [--layers 4] [--width 768]

Random documents of about 450 tokens, with sentences, words, capitals and parts, are read by each objective that a
family was published with, in rows of 512 tokens, by one thread and without prefetching: rows per second of processor
time. The step is that of `benchmarks/families.py`, megaptm's engine in fp32 on one thread, measured in the same way;
where a family has a second model that generates, BERT's step is used, which is faster. Rows that continue earlier ones
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
from families import batch_of, ours, spec_of

from megaptm.data import ShardWriter, open_mix, write_manifest
from megaptm.data.loader import as_tensors, stacked
from megaptm.families import CATALOGUE
from megaptm.objectives import OBJECTIVES, SpecialTokens, build_objective
from megaptm.objectives.objective import BaseObjective

LENGTH, ROWS = 512, 8
VOCABULARY, SPECIALS = 30_522, 106
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


def alike(word: tuple[int, ...]) -> np.ndarray:
    """Similar words, for MacBERT: [words, tokens]."""
    return (np.array([word]) + np.arange(1, 9)[:, None]) % (VOCABULARY - SPECIALS) + SPECIALS


def objective(name: str) -> BaseObjective:
    """The objective of a name; MacBERT's with similar words."""
    if name != SIMILAR:
        return OBJECTIVES[name]
    masks = {
        "hide": "ngrams",
        "length_weights": [0.4, 0.3, 0.2, 0.1],
        "show": "similar-words",
        "similar": "noise:alike",
    }
    return build_objective({"masked-lm": masks, "sentence-order": {}})


def write_corpus(folder: Path, documents: int) -> None:
    rng = np.random.default_rng(0)
    with ShardWriter(folder / "train-000000.tar", "uint16", FIELDS) as writer:
        for key in range(documents):
            tokens = rng.integers(SPECIALS, VOCABULARY, rng.integers(50, 850))
            known = {
                "sentences": np.union1d([0], np.flatnonzero(rng.random(len(tokens)) < 0.05)),
                "words": np.union1d([0], np.flatnonzero(tokens % 3)),
                "capitals": np.flatnonzero(tokens % 10 == 0),
                "parts": np.array([0, len(tokens) // 2]),
            }
            writer.add(key, tokens, known, text_bytes=4 * len(tokens))
    write_manifest(
        folder,
        dtype="uint16",
        fields=FIELDS,
        splits={"train": [writer.close()]},
        tokenizer={"kind": "wordpiece", "vocabulary": VOCABULARY, "fingerprint": "random"},
        made_from={},
    )


def rows_per_second(corpus: str, made: BaseObjective, seconds: float) -> float:
    mix = open_mix({corpus: 1.0}, objective=made, sequence=LENGTH, seed=0, special=SPECIAL)
    as_tensors(stacked(mix, range(ROWS)))
    begun, rows = time.process_time(), ROWS
    while time.process_time() - begun < seconds:
        as_tensors(stacked(mix, range(rows, rows + ROWS)))
        rows += ROWS
    return (rows - ROWS) / (time.process_time() - begun)


def step_rows_per_second(family: str, *, layers: int, width: int, rounds: int) -> float:
    table = CATALOGUE[family]
    spec = spec_of("bert" if table.drawn else family, layers=layers, width=width, length=LENGTH)
    rows = 2
    batch = batch_of(spec, spec.family.heads, rows, LENGTH)
    step = ours(spec, spec.family.heads, "fp32", batch)
    return rows / median_seconds({"step": step}, rounds, time.process_time)["step"]


def cases(families: list[str], names: list[str]) -> dict[str, list[str]]:
    """Family -> its published objectives; each once, with the first family that has it."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for family, table in CATALOGUE.items():
        if families and family not in families:
            continue
        new = [
            name
            for name in table.objectives
            if name not in seen and (not names or name in names) and OBJECTIVES[name].unit != "lane"
        ]
        seen |= {*new}
        if new:
            found[family] = new
    return found


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--seconds", default=2.0, short=0.2)
    arguments.add("--layers", default=4, short=2, help="of all stacks")
    arguments.add("--width", default=768, short=64)
    arguments.add("--rounds", default=3, short=1)
    arguments.add("--documents", default=4000, short=400)
    arguments.add("--families", default=[], short=["bert", "t5"], nargs="+", type=str, help="instead of all")
    arguments.add("--objectives", default=[], short=[], nargs="+", type=str, help="instead of all")
    options = arguments.read()
    torch.set_num_threads(1)
    join_alone()
    metrics = []
    with tempfile.TemporaryDirectory() as corpus:
        write_corpus(Path(corpus), options.documents)
        print(f"{'rows/s of the processor':<56}{'made':>8}{'taken':>8}{'ratio':>8}")
        for family, names in cases(options.families, options.objectives).items():
            taken = step_rows_per_second(family, layers=options.layers, width=options.width, rounds=options.rounds)
            for name in names:
                made = rows_per_second(corpus, objective(name), options.seconds)
                print(f"{f'{family}: {name}':<56}{made:>8,.0f}{taken:>8.2f}{made / taken:>8,.0f}", flush=True)
                metrics.append(f"METRIC noise_{name.replace('-', '_')}_over_step {made / taken:.1f} ratio goal >=20")
    print("\n".join(metrics))


if __name__ == "__main__":
    main()
