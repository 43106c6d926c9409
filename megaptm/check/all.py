"""Everything that is looked at, in the order in which it is told."""

from __future__ import annotations

from dataclasses import replace

from megaptm.check.corpora import corpora
from megaptm.check.finding import Case, Check, Finding, look, must_pass
from megaptm.check.memory import memory
from megaptm.check.nodes import check_nodes
from megaptm.check.places import arithmetic
from megaptm.check.rules import rules
from megaptm.check.software import check_software
from megaptm.check.speeds import check_speed

DECIDING: list[tuple[str, Check]] = [
    ("config", rules),
    ("processes", arithmetic),
    ("memory", memory),
    ("data", corpora),
]
"""Without these no run starts."""
CHECKS: list[tuple[str, Check]] = [
    *DECIDING,
    ("software", check_software),
    ("nodes", check_nodes),
    ("speed", check_speed),
]
"""All of them: topic and check."""


def before_submission(case: Case) -> list[Finding]:
    """For a launcher: what decides whether the run can start and takes no time; a `UserError` where it cannot.

    No shard is read, only their sizes, and nothing is asked that a run does without, as its tracking server.
    """
    found = list(look(DECIDING, replace(case, hashing="none")))
    must_pass(found)
    return found
