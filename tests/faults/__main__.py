"""`make faults`: hit a run on four processes with seeded faults, and compare it with an undisturbed one."""

from __future__ import annotations

import argparse
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from megaptm.storage import JournalFile
from tests import ROOT
from tests.faults.campaign import hit, hit_per_minute
from tests.faults.comparison import compare
from tests.faults.job import Job
from tests.faults.kinds import KINDS, Kind, select_kinds
from tests.faults.outcomes import FaultError, Outcome, read_outcomes, report
from tests.faults.services import can_mount, started_services


def sample_kinds(kinds: list[Kind], count: int, rng: random.Random) -> dict[int, Kind]:
    """Return number -> kind, in random order, each kind as often as the others, as far as possible."""
    sampled: list[Kind] = []
    while len(sampled) < count:
        sampled += rng.sample(kinds, len(kinds))
    return dict(enumerate(sampled[:count], 1))


def run_faults(options: argparse.Namespace, faults: dict[int, Kind], journal: JournalFile) -> None:
    """Make faults on a new run, compare it with an undisturbed one, and write all outcomes to the journal."""
    outcomes: list[Outcome] = []
    start = time.monotonic()

    def record(outcome: Outcome) -> None:
        outcomes.append(outcome)
        journal.append(asdict(outcome))
        print(outcome, flush=True)

    def conclude(summary: str, is_good: bool) -> None:
        title = f"seed {options.seed}, commit {commit()}, {options.processes} ranks, faults: {len(outcomes)}"
        journal.append({"summary": f"{title}: {summary}; {time.monotonic() - start:,.0f} s", "is_good": is_good})

    needed = {kind.service for kind in faults.values() if kind.service}
    sizes = {"num_ranks": options.processes, "pace": options.pace, "max_seconds": options.max_seconds}
    with (
        tempfile.TemporaryDirectory(prefix="megaptm-faults-", ignore_cleanup_errors=True) as folder,
        started_services(Path(folder), needed) as services,
        closing(Job(Path(folder), services, **sizes)) as job,
    ):
        try:
            if options.per_minute:
                rng = random.Random(options.seed)
                conclude(*hit_per_minute(job, faults[1], options.per_minute, rng, record))
            else:
                for number, kind in faults.items():
                    if time.monotonic() - start < 60 * options.minutes:
                        record(hit(job, kind, Outcome(number, kind.name), random.Random(f"{options.seed} {number}")))
            job.stop()
        except FaultError as error:
            conclude(str(error), False)
        comparison = compare(job, outcomes)
        for outcome in outcomes:
            journal.append(asdict(outcome))
        conclude(*comparison)


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude", "*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100, help="number of faults")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no fault after so many minutes")
    parser.add_argument("--kinds", nargs="*", default=[], help="only kinds whose names contain one of these words")
    parser.add_argument("--processes", type=int, default=4, help="ranks of the run")
    parser.add_argument("--pace", type=float, default=0.1, help="minimum seconds of a step")
    parser.add_argument("--max-seconds", type=float, default=180.0, help="seconds until a run must have recovered")
    parser.add_argument("--per-minute", type=int, metavar="MINUTES", help="make one fault a minute")
    parser.add_argument("--journal", type=Path, help="file of outcomes; faults in it are not made again")
    parser.add_argument("--report", nargs="+", type=Path, metavar="JOURNAL", help="only add up journals in one table")
    parser.add_argument("--list", action="store_true", help="list the kinds")
    options = parser.parse_args()
    kinds = select_kinds(options.kinds)
    if options.list:
        print(*(kind.name for kind in kinds), sep="\n")
        return 0
    if options.report:
        return show(options.report)
    if any(kind.service == "disk" for kind in kinds) and not can_mount():
        print("a disk that can be filled needs the right to mount: kinds of faults on it are left out")
        kinds = [kind for kind in kinds if kind.service != "disk"]
    if not kinds:
        parser.error(f"--kinds {' '.join(options.kinds)}: no kind can be made; --list shows the kinds")
    faults = sample_kinds(kinds, 1 if options.per_minute else options.count, random.Random(options.seed))
    words = f"{commit()} seed {options.seed} ranks {options.processes} {' '.join(options.kinds)}"
    name = re.sub(r"[^\w-]+", "-", words + (" per-minute" if options.per_minute else ""))
    path = options.journal or ROOT / f"build/faults/{name}.jsonl"
    compared = {number for number, outcome in read_outcomes(path)[0].items() if outcome.is_compared}
    if options.per_minute or compared >= {*faults}:  # a complete campaign is made again
        path.unlink(missing_ok=True)
        compared = set()
    left = {number: kind for number, kind in faults.items() if number not in compared}
    print(f"{len(left)} of {len(faults)} faults are left; outcomes: {path}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the run, and prints what was written
    with closing(JournalFile(path)) as journal:
        try:
            run_faults(options, left, journal)
        finally:
            code = show([path])
    return code


def show(journals: Sequence[Path]) -> int:
    """Print the report of some journals; return an exit code."""
    text, is_good = report(journals, [kind.name for kind in KINDS])
    print(text, flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
