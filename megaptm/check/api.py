"""Everything that is looked at, in the order in which it is told."""

from __future__ import annotations

from dataclasses import replace

from megaptm.check.allocation import arithmetic
from megaptm.check.attention import attention
from megaptm.check.config import rules
from megaptm.check.data import corpora
from megaptm.check.finding import Case, Check, Finding, look, must_pass
from megaptm.check.memory import memory
from megaptm.check.nodes import check_nodes
from megaptm.check.resume import resume
from megaptm.check.run_folder import run_folder
from megaptm.check.scheduler import scheduler
from megaptm.check.software import check_software
from megaptm.check.speed import check_speed
from megaptm.check.timing import timing
from megaptm.check.tracker import tracker

DECIDING: list[tuple[str, Check]] = [
    ("config", rules),
    ("processes", arithmetic),
    ("memory", memory),
    ("data", corpora),
    ("folder", run_folder),
    ("run", resume),
    ("time", timing),
    ("slurm", scheduler),
]
"""Without these no run starts."""
CHECKS: list[tuple[str, Check]] = [
    *DECIDING,
    ("tracker", tracker),
    ("software", check_software),
    ("attention", attention),
    ("nodes", check_nodes),
    ("speed", check_speed),
]
"""All of them: topic and check."""


def submission_findings(case: Case) -> list[Finding]:
    """For a launcher: what decides whether the run can start and takes no time.

    No shard is read, only their sizes, and nothing is asked that a run does without, as its tracking server.
    """
    return list(look(DECIDING, replace(case, hashing="none")))


def before_submission(case: Case) -> list[Finding]:
    """The same; a `UserError` where the run cannot start."""
    found = submission_findings(case)
    must_pass(found)
    return found
