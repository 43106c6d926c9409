"""`make fuzz`: every kind of file, spoiled thousands of times; a table of what became of it."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.fuzz.runner import Outcome, explain, run_cases
from tests.fuzz.targets import TARGETS

GOOD = ("same", "changed", "refused")
BAD = ("traceback", "hang", "memory", "died", "outside", "sentence", "silent")
CHUNK = {"read": 100, "command": 10}
"""Cases of one process. Hugging Face's tokenizers 0.23 never frees the word cache of a tokenizer that encoded texts (5
MB each), so more cases would exceed the memory limit without a fault of ours."""
SHOWN = 25


def prepare(sandbox: Path, names: list[str] | None = None) -> None:
    """Imports once, for all children; homes and caches inside the sandbox; good files."""
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR", "TMPDIR"):
        os.environ[name] = str(sandbox / "scratch" / name)
        Path(os.environ[name]).mkdir(parents=True)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "COLUMNS": "100"}
    tempfile.tempdir = os.environ["TMPDIR"]
    import torch

    torch.set_num_threads(1)
    from tests.fuzz.materials import make

    make(sandbox / "materials", {TARGETS[name].folder for name in names or TARGETS})
    for module in ("data_pipeline.commands", "megaptm.inference.evaluate", "megaptm.inference.generate"):
        importlib.import_module(module)

    for target in (TARGETS[name] for name in names or TARGETS):  # whatever its reader imports is imported now
        shutil.copytree(sandbox / "materials" / target.folder, sandbox / "warm")
        target.read(sandbox / "warm")
        shutil.rmtree(sandbox / "warm")
    sys.dont_write_bytecode = True


def fuzz(
    sandbox: Path, *, seed: int, reads: int, commands: int, jobs: int, names: list[str] | None = None
) -> list[Outcome]:
    """All outcomes. `sandbox` is prepared."""
    work = [
        (name, how, list(range(start, min(count, start + CHUNK[how]))), seed, sandbox)
        for name in names or TARGETS
        for how, count in (("read", reads), ("command", commands))
        for start in range(0, count, CHUNK[how])
    ]
    # Commands first: they take longest.
    work.sort(key=lambda item: item[1])
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        chunks = track(pool.imap_unordered(_run, work), total=len(work), console=Console(stderr=True))
        return [outcome for chunk in chunks for outcome in chunk]


def _run(item: tuple[str, str, list[int], int, Path]) -> list[Outcome]:
    name, how, numbers, seed, sandbox = item
    return list(run_cases(TARGETS[name], how, numbers, seed=seed, sandbox=sandbox))


def table_of(outcomes: list[Outcome]) -> Table:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.target, outcome.how][outcome.kind] += 1
    table = Table("file", "how", "cases", *GOOD, *BAD, title="spoiled files", title_justify="left")
    for name in TARGETS:
        for how in ("read", "command"):
            if found := counts.get((name, how)):
                row = [str(found[kind]) if found[kind] else "" for kind in (*GOOD, *BAD)]
                bad = any(found[kind] for kind in BAD)
                table.add_row(name, how, str(found.total()), *row, style="red" if bad else "")
    return table


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--reads", type=int, default=2000, help="cases of each kind of file, read in one process")
    options.add_argument("--commands", type=int, default=50, help="and through a command")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--target", action="append", choices=list(TARGETS))
    options.add_argument("--case", help="read/7 or command/7: run this one of --target, and show its traceback")
    options.add_argument("--short", action="store_true", help="only kinds of files that are made in no time")
    given = options.parse_args()
    if given.short:
        given.target = [name for name, target in TARGETS.items() if target.short]
    console, begun = Console(width=140), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="megaptm-fuzz-", ignore_cleanup_errors=True) as place:
        sandbox = Path(place).resolve()
        prepare(sandbox, given.target)
        if given.case:
            how, _, number = given.case.partition("/")
            explain(given.target[0], how, int(number), seed=given.seed, sandbox=sandbox)
            return 0
        outcomes = fuzz(
            sandbox,
            seed=given.seed,
            reads=given.reads,
            commands=given.commands,
            jobs=given.jobs,
            names=given.target,
        )
        shutil.rmtree(sandbox / "materials")
    console.print(table_of(outcomes))
    failures = [outcome for outcome in outcomes if outcome.failed]
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in failures:
        groups[f"{outcome.kind} {outcome.detail.split(': ')[0]}"].append(outcome)
    for _, same in sorted(groups.items(), key=lambda item: -len(item[1]))[:SHOWN]:
        first = same[0]
        console.print(
            f"{len(same)} x {first.kind}: --target '{first.target}' --case {first.how}/{first.number}: {first.detail}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"{len(outcomes):,} cases, {len(failures):,} failed, seed {given.seed}, {time.monotonic() - begun:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
