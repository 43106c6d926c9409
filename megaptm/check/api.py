"""All checks, in the order in which they are reported."""

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
"""Checks that decide whether the run can start."""
CHECKS: list[tuple[str, Check]] = [
    *DECIDING,
    ("tracker", tracker),
    ("software", check_software),
    ("attention", attention),
    ("nodes", check_nodes),
    ("speed", check_speed),
]
"""All checks: topic and function."""


def submission_findings(case: Case) -> list[Finding]:
    """Return the findings that decide whether the run can start, for launchers. Fast.

    Only sizes of shards are compared, their content is not read. Optional services, such as the tracking server, are
    not contacted.
    """
    return list(look(DECIDING, replace(case, hashing="none")))


def before_submission(case: Case) -> list[Finding]:
    """Return the same findings. Raise UserError if the run cannot start."""
    found = submission_findings(case)
    must_pass(found)
    return found
