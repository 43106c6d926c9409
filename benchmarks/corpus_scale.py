"""Memory and time of a complete build, near deduplication included, for one amount of input and four times as much.

    python benchmarks/corpus_scale.py --mb 1000

All processes of the build are measured: driver, workers, servers of Ray. Goals: under 1.5 GiB resident in each of them,
and time proportional to the input, within 15%.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from common.environments import CACHE
from common.options import Options
from common.text import make_text

STEPS = ["repair-encoding", "normalize-unicode", "drop-empty", "gopher-quality", "gopher-repetition", "scrub"]


class MemoryWatch(threading.Thread):
    """Thread that records the peak memory of a process and its children."""

    def __init__(self, root: int):
        super().__init__(daemon=True)
        self.root = psutil.Process(root)
        self.peak_bytes: dict[str, int] = {}

    def run(self) -> None:
        while self.root.is_running() and self.root.status() != psutil.STATUS_ZOMBIE:
            for process in [self.root, *self.root.children(recursive=True)]:
                try:
                    name, bytes_ = _name(process), process.memory_info().rss
                except (psutil.NoSuchProcess, IndexError):
                    continue
                self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), bytes_)
            time.sleep(0.2)


def _name(process: psutil.Process) -> str:
    command = process.cmdline()
    return "driver" if "corpus" in command else Path(command[0]).name.split()[0].partition("(")[0]


def build(folder: Path, out: Path, options: argparse.Namespace) -> tuple[float, dict[str, int]]:
    """Return the seconds of a build, and the peak resident bytes by kind of process."""
    words = [f"out={out}", f"workers={options.workers}", f"deduplicate.near={options.near}"]
    words += [f"steps=[{', '.join(STEPS)}]", f"tokenizer.vocabulary={options.vocabulary}"]
    start = time.perf_counter()
    command = [sys.executable, "-m", "megaptm", "corpus", "build", str(folder), *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watch = MemoryWatch(process.pid)
    watch.start()
    if process.wait():
        raise SystemExit("the build failed")
    seconds = time.perf_counter() - start
    watch.join()
    return seconds, watch.peak_bytes


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--mb", default=400, short=4, help="megabytes of the larger input")
    arguments.add("--workers", default=2, short=0)
    arguments.add("--vocabulary", default=32_000, short=2_000)
    arguments.add_argument("--near", default="true", help="near deduplication: true or false")
    arguments.add_argument("--work", type=Path, default=CACHE, help="folder in which text is cached")
    options = arguments.read()
    seconds, peak_bytes = {}, {}
    for megabytes in (options.mb // 4, options.mb):
        text = make_text(options.work, megabytes, short=options.short)[0].parent
        with tempfile.TemporaryDirectory() as scratch:
            seconds[megabytes], peak_bytes[megabytes] = build(text, Path(scratch, "corpus"), options)
            size = sum(file.stat().st_size for file in Path(scratch).rglob("*.tar"))
        speed = megabytes / seconds[megabytes]
        memory = ", ".join(
            f"{name} {bytes_ / 2**20:,.0f} MiB" for name, bytes_ in sorted(peak_bytes[megabytes].items())
        )
        print(
            f"{megabytes:>6} MB  {seconds[megabytes]:>7.1f} s  {speed:>6.1f} MB/s  shards {size / 1e6:,.0f} MB",
            flush=True,
        )
        print(f"           {memory}", flush=True)
    small, large = seconds
    growth = seconds[large] / seconds[small] / (large / small)
    print(f"METRIC corpus_peak_memory {max(peak_bytes[large].values()) / 2**30:.2f} GiB goal <=1.5")
    print(f"METRIC corpus_time_growth {growth:.3f} ratio goal <=1.15")


if __name__ == "__main__":
    main()
