"""`make fuzz`: mutate each kind of file thousands of times, and print a table of the outcomes."""

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

from tests.fuzz.runner import Outcome, run_cases, run_one_case
from tests.fuzz.targets import TARGETS

ACCEPTED = ("same", "changed", "refused")
FAILURES = ("traceback", "hang", "memory", "died", "outside", "sentence", "silent")
CHUNK = {"read": 100, "command": 10}
"""Cases per process. Hugging Face's tokenizers 0.23 never frees the word cache of a tokenizer that encoded texts (5 MB
each), so more cases would exceed the memory limit."""
MAX_SHOWN = 25


def prepare(sandbox: Path, names: list[str] | None = None) -> None:
    """Import once for all children, set home and cache folders inside the sandbox, and write the unchanged files."""
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR", "TMPDIR"):
        os.environ[name] = str(sandbox / "scratch" / name)
        Path(os.environ[name]).mkdir(parents=True)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "COLUMNS": "100"}
    tempfile.tempdir = os.environ["TMPDIR"]
    # Cases damage files, not disks. Waiting for the disk would take most of the time of those that build corpora.
    os.fsync = lambda descriptor: None
    import torch

    torch.set_num_threads(1)
    from tests.fuzz.materials import make

    make(sandbox / "materials", {TARGETS[name].folder for name in names or TARGETS})
    for module in ("data_pipeline.commands", "megaptm.inference.evaluate", "megaptm.inference.generate"):
        importlib.import_module(module)

    for target in (TARGETS[name] for name in names or TARGETS):  # imports the modules of the reader
        shutil.copytree(sandbox / "materials" / target.folder, sandbox / "warm")
        target.read(sandbox / "warm")
        shutil.rmtree(sandbox / "warm")
    sys.dont_write_bytecode = True


def fuzz(
    sandbox: Path, *, seed: int, reads: int, commands: int, jobs: int, names: list[str] | None = None
) -> list[Outcome]:
    """Run all cases in a prepared sandbox; return their outcomes."""
    work = [
        (name, mode, list(range(start, min(count, start + CHUNK[mode]))), seed, sandbox)
        for name in names or TARGETS
        for mode, count in (("read", round(reads * TARGETS[name].read_share)), ("command", commands))
        for start in range(0, count, CHUNK[mode])
    ]
    # Commands first, because they take longest.
    work.sort(key=lambda item: item[1])
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        chunks = track(pool.imap_unordered(_run, work), total=len(work), console=Console(stderr=True))
        return [outcome for chunk in chunks for outcome in chunk]


def _run(item: tuple[str, str, list[int], int, Path]) -> list[Outcome]:
    name, mode, numbers, seed, sandbox = item
    return list(run_cases(TARGETS[name], mode, numbers, seed=seed, sandbox=sandbox))


def outcome_table(outcomes: list[Outcome]) -> Table:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.target, outcome.mode][outcome.kind] += 1
    table = Table("file", "mode", "cases", *ACCEPTED, *FAILURES, title="mutated files", title_justify="left")
    for name in TARGETS:
        for mode in ("read", "command"):
            if counted := counts.get((name, mode)):
                row = [str(counted[kind]) if counted[kind] else "" for kind in (*ACCEPTED, *FAILURES)]
                has_failures = any(counted[kind] for kind in FAILURES)
                table.add_row(name, mode, str(counted.total()), *row, style="red" if has_failures else "")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reads", type=int, default=2000, help="read cases of each kind of file")
    parser.add_argument("--commands", type=int, default=50, help="command cases of each kind of file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--target", action="append", choices=list(TARGETS))
    parser.add_argument("--case", help="read/7 or command/7: run this case of --target, and show its traceback")
    parser.add_argument("--short", action="store_true", help="only kinds of files that are written fast")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.target = [name for name, target in TARGETS.items() if target.is_short]
    console, start_time = Console(width=140), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="megaptm-fuzz-", ignore_cleanup_errors=True) as folder:
        sandbox = Path(folder).resolve()
        prepare(sandbox, arguments.target)
        if arguments.case:
            mode, _, number = arguments.case.partition("/")
            run_one_case(arguments.target[0], mode, int(number), seed=arguments.seed, sandbox=sandbox)
            return 0
        outcomes = fuzz(
            sandbox,
            seed=arguments.seed,
            reads=arguments.reads,
            commands=arguments.commands,
            jobs=arguments.jobs,
            names=arguments.target,
        )
        shutil.rmtree(sandbox / "materials")
    console.print(outcome_table(outcomes))
    failures = [outcome for outcome in outcomes if outcome.failed]
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in failures:
        groups[f"{outcome.kind} {outcome.detail.split(': ')[0]}"].append(outcome)
    for _, group in sorted(groups.items(), key=lambda item: -len(item[1]))[:MAX_SHOWN]:
        first = group[0]
        case = f"--target '{first.target}' --case {first.mode}/{first.number}"
        console.print(
            f"{len(group)} x {first.kind}: {case}: {first.detail}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    seconds = time.monotonic() - start_time
    console.print(f"{len(outcomes):,} cases, {len(failures):,} failed, seed {arguments.seed}, {seconds:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
