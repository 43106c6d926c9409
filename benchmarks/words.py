"""Skip-gram words per second on one core and on two, beside gensim on the same text with the same settings.

    python benchmarks/words.py [--words 2000000] [--row 100000] [--rounds 3]

Words come as often as in a language (by Zipf's law, 50,000 of them), in documents of 1,000; width 100, window 5, five
words of noise, none passed over. Ours reads shards by its loader, on one rank and on two; gensim has them as lists, for
one worker and two. All take turns; a round is the whole text once.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import gensim
import numpy as np
import torch
from common.options import Options

from megaptm.config import Layout
from megaptm.data import Loader, ShardWriter, open_mix, write_manifest
from megaptm.families.words import WORD2VEC, WordSize, WordSpec
from megaptm.objectives import SpecialTokens
from megaptm.objectives.windows import SkipGram

VOCABULARY, WIDTH, DOCUMENT = 50_000, 100, 1_000
TASK = SkipGram(min_count=1, subsample=0.0)
SPECIAL = SpecialTokens(size=VOCABULARY + 1, end=0, specials=frozenset({0}))


def draw(words: int) -> np.ndarray:
    """int64 [documents, 1000]"""
    chances = 1 / np.arange(1, VOCABULARY + 1)
    rng = np.random.default_rng(0)
    return 1 + rng.choice(VOCABULARY, size=(words // DOCUMENT, DOCUMENT), p=chances / chances.sum())


def write(folder: Path, text: np.ndarray) -> None:
    with ShardWriter(folder / "train-000000.tar", dtype="uint16") as writer:
        for key, document in enumerate(text):
            writer.add(key, document, text_bytes=6 * len(document))
    tokenizer = {"kind": "words", "vocabulary": VOCABULARY + 1, "fingerprint": "random"}
    write_manifest(
        folder,
        dtype="uint16",
        splits={"train": [writer.close()]},
        tokenizer=tokenizer,
        made_from={},
        fields=["tokens"],
    )


def rank(
    place: int, ranks: int, folder: str, row: int, words: int, rounds: multiprocessing.connection.Connection
) -> None:
    """A rank that learns the text once each time it is told to, and says how long it took."""
    from megaptm.parallel.groups import join
    from megaptm.words.engine import WordEngine

    torch.set_num_threads(1)
    join(rank=place, world=ranks, local_rank=place, init_method=f"file://{folder}/meeting-{ranks}")
    mix = open_mix({folder: 1.0}, objective=TASK, sequence=row, seed=1, special=SPECIAL)
    counts = (
        np.bincount(draw(words).reshape(-1), minlength=SPECIAL.size) if place == 0 else np.zeros(SPECIAL.size, np.int64)
    )
    spec = WordSpec(family=WORD2VEC, size=WordSize(width=WIDTH), vocabulary=SPECIAL.size)
    engine = WordEngine(spec, Layout(data=ranks), TASK, seed=1, special=SPECIAL.specials, count_words=lambda *_: counts)
    engine.fill()
    with Loader(mix, batch=ranks, microbatch=1, rank=place, ranks=ranks) as loader:
        while rounds.recv():
            begun = time.perf_counter()
            for _ in range(words // (row * ranks)):
                step, batches = next(loader)
                engine.step(batches, step=step, lr=0.025)
            rounds.send(time.perf_counter() - begun)
    os._exit(0)


class Ours:
    """Ranks that wait to be told to begin."""

    def __init__(self, ranks: int, folder: Path, row: int, words: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        pairs = [spawn.Pipe() for _ in range(ranks)]
        self.pipes = [mine for mine, _ in pairs]
        self.words = words // (row * ranks) * row * ranks
        for place, (_, theirs) in enumerate(pairs):
            spawn.Process(target=rank, args=(place, ranks, str(folder), row, words, theirs), daemon=True).start()

    def speed(self) -> float:
        for pipe in self.pipes:
            pipe.send(True)
        return self.words / max(pipe.recv() for pipe in self.pipes)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(False)


class Gensim:
    """The same text as lists of strings."""

    def __init__(self, workers: int, text: list[list[str]]) -> None:
        self.text = text
        self.model = gensim.models.Word2Vec(
            vector_size=WIDTH, sg=1, negative=5, window=5, min_count=1, sample=0, workers=workers, seed=1
        )
        self.model.build_vocab(text)

    def speed(self) -> float:
        begun = time.perf_counter()
        self.model.train(self.text, total_examples=len(self.text), epochs=1)
        return sum(map(len, self.text)) / (time.perf_counter() - begun)


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--words", default=2_000_000, short=40_000)
    arguments.add("--row", default=100_000, short=10_000)
    arguments.add("--rounds", default=3, short=1)
    options = arguments.read()
    text = draw(options.words)
    lists = [[str(word) for word in document] for document in text.tolist()]
    seen: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), text)
        ours = {f"ours, ranks: {ranks}": Ours(ranks, Path(name), options.row, options.words) for ranks in (1, 2)}
        contenders = {**ours, **{f"gensim, workers: {workers}": Gensim(workers, lists) for workers in (1, 2)}}
        for contender in ours.values():
            contender.speed()  # compiles
        for _ in range(options.rounds):
            for name_, contender in contenders.items():
                seen.setdefault(name_, []).append(contender.speed())
        for contender in ours.values():
            contender.close()
    print(f"{'':<20}{'words/s, median':>18}{'slowest':>12}{'fastest':>12}")
    for name_, speeds in seen.items():
        print(f"{name_:<20}{statistics.median(speeds):>18,.0f}{min(speeds):>12,.0f}{max(speeds):>12,.0f}")
    one, two, their_one, their_two = (statistics.median(speeds) for speeds in seen.values())
    print(f"METRIC words_over_gensim_one_core {one / their_one:.2f} ratio goal >=1.0")
    print(f"METRIC words_over_gensim_two_cores {two / their_two:.2f} ratio goal >=1.0")
    print(f"METRIC words_two_ranks_over_one {two / one:.2f} ratio goal >=1.3")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
