"""Saving and loading of checkpoints, compared with megatron-core and torch on the same tensors and disk.

    python benchmarks/checkpoint.py [--rounds 5] [--folder FOLDER]

The tensors are the weights and moments of a GPT-2 of width 768 (about 400 MB in fp32) in one process. All contenders
flush the data to the disk before a checkpoint counts as saved. In the background, the stall is measured: the seconds
until the tensors may change. They change at once here. Without a GPU, megatron-core forks instead of copying.

megaptm hashes all bytes while saving and verifies them before loading. The others do not, so loading is also measured
without verification. Contenders take turns, each after `sync`. The fastest round counts, because other load only adds
time. All read the files from the page cache.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from common.alone import join_alone
from common.options import Options
from torch import Tensor

LAYERS, VOCABULARY = 4, 8192
KINDS = ("weight", "exp_avg", "exp_avg_sq")


@dataclass
class Contender:
    save: Callable[[Path], Callable[[], object] | None]
    """Function that returns when the tensors may change. If it returns a function, a call of that completes saving."""
    load: Callable[[Path], object]
    stalling: list[float] = field(default_factory=list)
    saving: list[float] = field(default_factory=list)
    loading: list[float] = field(default_factory=list)


def make_tensors(width: int) -> dict[str, Tensor]:
    shapes = {"token.weight": (VOCABULARY, width)}
    for layer in range(LAYERS):
        matrices = {"qkv": (3 * width, width), "output": (width, width), "up": (4 * width, width)}
        for name, shape in {**matrices, "down": (width, 4 * width)}.items():
            shapes[f"decoder.{layer}.{name}.weight"] = shape
            shapes[f"decoder.{layer}.{name}.bias"] = (shape[0],)
    generator = torch.Generator().manual_seed(0)
    return {
        f"{kind}/{name}": torch.randn(shape, generator=generator) for kind in KINDS for name, shape in shapes.items()
    }


def megaptm(tensors: dict[str, Tensor], *, verify: bool = False, background: bool = False) -> Contender:
    from megaptm.checkpoint.host_staging import HostStaging
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.checkpoint.tensors import TensorPiece
    from megaptm.parallel.background import Background

    copies, work = HostStaging(), Background()

    def save(folder: Path) -> Callable[[], object] | None:
        store = CheckpointStore(folder, fence=lambda: True)
        store.prepare(1, sum(tensor.nbytes for tensor in tensors.values()))
        zeros = {name: (0,) * tensor.dim() for name, tensor in tensors.items()}
        pieces = [TensorPiece(name, t.shape, zeros[name], t.shape, t) for name, t in tensors.items()]
        if not background:
            store.write(1, 0, pieces)
            store.commit(1, {"step": 1}, ranks=1)
            return None
        work.begin(
            partial(store.write, 1, 0, copies.copy_pieces(pieces)), lambda: store.commit(1, {"step": 1}, ranks=1)
        )
        return work.finish

    def load(folder: Path) -> None:
        checkpoint = CheckpointStore(folder).newest(verify=verify)
        assert checkpoint is not None
        reader = checkpoint.reader
        for name, tensor in tensors.items():
            tensor.copy_(reader.read(name))

    return Contender(save, load)


def megatron(tensors: dict[str, Tensor], *, background: bool = False) -> Contender:
    # Import through the engine, which lets megatron-core run without a GPU.
    from megaptm.parallel import cpu  # noqa: F401, I001
    from megatron.core.dist_checkpointing import ShardedTensor, load, save
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

    queue = AsyncCallsQueue()

    def sharded() -> dict[str, ShardedTensor]:
        return {name: ShardedTensor.from_rank_offsets(name, tensor) for name, tensor in tensors.items()}

    def read(folder: Path) -> None:
        loaded = load(sharded(), str(folder))
        for name, tensor in tensors.items():
            # Read in place, as its optimizer requests; some versions copy.
            if loaded[name].data_ptr() != tensor.data_ptr():
                tensor.copy_(loaded[name])

    def save_async(folder: Path) -> Callable[[], object]:
        queue.schedule_async_request(save(sharded(), str(folder), async_sharded_save=True))
        return lambda: queue.maybe_finalize_async_calls(blocking=True)

    return Contender(save_async if background else lambda folder: save(sharded(), str(folder)), read)


def torch_dcp(tensors: dict[str, Tensor], *, background: bool = False) -> Contender:
    from torch.distributed import checkpoint

    def save(folder: Path) -> Callable[[], object] | None:
        if background:
            return checkpoint.async_save(dict(tensors), checkpoint_id=folder).result
        checkpoint.save(dict(tensors), checkpoint_id=folder)
        return None

    return Contender(save, lambda folder: checkpoint.load(dict(tensors), checkpoint_id=folder))


def run_round(contender: Contender, tensors: dict[str, Tensor], folder: Path) -> None:
    """Save, clear the tensors, load, and check that they are restored to the last bit."""
    sums = {name: tensor.sum().item() for name, tensor in tensors.items()}
    folder.mkdir()
    os.sync()
    started = time.perf_counter()
    finish = contender.save(folder)
    stalled = time.perf_counter()
    for tensor in tensors.values():
        tensor.zero_()
    wiped = time.perf_counter()
    if finish is not None:
        finish()
    saved = time.perf_counter()
    contender.load(folder)
    loaded = time.perf_counter()
    assert {name: tensor.sum().item() for name, tensor in tensors.items()} == sums
    contender.stalling.append(stalled - started)
    # Clearing is not part of saving, if saving was complete.
    contender.saving.append(saved - started - (wiped - stalled if finish is None else 0))
    contender.loading.append(loaded - saved)
    shutil.rmtree(folder)


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--rounds", default=5, short=1)
    arguments.add("--width", default=768, short=64, help="width of the model whose tensors are saved")
    arguments.add_argument("--folder", type=Path, help="folder on the disk to measure; default: a temporary folder")
    options = arguments.read()
    warnings.simplefilter("ignore")

    join_alone()
    tensors = make_tensors(options.width)
    contenders = {
        "megaptm": megaptm(tensors, verify=True),
        "megaptm, not verifying": megaptm(tensors, verify=False),
        "megaptm, background": megaptm(tensors, background=True),
        "megatron-core": megatron(tensors),
        "megatron-core, background": megatron(tensors, background=True),
        "torch DCP": torch_dcp(tensors),
        "torch DCP, background": torch_dcp(tensors, background=True),
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for round_index in range(options.rounds + 1):
            # A new order in each round, because the disk may still be busy with the previous contender.
            for contender in random.Random(round_index).sample(list(contenders.values()), len(contenders)):
                run_round(contender, tensors, Path(folder) / "run")
                if round_index == 0:  # warm-up
                    for seconds in (contender.stalling, contender.saving, contender.loading):
                        seconds.clear()
    print_results(contenders, sum(tensor.nbytes for tensor in tensors.values()) / 1e6)


def print_results(contenders: dict[str, Contender], megabytes: float) -> None:
    columns = "".join(f"{quantity:>8}{'median':>8}{'MB/s':>8}" for quantity in ("stall s", "save s", "load s"))
    print(f"{f'{megabytes:.0f} MB':<26}{columns}")
    for name, contender in contenders.items():
        cells = []
        for seconds in (contender.stalling, contender.saving, contender.loading):
            fastest = min(seconds)
            cells.append(f"{fastest:>8.2f}{statistics.median(seconds):>8.2f}{megabytes / fastest:>8.0f}")
        print(f"{name:<26}{''.join(cells)}")
    own, unverified = contenders["megaptm"], contenders["megaptm, not verifying"]
    stall = min(contenders["megaptm, background"].stalling)
    print(f"METRIC checkpoint_stall_share {stall / min(own.saving):.3f} ratio goal <=0.2")
    for name, label in (("megatron-core", "megatron"), ("torch DCP", "dcp")):
        save = min(contenders[name].saving) / min(own.saving)
        load = min(contenders[name].loading) / min(unverified.loading)
        stalls = min(contenders[f"{name}, background"].stalling) / stall
        print(f"METRIC checkpoint_stall_over_{label} {stalls:.3f} ratio goal >=1.0")
        print(f"METRIC checkpoint_save_over_{label} {save:.3f} ratio goal >=1.0")
        print(f"METRIC checkpoint_load_over_{label} {load:.3f} ratio goal >=1.0")
    verifying = max(min(own.loading) - min(unverified.loading), 1e-6)
    print(f"METRIC checkpoint_verify_speed {megabytes / verifying:.0f} MB/s goal >=1000")


if __name__ == "__main__":
    main()
