"""Skip-gram words per second on one core and on two, beside gensim on the same text with the same settings.

    python benchmarks/words.py [--words 2000000] [--row 100000] [--rounds 3]

Words come as often as in a language (by Zipf's law, 50,000 of them), in documents of 1,000; width 100, window 5, five
words of noise, none passed over. Ours reads shards by its loader, on one rank and on two, and as two runs at once that
have nothing to do with each other, which is all that two cores can do; gensim has them as lists, for one worker and
two. All take turns; a round is the whole text once. Beside words for each second there are words for each second of the
processors, of all threads and processes together, which other work on the machine changes less.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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


class Took(NamedTuple):
    """Seconds of a round, and seconds of the processors."""

    wall: float
    cpu: float


def timed(learn: Callable[[], object]) -> Took:
    wall, cpu = time.perf_counter(), time.process_time()
    learn()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


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
    from megaptm import cpu_tuning
    from megaptm.parallel.groups import join
    from megaptm.words.engine import WordEngine

    torch.set_num_threads(1)
    cpu_tuning.install()
    join(
        rank=place,
        world=ranks,
        local_rank=place,
        init_method=f"file://{folder}/meeting-{os.getpid() if ranks == 1 else ranks}",
    )
    mix = open_mix({folder: 1.0}, objective=TASK, sequence=row, seed=1, special=SPECIAL)
    counts = np.bincount(draw(words).reshape(-1), minlength=SPECIAL.size)
    spec = WordSpec(family=WORD2VEC, size=WordSize(width=WIDTH), vocabulary=SPECIAL.size)
    engine = WordEngine(spec, Layout(data=ranks), TASK, seed=1, special=SPECIAL.specials, count_words=lambda *_: counts)
    engine.fill()
    with Loader(mix, batch=ranks, microbatch=1, rank=place, ranks=ranks) as loader:

        def once_through() -> None:
            for _ in range(words // (row * ranks)):
                step, batches = next(loader)
                engine.train_step(batches, step=step, lr=0.025)

        while rounds.recv():
            rounds.send(timed(once_through))
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

    def begin(self) -> None:
        for pipe in self.pipes:
            pipe.send(True)

    def took(self) -> Took:
        """Seconds a word."""
        self.begin()
        return self.ended()

    def ended(self) -> Took:
        walls, cpus = zip(*(pipe.recv() for pipe in self.pipes), strict=True)
        return Took(max(walls) / self.words, sum(cpus) / self.words)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(False)


class TwoRuns:
    """Two runs of one rank at once, which learn the text once each."""

    def __init__(self, folder: Path, row: int, words: int) -> None:
        self.runs = [Ours(1, folder, row, words) for _ in range(2)]

    def took(self) -> Took:
        for run in self.runs:
            run.begin()
        both = [run.ended() for run in self.runs]
        return Took(max(took.wall for took in both) / 2, sum(took.cpu for took in both) / 2)

    def close(self) -> None:
        for run in self.runs:
            run.close()


class Gensim:
    """The same text as lists of strings."""

    def __init__(self, workers: int, text: list[list[str]]) -> None:
        self.text = text
        self.model = gensim.models.Word2Vec(
            vector_size=WIDTH, sg=1, negative=5, window=5, min_count=1, sample=0, workers=workers, seed=1
        )
        self.model.build_vocab(text)

    def took(self) -> Took:
        took = timed(lambda: self.model.train(self.text, total_examples=len(self.text), epochs=1))
        words = sum(map(len, self.text))
        return Took(took.wall / words, took.cpu / words)


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--words", default=2_000_000, short=40_000)
    arguments.add("--row", default=100_000, short=10_000)
    arguments.add("--rounds", default=3, short=1)
    options = arguments.read()
    text = draw(options.words)
    lists = [[str(word) for word in document] for document in text.tolist()]
    seen: dict[str, list[Took]] = {}
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), text)
        ours: dict[str, Ours | TwoRuns] = {
            f"ours, ranks: {ranks}": Ours(ranks, Path(name), options.row, options.words) for ranks in (1, 2)
        }
        ours["ours, two runs"] = TwoRuns(Path(name), options.row, options.words)
        contenders = {**ours, **{f"gensim, workers: {workers}": Gensim(workers, lists) for workers in (1, 2)}}
        for contender in ours.values():
            contender.took()  # compiles
        for _ in range(options.rounds):
            for name_, contender in contenders.items():
                seen.setdefault(name_, []).append(contender.took())
        for contender in ours.values():
            contender.close()
    print(f"{'':<20}{'words/s, median':>18}{'slowest':>12}{'fastest':>12}{'words/CPU s, median':>22}")
    for name_, rounds in seen.items():
        speeds, of_processors = [1 / took.wall for took in rounds], [1 / took.cpu for took in rounds]
        print(f"{name_:<20}{statistics.median(speeds):>18,.0f}{min(speeds):>12,.0f}{max(speeds):>12,.0f}", end="")
        print(f"{statistics.median(of_processors):>22,.0f}")
    for clock, suffix in (("wall", ""), ("cpu", "_by_cpu")):
        one, two, apart, their_one, their_two = (
            statistics.median(1 / getattr(took, clock) for took in rounds) for rounds in seen.values()
        )
        # Where two ranks need as many seconds of the processors as one they are twice as fast on as many cores.
        scaled = two / one * (1 if clock == "wall" else 2)
        print(f"METRIC words_over_gensim_one_core{suffix} {one / their_one:.2f} ratio goal >=1.0")
        print(f"METRIC words_over_gensim_two_cores{suffix} {two / their_two:.2f} ratio goal >=1.0")
        print(f"METRIC words_two_ranks_over_one{suffix} {scaled:.2f} ratio goal >=1.3")
        print(f"METRIC words_two_ranks_over_two_runs{suffix} {two / apart:.2f} ratio goal >=0.9")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
