"""Command line of `megaptm launch slurm`: checks, script, and number of jobs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import megaptm
from megaptm.check.allocation import allocation
from megaptm.check.api import submission_findings
from megaptm.check.finding import Case, Finding, Request, must_pass
from megaptm.check.timing import jobs_needed
from megaptm.config import Config, resolve
from megaptm.config.shipped import SHIPPED
from megaptm.errors import UserError
from megaptm.families.words import WordSpec
from megaptm.launch.slurm.script import JobScript, render
from megaptm.plan.machine import Machine, load_machine
from megaptm.plan.plan import plan
from megaptm.run.folder import prepare, read_config
from megaptm.run.submission import submitted_config, write_submission
from megaptm.schedulers.slurm.jobs import check_slurm
from megaptm.schedulers.slurm.options import option, read_options, script_word
from megaptm.schedulers.slurm.slurm_time import seconds_of, warning_seconds

COMMON = "slurm/common.sh"
DEVICES = 8
"""Default number of processes per node."""
MOST_JOBS = 500
"""Largest number of jobs per launch: more than a year of one-day jobs, and within Slurm's usual limits."""


def home() -> Path:
    """Return the checkout, or the files shipped with an installed megaptm; all nodes must see it."""
    checkout = Path(megaptm.__file__).parents[1]
    return Path(os.environ.get("MEGAPTM_HOME") or (checkout if (checkout / COMMON).is_file() else SHIPPED))


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Arguments of the command line."""

    config: Path
    overrides: tuple[str, ...] = ()
    machine: str | None = None
    nodes: int | None = None
    per_node: int | None = None
    gpus: int | None = None
    cpus: int = 12
    limit: str = "24:00:00"
    jobs: int | None = None
    more: tuple[str, ...] = ()
    """Options of sbatch."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Result of a request, before it is submitted."""

    config: Config
    script: str
    jobs: int
    findings: tuple[Finding, ...] = ()
    """Findings of the checks."""

    @property
    def faults(self) -> list[str]:
        """Reasons why it is not submitted."""
        return [finding.says for finding in self.findings if finding.state == "fault"]

    @property
    def run(self) -> Path:
        return Path(self.config.run)

    def prepare(self) -> None:
        """Test the script with Slurm, then create the run folder with it. Raises UserError before changing anything."""
        must_pass(self.findings)
        if not (home() / COMMON).is_file():
            raise UserError(f"{home()} has no {COMMON}: set MEGAPTM_HOME to the checkout of megaptm.")
        check_slurm(self.script)
        prepare(self.config)
        (self.run / "logs").mkdir(exist_ok=True)
        write_submission(self.config, self.script)


def submission(wanted: JobRequest) -> Submission:
    """Return the script, number of jobs, and findings. Raise UserError if no script can be written."""
    wanted = replace(wanted, more=read_options(wanted.more))
    config = read_config(wanted.config, wanted.overrides)
    machine = load_machine(wanted.machine) if wanted.machine else None
    request = _request(wanted, config, machine)
    case = Case(config=config, machine=machine, request=request)
    findings = submission_findings(case)
    found = allocation(case)
    assert found is not None
    script_word(config.run, "run")
    job = JobScript(
        name=re.sub(r"[^\w.+-]", "_", Path(config.run).name, flags=re.ASCII),
        nodes=found.nodes,
        tasks=found.per_node,
        gpus=request.gpus_on_node(found.per_node),
        cpus=wanted.cpus,
        time=wanted.limit,
        output=f"{config.run}/logs/job-%j.log",
        more=wanted.more,
    )
    # Passed again in the job, because credentials are sent only to a URL that the user typed.
    typed = [word for word in wanted.overrides if word.startswith("track.uri=")]
    script = render(job, [str(submitted_config(config)), *typed], title="Written by megaptm launch slurm")
    jobs = wanted.jobs or (_jobs(config, machine, wanted) if machine else 1)
    if jobs > MOST_JOBS:
        says = (
            f"{jobs:,} jobs, each after the other, are more than the {MOST_JOBS} that are submitted at once: give the "
            "run more nodes or a faster layout (megaptm plan --search), the jobs more --time, or say how many to "
            f"submit now (--jobs {MOST_JOBS})."
        )
        findings.append(Finding("time", "fault", says))
    return Submission(config=config, script=script, jobs=jobs, findings=tuple(findings))


def _jobs(config: Config, machine: Machine, wanted: JobRequest) -> int:
    if isinstance(resolve(config), WordSpec):
        return 1  # the duration of word vectors is not planned
    limit = seconds_of(option(wanted.more, "time") or wanted.limit)
    return jobs_needed(plan(config, machine), limit, warning_seconds(wanted.more))


def _request(wanted: JobRequest, config: Config, machine: Machine | None) -> Request:
    per_node = wanted.per_node
    if per_node is None and wanted.nodes is None:
        per_node = min(machine.devices if machine else DEVICES, config.layout.processes)
    return Request(
        nodes=wanted.nodes,
        processes_per_node=per_node,
        gpus_per_node=wanted.gpus,
        seconds=seconds_of(wanted.limit),
        slurm_options=wanted.more,
    )
