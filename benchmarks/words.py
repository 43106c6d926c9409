"""Skip-gram words per second on one core and on two, compared with gensim on the same text and settings.

    python benchmarks/words.py [--words 2000000] [--sequence 100000] [--rounds 3]

The text has 50,000 distinct words with frequencies by Zipf's law, in documents of 1,000 words. Vectors have width 100;
the window is 5 words with five negative samples, without subsampling. megaptm reads shards by its loader on one rank
and on two, and as two independent runs at once, which is the most that two cores can do. gensim has lists of words in
memory, with one worker and two. All take turns; a round is one pass over the text. Words per second of CPU time, of all
threads and processes together, depend less on other load of the machine.
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
from megaptm.families.word_vectors import WORD2VEC, WordSize, WordSpec
from megaptm.families.word_vectors.windows import SkipGram
from megaptm.objectives import SpecialTokens

VOCABULARY, WIDTH, DOCUMENT = 50_000, 100, 1_000
TASK = SkipGram(min_count=1, subsample=0.0)
SPECIAL = SpecialTokens(size=VOCABULARY + 1, end=0, specials=frozenset({0}))


class Times(NamedTuple):
    """Wall time and CPU time in seconds."""

    wall: float
    cpu: float


def measure_call(train: Callable[[], object]) -> Times:
    wall, cpu = time.perf_counter(), time.process_time()
    train()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def sample_text(words: int) -> np.ndarray:
    """Return int64 [documents, 1000]."""
    frequencies = 1 / np.arange(1, VOCABULARY + 1)
    rng = np.random.default_rng(0)
    return 1 + rng.choice(VOCABULARY, size=(words // DOCUMENT, DOCUMENT), p=frequencies / frequencies.sum())


def write_corpus(folder: Path, text: np.ndarray) -> None:
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


def run_rank(
    rank: int, ranks: int, folder: str, sequence: int, words: int, pipe: multiprocessing.connection.Connection
) -> None:
    """Train on the text once for each message `True`, and reply with the times. Any other message ends the process."""
    from megaptm.families.word_vectors.engine import WordEngine
    from megaptm.parallel.groups import join_process_group
    from megaptm.train import cpu_tuning

    torch.set_num_threads(1)
    cpu_tuning.tune_for_cpu()
    join_process_group(
        rank=rank,
        world=ranks,
        local_rank=rank,
        init_method=f"file://{folder}/meeting-{os.getpid() if ranks == 1 else ranks}",
    )
    mix = open_mix({folder: 1.0}, objective=TASK, sequence=sequence, seed=1, special=SPECIAL)
    counts = np.bincount(sample_text(words).reshape(-1), minlength=SPECIAL.size)
    spec = WordSpec(family=WORD2VEC, size=WordSize(width=WIDTH), vocabulary=SPECIAL.size)
    engine = WordEngine(spec, Layout(data=ranks), TASK, seed=1, special=SPECIAL.specials, count_words=lambda *_: counts)
    engine.init_weights()
    with Loader(mix, batch=ranks, microbatch=1, rank=rank, ranks=ranks) as loader:

        def train_once() -> None:
            for _ in range(words // (sequence * ranks)):
                step, batches = next(loader)
                engine.train_step(batches, step=step, lr=0.025)

        while pipe.recv():
            pipe.send(measure_call(train_once))
    os._exit(0)


class MegaptmRun:
    """Ranks that wait for a message to start a round."""

    def __init__(self, ranks: int, folder: Path, sequence: int, words: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        pairs = [spawn.Pipe() for _ in range(ranks)]
        self.pipes = [pipe for pipe, _ in pairs]
        self.words = words // (sequence * ranks) * sequence * ranks
        for rank, (_, child_pipe) in enumerate(pairs):
            arguments = (rank, ranks, str(folder), sequence, words, child_pipe)
            spawn.Process(target=run_rank, args=arguments, daemon=True).start()

    def start(self) -> None:
        for pipe in self.pipes:
            pipe.send(True)

    def measure(self) -> Times:
        """Return the times of a round per word."""
        self.start()
        return self.wait()

    def wait(self) -> Times:
        walls, cpus = zip(*(pipe.recv() for pipe in self.pipes), strict=True)
        return Times(max(walls) / self.words, sum(cpus) / self.words)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(False)


class TwoRuns:
    """Two independent runs of one rank at the same time."""

    def __init__(self, folder: Path, sequence: int, words: int) -> None:
        self.runs = [MegaptmRun(1, folder, sequence, words) for _ in range(2)]

    def measure(self) -> Times:
        for run in self.runs:
            run.start()
        times = [run.wait() for run in self.runs]
        return Times(max(run.wall for run in times) / 2, sum(run.cpu for run in times) / 2)

    def close(self) -> None:
        for run in self.runs:
            run.close()


class GensimRun:
    """gensim, which gets the text as lists of strings."""

    def __init__(self, workers: int, text: list[list[str]]) -> None:
        self.text = text
        self.model = gensim.models.Word2Vec(
            vector_size=WIDTH, sg=1, negative=5, window=5, min_count=1, sample=0, workers=workers, seed=1
        )
        self.model.build_vocab(text)

    def measure(self) -> Times:
        times = measure_call(lambda: self.model.train(self.text, total_examples=len(self.text), epochs=1))
        words = sum(map(len, self.text))
        return Times(times.wall / words, times.cpu / words)


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--words", default=2_000_000, short=40_000)
    arguments.add("--sequence", default=100_000, short=10_000, help="words per sequence")
    arguments.add("--rounds", default=3, short=1)
    options = arguments.read()
    text = sample_text(options.words)
    lists = [[str(word) for word in document] for document in text.tolist()]
    times: dict[str, list[Times]] = {}
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name), text)
        own: dict[str, MegaptmRun | TwoRuns] = {
            f"megaptm, ranks: {ranks}": MegaptmRun(ranks, Path(name), options.sequence, options.words)
            for ranks in (1, 2)
        }
        own["megaptm, two runs"] = TwoRuns(Path(name), options.sequence, options.words)
        contenders = {**own, **{f"gensim, workers: {workers}": GensimRun(workers, lists) for workers in (1, 2)}}
        for contender in own.values():
            contender.measure()  # compiles
        for _ in range(options.rounds):
            for name_, contender in contenders.items():
                times.setdefault(name_, []).append(contender.measure())
        for contender in own.values():
            contender.close()
    print(f"{'':<20}{'words/s, median':>18}{'slowest':>12}{'fastest':>12}{'words/CPU s, median':>22}")
    for name_, rounds in times.items():
        speeds, cpu_speeds = [1 / round_.wall for round_ in rounds], [1 / round_.cpu for round_ in rounds]
        print(f"{name_:<20}{statistics.median(speeds):>18,.0f}{min(speeds):>12,.0f}{max(speeds):>12,.0f}", end="")
        print(f"{statistics.median(cpu_speeds):>22,.0f}")
    for clock, suffix in (("wall", ""), ("cpu", "_by_cpu")):
        one_rank, two_ranks, two_runs, one_worker, two_workers = (
            statistics.median(1 / getattr(round_, clock) for round_ in rounds) for rounds in times.values()
        )
        # With the CPU time of one rank, two ranks are twice as fast on two cores.
        scaled = two_ranks / one_rank * (1 if clock == "wall" else 2)
        print(f"METRIC words_over_gensim_one_core{suffix} {one_rank / one_worker:.2f} ratio goal >=1.0")
        print(f"METRIC words_over_gensim_two_cores{suffix} {two_ranks / two_workers:.2f} ratio goal >=1.0")
        print(f"METRIC words_two_ranks_over_one{suffix} {scaled:.2f} ratio goal >=1.3")
        print(f"METRIC words_two_ranks_over_two_runs{suffix} {two_ranks / two_runs:.2f} ratio goal >=0.9")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
