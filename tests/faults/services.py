"""Services of a run under faults: a corpus, a C library with faults, and the real servers and disk of some kinds."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from megaptm.storage import RetryPolicy
from tests import ROOT
from tests.data.corpora import publish
from tests.storage.faults import Proxy
from tests.storage.server import s3_server
from tests.track.server import TrackingServer

ENCODINGS = Path(sysconfig.get_path("stdlib")) / "encodings"
"""Folder with the text of the corpus."""
URL = "s3://corpora/faults"
DISK_BYTES = 64 << 20
SOURCES = ("tests/checkpoint/faults.c", "tests/faults/clock.c")


@dataclass(frozen=True)
class Services:
    """Corpus, library, and the servers and disk of the selected kinds."""

    folder: Path
    """Folder of the corpus."""
    corpus: str
    """Path or URL from which the run reads it."""
    library: Path
    disk: Path | None = None
    s3: Proxy | None = None
    tracker: TrackingServer | None = None


@contextmanager
def started_services(folder: Path, needed: Collection[str]) -> Iterator[Services]:
    """Build the corpus and the library, and start the needed services: disk, s3, tracker."""
    library = folder / "faults.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", library, *(ROOT / path for path in SOURCES), "-ldl"], check=True
    )
    corpus = build_corpus(ENCODINGS / "*.py", folder / "corpus")
    with ExitStack() as stack:
        s3 = stack.enter_context(s3_server()) if "s3" in needed else None
        if s3 is not None:
            publish(corpus, URL, RetryPolicy(seconds=20, deadline=5))
        tracker = None
        if "tracker" in needed:
            (folder / "mlflow").mkdir()
            tracker = TrackingServer(folder / "mlflow")
            stack.callback(tracker.kill)
            tracker.start()
        disk = stack.enter_context(small_disk(folder / "disk")) if "disk" in needed else None
        yield Services(corpus, URL if s3 else str(corpus), library, disk, s3, tracker)


def build_corpus(files: Path, folder: Path, *, tokenizer: Path | None = None) -> Path:
    """Build a corpus of the files of a pattern. A run reads its small shards one after the other. `tokenizer`: that of
    another corpus."""
    from data_pipeline import commands

    own = [f"tokenizer={tokenizer}"] if tokenizer else ["tokenizer.kind=byte-bpe", "tokenizer.vocabulary=512"]
    options = (f"out={folder}", "workers=0", "validation=0.1", "shard_bytes=4096")
    commands.run_build_command([str(files), *options, *own], console=Console(quiet=True))
    return folder


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of some megabytes, which can be filled."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def can_mount() -> bool:
    """Whether this user may mount a file system that can be filled."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
