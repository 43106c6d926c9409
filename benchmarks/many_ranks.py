"""Start and stop of a run of GPT-3 175B on 16,384 ranks: seconds and bytes of one rank, simulated on one machine.

    python benchmarks/many_ranks.py [--data 128] [--folder FOLDER]

The records, heartbeats and shards are those of tensor 8 x pipeline 16 x data 128 with the distributed optimizer. The
code of a run handles them, one rank after the other. Tensor files are empty files of the right size, so times have no
tensor data: each rank writes and hashes its own. The bytes are those that the process reads and writes
(`/proc/self/io`). Goal: under 5 seconds for each part and rank.

- index: one of 128 ranks turns their records into an index
- commit: rank 0 writes the manifest
- remove: rank 0 removes an old checkpoint
- resume: a rank reads the manifest and the indexes of its tensors
- watch: a watchdog reads the heartbeats of all ranks once, of every five seconds
- verdicts: a data rank opens a window of 8 shards that others have verified
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

from common.options import Options

from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.checkpoint.files import remove_tree
from megaptm.checkpoint.records import FileRecord, StoredPiece
from megaptm.checkpoint.store import RANKS_PER_INDEX, CheckpointStore
from megaptm.data.shared_checks import Verdicts
from megaptm.resilience.heartbeat import Heartbeat, beat_file
from megaptm.resilience.watchdog import Watchdog, WatchdogLimits

WIDTH, LAYERS, VOCABULARY = 12288, 96, 51200
KINDS = ("weight", "exp_avg", "exp_avg_sq")
HEADER_BYTES, ELEMENT_BYTES = 4096, 4
STEP = 1000
WINDOW, SHARD_BYTES = 8, 1 << 30


@dataclass(frozen=True)
class Parameter:
    """Parameter of the model, divided along `axis` among tensor ranks (None: not divided)."""

    name: str
    shape: tuple[int, ...]
    axis: int | None


def stage_parameters(stage: int, stages: int) -> list[Parameter]:
    """Return the parameters of a pipeline stage."""
    wide, narrow = (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)
    parameters = [Parameter("embed.token.weight", (VOCABULARY, WIDTH), 0)] if stage in (0, stages - 1) else []
    for layer in range(stage * LAYERS // stages, (stage + 1) * LAYERS // stages):
        for name, shape, axis in (
            ("attention.qkv.weight", (3 * WIDTH, WIDTH), 0),
            ("attention.qkv.bias", (3 * WIDTH,), 0),
            ("attention.output.weight", (WIDTH, WIDTH), 1),
            ("attention.output.bias", (WIDTH,), None),
            ("attention.norm.weight", (WIDTH,), None),
            ("attention.norm.bias", (WIDTH,), None),
            ("feedforward.up.weight", wide, 0),
            ("feedforward.up.bias", wide[:1], 0),
            ("feedforward.down.weight", narrow, 1),
            ("feedforward.down.bias", narrow[:1], None),
            ("feedforward.norm.weight", (WIDTH,), None),
            ("feedforward.norm.bias", (WIDTH,), None),
        ):
            parameters.append(Parameter(f"decoder.{layer}.{name}", shape, axis))
    return parameters


@cache
def stage_slices(
    stage: int, stages: int, tensor: int, tensors: int
) -> list[tuple[Parameter, tuple[int, ...], tuple[int, ...], int]]:
    """Return the parameters of a stage on one tensor rank, each with offset, shape and number of elements of its
    slice."""
    slices = []
    for parameter in stage_parameters(stage, stages):
        offset, block = [0] * len(parameter.shape), list(parameter.shape)
        if parameter.axis is not None:
            block[parameter.axis] //= tensors
            offset[parameter.axis] = tensor * block[parameter.axis]
        slices.append((parameter, tuple(offset), tuple(block), math.prod(block)))
    return slices


@dataclass(frozen=True)
class SimulatedLayout:
    tensor: int
    pipeline: int
    data: int

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    def stage(self, rank: int) -> int:
        return rank // (self.tensor * self.data)

    def record(self, rank: int) -> FileRecord:
        """Return the record of a rank's file: a flat range of its stage's slices, divided among data ranks."""
        tensor, data = rank % self.tensor, rank // self.tensor % self.data
        slices = stage_slices(self.stage(rank), self.pipeline, tensor, self.tensor)
        total = sum(count for *_, count in slices)
        first, stop = total * data // self.data, total * (data + 1) // self.data
        pieces, start, at = [], 0, HEADER_BYTES
        for parameter, offset, block, count in slices:
            span = (max(0, first - start), min(count, stop - start))
            start += count
            for kind in KINDS if span[0] < span[1] else ():
                name = f"{kind}/{parameter.name}"
                pieces.append(StoredPiece(name, "F32", parameter.shape, offset, block, span, at))
                at += (span[1] - span[0]) * ELEMENT_BYTES
        return FileRecord(f"rank-{rank:05d}.safetensors", at, f"{rank:064x}", tuple(pieces))


class Measured:
    """Wall and CPU seconds, and bytes read and written, of the ranks of one part."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds, self.cpu_seconds, self.num_bytes = 0.0, 0.0, 0
        """Maximum over ranks."""

    @contextmanager
    def rank(self) -> Iterator[None]:
        wall, cpu, before = time.perf_counter(), time.process_time(), _transferred_bytes()
        yield
        self.num_bytes = max(self.num_bytes, _transferred_bytes() - before)
        self.seconds = max(self.seconds, time.perf_counter() - wall)
        self.cpu_seconds = max(self.cpu_seconds, time.process_time() - cpu)

    def show(self, note: str) -> None:
        print(
            f"{self.name:<10}{self.seconds:>9.3f} s{self.cpu_seconds:>9.3f} s CPU{self.num_bytes / 1e6:>10.3f} MB  "
            f"{note}",
            flush=True,
        )


def _transferred_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def measure_checkpoint(layout: SimulatedLayout, run: Path) -> list[Measured]:
    index, commit, resume, remove = map(Measured, ("index", "commit", "resume", "remove"))
    store = CheckpointStore(run, fence=lambda: True)
    store.prepare(STEP, expected_bytes=0)
    folder = store._writing_path(STEP)
    record_bytes = 0
    for rank in range(layout.ranks):
        record = layout.record(rank)
        content = json.dumps(record.to_json()).encode()
        record_bytes += len(content)
        store._record_path(folder / record.name).write_bytes(content)
        with (folder / record.name).open("wb") as file:
            file.truncate(record.size)
    for leader in range(0, layout.ranks, RANKS_PER_INDEX):
        with index.rank():
            store.write_index(STEP, leader, layout.ranks)
    with commit.rank():
        checkpoint = store.commit(STEP, {"step": STEP}, layout.ranks)
    index.show(f"{len(checkpoint.indexes)} indexes, {record_bytes / 1e6:.1f} MB of records of all ranks")
    commit.show(f"manifest of {(checkpoint.folder / 'manifest.json').stat().st_size / 1e6:.2f} MB")
    num_read = 0
    with patch.object(Checkpoint, "verify_file", lambda *_: None):  # of the rank's share of tensor data
        for rank in (0, layout.ranks // 2, layout.ranks - 1):
            with resume.rank():
                loaded = CheckpointStore(run).load(STEP)
                loaded.verify(part=rank, parts=layout.ranks)
                reader = loaded.reader
                for parameter in stage_parameters(layout.stage(rank), layout.pipeline):
                    for kind in KINDS:
                        assert reader.shape(f"{kind}/{parameter.name}") == parameter.shape
            num_read = max(num_read, len(loaded._files))
    resume.show(
        f"{num_read} of {len(checkpoint.indexes)} indexes; {layout.ranks * resume.num_bytes / 1e9:,.1f} GB by all"
    )
    with remove.rank():
        remove_tree(checkpoint.folder)
    remove.show(f"{layout.ranks:,} files")
    return [index, commit, resume, remove]


def measure_heartbeats(layout: SimulatedLayout, folder: Path) -> Measured:
    folder.mkdir()
    for rank in range(layout.ranks):
        heartbeat = Heartbeat(rank)
        heartbeat._file = os.open(beat_file(folder, rank), os.O_RDWR | os.O_CREAT)
        heartbeat.enter("step")
        os.close(heartbeat._file)
    watch = Measured("watch")
    watchdog = Watchdog(folder, range(layout.ranks), limits=WatchdogLimits(hang_seconds=300.0), is_rank=True)
    watchdog._last_check -= 10.0
    with watch.rank():
        assert watchdog.check_progress() is None
    assert {state.phase for state in watchdog._states.values()} == {"step"}
    watch.show(f"{len([*folder.iterdir()]):,} files of {layout.ranks:,} ranks")
    return watch


def measure_verdicts(layout: SimulatedLayout, folder: Path) -> tuple[Measured, float]:
    """Return also how often each shard is read for its hash."""
    folder.mkdir()
    shards = {number: folder / f"shard-{number}" for number in range(WINDOW)}
    for path in (*shards.values(), folder / "manifest.json"):
        path.touch()
    reads: Counter[int] = Counter()
    verdicts = Measured("verdicts")
    num_readers = layout.pipeline * layout.data  # tensor rank 0 of each stage
    for reader in range(num_readers):
        own = Verdicts(folder, folder / "manifest.json", "train")
        if reader:
            with verdicts.rank():
                own.check(shards, lambda shard: reads.update([shard]))
        else:
            own.check(shards, lambda shard: reads.update([shard]))
    total = reads.total() / WINDOW
    share = WINDOW * SHARD_BYTES / num_readers / 1e6
    verdicts.show(
        f"{num_readers:,} readers; {share:,.1f} MB hashed by each instead of {WINDOW * SHARD_BYTES / 1e6:,.0f}"
    )
    return verdicts, total


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--tensor", default=8, short=2)
    arguments.add("--pipeline", default=16, short=2)
    arguments.add("--data", default=128, short=64)
    arguments.add_argument("--folder", type=Path, help="folder on the disk to measure; default: a temporary folder")
    options = arguments.read()
    layout = SimulatedLayout(options.tensor, options.pipeline, options.data)
    print(f"{layout.ranks:,} ranks; maximum over the measured ranks")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        parts = measure_checkpoint(layout, Path(folder) / "run")
        parts.append(measure_heartbeats(layout, Path(folder) / "beats"))
        verdicts, num_reads = measure_verdicts(layout, Path(folder) / "verdicts")
    for part in (*parts, verdicts):
        print(f"METRIC many_ranks_{part.name}_seconds {part.seconds:.3f} s goal <=5")
        print(f"METRIC many_ranks_{part.name}_bytes {part.num_bytes / 1e6:.3f} MB goal <=50")
    print(f"METRIC many_ranks_reads_per_shard {num_reads:.2f} reads goal <=1")


if __name__ == "__main__":
    main()
