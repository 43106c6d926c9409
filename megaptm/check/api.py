"""All checks of `megaptm check`, in the order in which they are reported."""

from __future__ import annotations

from dataclasses import replace

from megaptm.check.allocation import check_processes
from megaptm.check.attention import check_attention
from megaptm.check.config import check_config
from megaptm.check.data import check_data
from megaptm.check.finding import Check, CheckInput, Finding, check_each_phase, raise_check_faults, run_checks
from megaptm.check.memory import check_memory
from megaptm.check.nodes import check_nodes
from megaptm.check.resume import check_resume
from megaptm.check.run_folder import check_run_folder
from megaptm.check.scheduler import check_slurm
from megaptm.check.software import check_software
from megaptm.check.timing import check_time
from megaptm.check.tracker import check_tracker
from megaptm.run.corpora_checks import positioned_phases

SUBMISSION_CHECKS: list[tuple[str, Check]] = [
    ("config", check_config),
    ("processes", check_processes),
    ("memory", check_each_phase(check_memory)),
    ("data", check_each_phase(check_data, positioned_phases)),
    ("folder", check_run_folder),
    ("run", check_resume),
    ("time", check_each_phase(check_time)),
    ("slurm", check_slurm),
]
"""Checks of `megaptm check` that decide whether the run can start."""
CHECKS: list[tuple[str, Check]] = [
    *SUBMISSION_CHECKS,
    ("tracker", check_tracker),
    ("software", check_software),
    ("attention", check_each_phase(check_attention)),
    ("nodes", check_nodes),
]
"""All checks of `megaptm check`: topic and function."""


def submission_findings(case: CheckInput) -> list[Finding]:
    """Return the findings that decide whether the run can start, for launchers. Only sizes of shards are compared,
    their content is not read. Optional services, such as the tracking server, are not contacted."""
    return list(run_checks(SUBMISSION_CHECKS, replace(case, hashing="none")))


def check_before_submission(case: CheckInput) -> list[Finding]:
    """Run the checks that decide whether the run can start, and return their findings. Raise UserError if it cannot."""
    findings = submission_findings(case)
    raise_check_faults(findings)
    return findings
