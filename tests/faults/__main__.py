"""`make faults`: hit a run on four processes with seeded faults, and compare it with an undisturbed one."""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests import ROOT
from tests.faults.campaign import Campaign, Outcome, PersonNeededError
from tests.faults.kinds import KINDS, Kind, select_kinds
from tests.faults.services import can_mount, started_services
from tests.faults.table import cells, outcome_table, summary_rows

TOLERANCE = 0.02
"""Share of steps by which a run may fall behind the theory (`measure_per_minute`)."""
CALIBRATION_SECONDS = 30.0
CALIBRATION_FAULTS = 5


def sample_kinds(kinds: list[Kind], count: int, rng: random.Random) -> list[Kind]:
    """Return kinds in random order, each as often as the others, as far as possible."""
    sampled: list[Kind] = []
    while len(sampled) < count:
        sampled += rng.sample(kinds, len(kinds))
    return sampled[:count]


def hit_all(campaign: Campaign, kinds: list[Kind], console: Console) -> None:
    for number, kind in enumerate(kinds, 1):
        outcome = campaign.hit(kind)
        words = [*cells(outcome), outcome.problem or "losses are compared at the end"]
        console.print(f"{number:3}/{len(kinds)} " + ", ".join(words), highlight=False)


def measure_per_minute(campaign: Campaign, kind: Kind, minutes: int, console: Console) -> tuple[str, bool]:
    """Make one fault a minute; return a summary, and whether the run was about as fast as theory allows.

    Of each minute, a fault takes the time until the next new step, as measured before on single faults, and no other.
    """
    hit_all(campaign, [kind] * CALIBRATION_FAULTS, console)
    costs = [outcome.recovered for outcome in campaign.outcomes if outcome.recovered is not None]
    before, start = campaign.furthest, time.monotonic()
    campaign.run_for(CALIBRATION_SECONDS)
    rate = (campaign.furthest - before) / (time.monotonic() - start)
    before, start = campaign.furthest, time.monotonic()
    for minute in range(minutes):
        campaign.run_for(start + 60 * minute + campaign.rng.uniform(0, 30) - time.monotonic())
        fault = kind.make(campaign, campaign.rng)
        campaign.outcomes.append(Outcome(kind.name, fault.detail, campaign.furthest))
        console.print(f"minute {minute + 1:2}: step {campaign.furthest - before:,}", highlight=False)
        campaign.run_for(start + 60 * (minute + 1) - time.monotonic())
    share = (campaign.furthest - before) / (rate * (time.monotonic() - start))
    theory = 1 - statistics.mean(costs) / 60
    return (
        f"one fault a minute ({kind.name}) for {minutes} minutes: {share:.1%} of the steps of an undisturbed run "
        f"({rate:.2f} a second); theory: {theory:.1%}, with {statistics.mean(costs):.1f} s per fault"
    ), share >= theory - TOLERANCE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100, help="number of faults")
    parser.add_argument("--kinds", nargs="*", default=[], help="only kinds whose names contain one of these words")
    parser.add_argument("--processes", type=int, default=4, help="ranks of the run")
    parser.add_argument("--pace", type=float, default=0.1, help="minimum seconds of a step")
    parser.add_argument("--max-seconds", type=float, default=180.0, help="seconds until a run must have recovered")
    parser.add_argument("--per-minute", type=int, metavar="MINUTES", help="make one fault a minute")
    parser.add_argument("--markdown", type=Path, help="write the table by kind to this file")
    parser.add_argument("--list", action="store_true", help="list the kinds")
    arguments = parser.parse_args()
    rng, console, start = random.Random(arguments.seed), Console(width=200), time.monotonic()
    kinds = select_kinds(arguments.kinds)
    if arguments.list:
        print(*(kind.name for kind in kinds), sep="\n")
        return 0
    if any(kind.service == "disk" for kind in kinds) and not can_mount():
        console.print("a disk that can be filled needs the right to mount: kinds of faults on it are left out")
        kinds = [kind for kind in kinds if kind.service != "disk"]
    if not kinds:
        parser.error(f"--kinds {' '.join(arguments.kinds)}: no kind can be made; --list shows the kinds")
    sampled = sample_kinds(kinds, arguments.count, rng)
    needed = {kind.service for kind in sampled if kind.service}
    is_fast = True
    with (
        tempfile.TemporaryDirectory(prefix="megaptm-faults-", ignore_cleanup_errors=True) as folder,
        started_services(Path(folder), needed) as services,
    ):
        campaign = Campaign(
            Path(folder),
            services,
            num_ranks=arguments.processes,
            pace=arguments.pace,
            max_seconds=arguments.max_seconds,
            rng=rng,
        )
        try:
            if arguments.per_minute:
                summary, is_fast = measure_per_minute(campaign, kinds[0], arguments.per_minute, console)
                console.print(summary, highlight=False)
            else:
                hit_all(campaign, sampled, console)
            campaign.stop()
            compared, is_equal = campaign.compare()
        except (PersonNeededError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
            console.print(error, markup=False)
            return 1
        finally:
            campaign.close()
    outcomes = campaign.outcomes
    if not arguments.per_minute:
        console.print(outcome_table(outcomes))
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    line = (
        f"{len(outcomes)} faults, seed {arguments.seed}, {failed} failed: {compared}; commit {commit.stdout.strip()}, "
        f"{time.monotonic() - start:,.0f} s"
    )
    console.print(line, highlight=False)
    if arguments.markdown:
        rows = summary_rows(outcomes, [kind.name for kind in KINDS])
        arguments.markdown.write_text("\n".join([*rows, "", f"{line}.", ""]), encoding="utf-8")
    return 0 if is_equal and is_fast and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
