"""Kinds of faults. Each is made for real: with signals, failing calls of the C library, a full disk, dead servers."""

from __future__ import annotations

import errno
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from megaptm.track.journal import UploadState
from tests.faults.random_shard import train_with_random_shard
from tests.processes import environment_of, is_alive, is_stopped, send

if TYPE_CHECKING:
    from tests.faults.job import Job

Service = Literal["disk", "s3", "tracker"]


@dataclass(frozen=True)
class Fault:
    """A fault. It lasts until it happened."""

    detail: str
    undo: Callable[[], object] = lambda: None
    seconds: float = 0.0
    """Minimum seconds until it is undone."""
    happened: Callable[[], bool] = lambda: True
    """Whether there is evidence that it happened, besides the sign of its kind."""
    lasts_until_detected: bool = False
    """Whether it lasts until the sign of its kind is visible."""
    is_awaited: bool = False
    """Whether it is armed and happens at a later call, from which times count."""


@dataclass(frozen=True)
class Kind:
    """Kind of fault, and how the run must react."""

    name: str
    make: Callable[[Job, random.Random], Fault]
    until: Literal["restart", "checkpoint", "step"] = "restart"
    """Recovery: the run has restarted and made a new step; it has saved again; or it has made new steps."""
    sign: str | None = "worker-lost"
    """Kind of event, or text in a log, that must show the fault. None: it is absorbed without a message."""
    service: Service | None = None
    """Service that the kind needs."""


# Processes


def kill(victim: str, number: signal.Signals = signal.SIGKILL) -> Callable[[Job, random.Random], Fault]:
    def make(job: Job, rng: random.Random) -> Fault:
        processes = job.processes_of(victim)
        chosen = processes if victim == "all" else [rng.choice(processes)]
        rank = environment_of(chosen[0]).get("RANK")
        send(chosen, number)
        return Fault(f"rank {rank}" if rank and len(chosen) == 1 else "")

    return make


def halt(victim: str, seconds: float) -> Callable[[Job, random.Random], Fault]:
    """Stop processes for some seconds."""

    def make(job: Job, rng: random.Random) -> Fault:
        processes = job.processes_of(victim)
        send(processes, signal.SIGSTOP)
        return Fault(
            f"{seconds:.0f} s",
            lambda: send(processes, signal.SIGCONT),
            seconds,
            happened=lambda: all(map(is_stopped, filter(is_alive, processes))),
        )

    return make


# Calls of the C library (tests/checkpoint/faults.c)


def arm(call: str, pattern: str, number: int, *, victim: str | None = None) -> Callable[..., Fault]:
    """Let the next `call` on a path fail with an error number, or with minus the number of a signal. `victim`: kill a
    process, too, so that the run reads its files again."""

    def make(job: Job, rng: random.Random) -> Fault:
        path = pattern.format(rank=rng.randrange(job.num_ranks))
        happened, disarm = job.arm(call, f"{path} {number}")
        if victim is not None:
            send([rng.choice(job.processes_of(victim))], signal.SIGKILL)
        detail = f"{call} {path.rpartition('*/')[2]}"
        return Fault(detail, disarm, happened=happened, is_awaited=victim is None)

    return make


RANK_FILE = "*/rank-{rank:05d}.safetensors"
SAVE_PHASES = {
    "a rank writes": ("write", RANK_FILE),
    "a rank syncs": ("fsync", RANK_FILE),
    "a record is renamed": ("rename", "*/.rank-{rank:05d}.record.json.*"),
    "the index is written": ("write", "*/.index-00000.json.*"),
    "records are removed": ("unlink", "*/rank-{rank:05d}.record.json"),
    "the manifest is renamed": ("rename", "*/.manifest.json.*"),
    "the checkpoint is renamed": ("rename", "*.writing-????????????????"),
    "the folder is synced": ("fsync", "*/checkpoints"),
    "an old checkpoint is removed": ("unlink", "*.removed-*/rank-{rank:05d}.safetensors"),
}
"""Phases of a save, each with the call and the path at which it can be interrupted."""


# Files


def damage_checkpoint(change: Callable[[Path], None], pattern: str) -> Callable[[Job, random.Random], Fault]:
    """Kill the ranks and damage a file of the newest checkpoint before the run reads it."""

    def make(job: Job, rng: random.Random) -> Fault:
        send(job.processes_of("rank"), signal.SIGKILL)
        path = rng.choice(sorted(job.newest_checkpoint().glob(pattern)))
        change(path)
        return Fault(f"{path.parent.name}/{path.name}")

    return make


def damage_cache(change: Callable[[Path], None]) -> Callable[[Job, random.Random], Fault]:
    """Kill the launcher, with which all processes end, and damage all cached shards before the run reads them. It
    happened if one of them is downloaded again."""

    def make(job: Job, rng: random.Random) -> Fault:
        send(job.processes_of("launcher"), signal.SIGKILL)
        paths = sorted(job.cache.glob("*/train-*.tar"))
        for path in paths:
            change(path)
        names, before = tuple(path.name for path in paths), len(job.s3.requests)
        return Fault(
            f"{len(paths)} shards",
            happened=lambda: any(request.endswith(names) for request in job.s3.requests[before:]),
        )

    return make


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def tear_journals(job: Job, rng: random.Random) -> Fault:
    """Kill all processes, and leave an incomplete last line in the journals."""
    send(job.processes_of("all"), signal.SIGKILL)
    for name in ("events.jsonl", "metrics.jsonl"):
        with (job.run / name).open("a") as file:
            file.write('{"time": 1')
    return Fault("events.jsonl, metrics.jsonl")


def fill_disk(job: Job, rng: random.Random) -> Fault:
    """Let another program write as much as it can, also where the run removes an old checkpoint to make room."""
    ballast = job.disk / "ballast"
    loop = f"while :; do cat /dev/zero >> '{ballast}' 2>/dev/null; sleep 0.1; done"
    writer = subprocess.Popen(["sh", "-c", loop], start_new_session=True)

    def undo() -> None:
        os.killpg(writer.pid, signal.SIGKILL)
        writer.wait()
        ballast.unlink()

    return Fault("8 s", undo, 8.0, happened=lambda: not os.statvfs(job.disk).f_bavail)


# Servers


def lose_s3(job: Job, rng: random.Random) -> Fault:
    job.s3.down()
    return Fault("at least 8 s", job.s3.up, 8.0, lasts_until_detected=True)


def disturb_s3(*kinds: str, times: int, seconds: float = 0.0) -> Callable[[Job, random.Random], Fault]:
    def make(job: Job, rng: random.Random) -> Fault:
        job.s3.injected.clear()
        for kind in kinds:
            job.s3.inject(kind, match=r"GET .*\.(tar|npy)$", times=times, seconds=seconds)
        count = times * len(kinds)
        return Fault(f"{count} replies", job.s3.faults.clear, happened=lambda: len(job.s3.injected) == count)

    return make


def wait_for_upload(job: Job) -> None:
    """Wait until the tracker has all metrics so far: a job reports an outage once."""
    size = (job.run / "metrics.jsonl").stat().st_size
    job.wait_for(lambda: (state := UploadState.load(job.run)) and state.uploaded_bytes >= size, "metrics not uploaded")


def kill_tracker(job: Job, rng: random.Random) -> Fault:
    wait_for_upload(job)
    job.tracker.kill()
    return Fault("at least 8 s", job.tracker.launch, 8.0, lasts_until_detected=True)


def halt_tracker(job: Job, rng: random.Random) -> Fault:
    wait_for_upload(job)
    group = job.tracker.process.pid
    os.killpg(group, signal.SIGSTOP)
    return Fault("at least 12 s", lambda: os.killpg(group, signal.SIGCONT), 12.0, lasts_until_detected=True)


def lock_database(job: Job, rng: random.Random) -> Fault:
    wait_for_upload(job)
    database = sqlite3.connect(job.tracker.folder / "m.db", check_same_thread=False)
    database.execute("begin exclusive")
    return Fault("at least 8 s", database.close, 8.0, lasts_until_detected=True)


# Clocks and numbers


def set_clock(sign: int) -> Callable[[Job, random.Random], Fault]:
    def make(job: Job, rng: random.Random) -> Fault:
        seconds = sign * rng.randint(60, 7200)
        job.shift_clock(seconds)
        # A rank takes the armed fault when its clock is ahead of the monotonic one by this difference.
        happened, disarm = job.arm("clock", str(time.time() + job.clock_offset - time.monotonic()))
        return Fault(f"{seconds:+,} s", disarm, happened=happened)

    return make


def corrupt(tensor: str, value: str) -> Callable[[Job, random.Random], Fault]:
    """Corrupt a tensor of rank 0 (`tests.faults.callback`)."""

    def make(job: Job, rng: random.Random) -> Fault:
        happened, disarm = job.arm(tensor, value)
        return Fault("rank 0", disarm, happened=happened, is_awaited=True)

    return make


def train_on_random_text(job: Job, rng: random.Random) -> Fault:
    folder = job.folder / f"random-{rng.getrandbits(32)}"
    tokenizer = job.services.folder / "tokenizer"
    return Fault(train_with_random_shard(folder, tokenizer=tokenizer, num_ranks=job.num_ranks, rng=rng))


KILLED = -signal.SIGKILL
KINDS = [
    Kind("kill a rank", kill("rank")),
    Kind("kill a loader", kill("loader")),
    Kind("kill the launcher", kill("launcher"), sign="ended"),
    Kind("kill all processes", kill("all"), sign="ended"),
    Kind("preempt the job", kill("launcher", signal.SIGTERM), sign="stop-signal"),
    Kind("stop a rank", kill("rank", signal.SIGSTOP), sign="hang"),
    Kind("stop a loader", kill("loader", signal.SIGSTOP), sign="hang"),
    Kind("stop the launcher", halt("launcher", 6.0), "step", sign=None),
    Kind("suspend the machine", halt("all", 15.0), "step", sign=None),
    *(Kind(f"kill while {phase}", arm(call, path, KILLED)) for phase, (call, path) in SAVE_PHASES.items()),
    Kind("stop while a rank writes", arm("write", RANK_FILE, -signal.SIGSTOP), sign="hang"),
    *(
        Kind(f"EIO while {phase}", arm(call, path, errno.EIO), "checkpoint", sign=None)
        for phase, (call, path) in SAVE_PHASES.items()
    ),
    Kind("EIO while a checkpoint is read", arm("read", RANK_FILE, errno.EIO, victim="rank")),
    Kind("EIO while the manifest is opened", arm("open", "*/manifest.json", errno.EIO, victim="rank")),
    Kind("EIO while a journal is written", arm("write", "*/metrics.jsonl", errno.EIO), "step", sign=None),
    Kind("EIO while a shard is opened", arm("open", "*/train-*.tar", errno.EIO), "step", sign=None),
    Kind("EIO while a shard is read", arm("read", "*/train-*.tar", errno.EIO), "step", sign=None),
    Kind("truncated file of a checkpoint", damage_checkpoint(truncate, "rank-*"), sign="damaged-checkpoint"),
    Kind("flipped bit in a checkpoint", damage_checkpoint(flip, "rank-*"), sign="damaged-checkpoint"),
    Kind("truncated manifest", damage_checkpoint(truncate, "manifest.json"), sign="damaged-checkpoint"),
    Kind("flipped bit in an index", damage_checkpoint(flip, "index-*"), sign="damaged-checkpoint"),
    Kind("torn journals", tear_journals, sign="ended"),
    Kind("full disk", fill_disk, "checkpoint", sign="was not saved", service="disk"),
    Kind("truncated shards in the cache", damage_cache(truncate), sign="ended", service="s3"),
    Kind("flipped bits in the cache", damage_cache(flip), sign="ended", service="s3"),
    Kind("S3 is down", lose_s3, "step", sign="does not answer", service="s3"),
    Kind("S3 is slow", disturb_s3("stall", times=20, seconds=4.0), "step", sign=None, service="s3"),
    Kind("S3 returns wrong bytes", disturb_s3("corrupt", "truncate", times=3), "step", sign=None, service="s3"),
    Kind("S3 fails", disturb_s3("error", "reset", times=3), "step", sign=None, service="s3"),
    Kind("tracker is killed", kill_tracker, "step", sign="training continues", service="tracker"),
    Kind("tracker is stopped", halt_tracker, "step", sign="training continues", service="tracker"),
    Kind("tracker's database is locked", lock_database, "step", sign="training continues", service="tracker"),
    Kind("clock set forward", set_clock(+1), "step", sign=None),
    Kind("clock set back", set_clock(-1), "step", sign=None),
    Kind("NaN in a gradient", corrupt("gradient", "nan"), sign="back"),
    Kind("NaN in a weight of one replica", corrupt("weight", "nan")),
    Kind("noise in one replica", corrupt("weight", "noise")),
    Kind("shard of random text", train_on_random_text, "step", sign=None),
]


def select_kinds(words: list[str]) -> list[Kind]:
    """Return the kinds whose names contain one of the words; all if there is none."""
    return [kind for kind in KINDS if not words or any(word in kind.name for word in words)]
