"""Command line of `megaptm launch slurm`: checks, script, and number of jobs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import megaptm
from megaptm.check.allocation import requested_allocation
from megaptm.check.api import submission_findings
from megaptm.check.finding import CheckInput, Finding, ResourceRequest, raise_check_faults
from megaptm.check.timing import jobs_needed
from megaptm.config import Config, resolve_spec
from megaptm.config.shipped import SHIPPED
from megaptm.errors import UserError
from megaptm.launch.slurm.script import JobScript, render_job_script
from megaptm.plan.machine import Machine, load_machine
from megaptm.plan.plan import make_plans
from megaptm.run.folder import prepare_run_folder, read_config
from megaptm.run.submission import submitted_config, write_submission
from megaptm.schedulers.slurm.jobs import check_submission
from megaptm.schedulers.slurm.options import parse_sbatch_options, quote_for_script, sbatch_option_value
from megaptm.schedulers.slurm.slurm_time import parse_slurm_time, warning_seconds
from megaptm.spec import LayerlessSpec

COMMON = "slurm/common.sh"
DEVICES = 8
"""Default number of processes per node."""
MAX_JOBS = 500
"""Largest number of jobs per launch: more than a year of one-day jobs, and within Slurm's usual limits."""


def checkout_folder() -> Path:
    """Return the folder of megaptm that a Slurm job uses, the checkout or the files shipped with an installed package;
    all nodes must see it."""
    checkout = Path(megaptm.__file__).parents[1]
    return Path(os.environ.get("MEGAPTM_HOME") or (checkout if (checkout / COMMON).is_file() else SHIPPED))


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Arguments of `megaptm launch slurm`."""

    config: Path
    overrides: tuple[str, ...] = ()
    change: bool = False
    """Whether the config may alter the run that it continues."""
    machine: str | None = None
    nodes: int | None = None
    processes_per_node: int | None = None
    gpus_per_node: int | None = None
    cpus: int = 12
    limit: str = "24:00:00"
    jobs: int | None = None
    slurm_options: tuple[str, ...] = ()
    """Options of sbatch that the user adds."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Script and findings of a request, before it is submitted to Slurm."""

    config: Config
    script: str
    jobs: int
    change: bool = False
    findings: tuple[Finding, ...] = ()
    """Findings of the checks before submission."""

    @property
    def faults(self) -> list[str]:
        """Return the reasons why the request is not submitted."""
        return [finding.message for finding in self.findings if finding.state == "fault"]

    @property
    def run(self) -> Path:
        return Path(self.config.run)

    def prepare(self) -> None:
        """Test the script with Slurm, then create the run folder with it. Raises UserError before changing anything."""
        raise_check_faults(self.findings)
        if not (checkout_folder() / COMMON).is_file():
            raise UserError(f"{checkout_folder()} has no {COMMON}: set MEGAPTM_HOME to a checkout of megaptm.")
        check_submission(self.script)
        prepare_run_folder(self.config, change=self.change)
        (self.run / "logs").mkdir(exist_ok=True)
        write_submission(self.config, self.script)


def make_submission(job_request: JobRequest) -> Submission:
    """Make a submission to Slurm: script, number of jobs, and findings. Raise UserError if no script can be written."""
    job_request = replace(job_request, slurm_options=parse_sbatch_options(job_request.slurm_options))
    config = read_config(job_request.config, job_request.overrides, change=job_request.change)
    machine = load_machine(job_request.machine) if job_request.machine else None
    request = _resource_request(job_request, config, machine)
    case = CheckInput(config=config, change=job_request.change, machine=machine, request=request)
    findings = submission_findings(case)
    allocation = requested_allocation(case)
    assert allocation is not None
    quote_for_script(config.run, "run")
    job = JobScript(
        name=re.sub(r"[^\w.+-]", "_", Path(config.run).name, flags=re.ASCII),
        nodes=allocation.nodes,
        tasks=allocation.per_node,
        gpus=request.gpus_on_node(allocation.per_node),
        cpus=job_request.cpus,
        time=job_request.limit,
        output=f"{config.run}/logs/job-%j.log",
        sbatch_options=job_request.slurm_options,
    )
    # Passed again in the job, because credentials are sent only to a URL that the user typed.
    typed = [word for word in job_request.overrides if word.startswith("track.uri=")]
    script = render_job_script(job, [str(submitted_config(config)), *typed], title="Written by megaptm launch slurm")
    jobs = job_request.jobs or (_num_jobs(config, machine, job_request) if machine else 1)
    if jobs > MAX_JOBS:
        message = (
            f"{jobs:,} consecutive jobs are more than the {MAX_JOBS} that are submitted at once: use more nodes, a "
            f"faster layout (megaptm plan --search), a longer --time, or --jobs {MAX_JOBS} to submit the first ones."
        )
        findings.append(Finding("time", "fault", message))
    return Submission(config=config, script=script, jobs=jobs, change=job_request.change, findings=tuple(findings))


def _num_jobs(config: Config, machine: Machine, job_request: JobRequest) -> int:
    if isinstance(resolve_spec(config), LayerlessSpec):
        return 1  # the duration of models without layers is not planned
    time_limit = parse_slurm_time(sbatch_option_value(job_request.slurm_options, "time") or job_request.limit)
    return jobs_needed(make_plans(config, machine), time_limit, warning_seconds(job_request.slurm_options))


def _resource_request(job_request: JobRequest, config: Config, machine: Machine | None) -> ResourceRequest:
    per_node = job_request.processes_per_node
    if per_node is None and job_request.nodes is None:
        per_node = min(machine.devices if machine else DEVICES, config.layout.processes)
    return ResourceRequest(
        nodes=job_request.nodes,
        processes_per_node=per_node,
        gpus_per_node=job_request.gpus_per_node,
        seconds=parse_slurm_time(job_request.limit),
        slurm_options=job_request.slurm_options,
    )
