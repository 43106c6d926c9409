"""What `megaptm launch slurm` is asked for, looked at, and made into a script and a number of jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from megaptm.check.all import before_submission
from megaptm.check.finding import Case, Request
from megaptm.check.limits import seconds_of, warning_seconds
from megaptm.check.places import places
from megaptm.check.sbatch import option, read_options, script_word
from megaptm.check.timing import jobs_needed
from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.plan.machine import Machine, load_machine
from megaptm.plan.plan import plan
from megaptm.slurm.script import Job, render
from megaptm.slurm.submit import check_slurm, home
from megaptm.train.prepare import prepare, read_config
from megaptm.train.submitted import submitted_config, write_submission

DEVICES = 8
"""Processes on a node where nobody says otherwise."""
MOST_JOBS = 500
"""Of one launch: more than a year of days, and fewer than any Slurm's queue takes."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The words of the command line."""

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
    """What would be submitted."""

    config: Config
    script: str
    jobs: int

    @property
    def run(self) -> Path:
        return Path(self.config.run)

    def prepare(self) -> None:
        """Ask Slurm about the script, then make the run folder with it; nothing where Slurm refuses."""
        check_slurm(home(), self.script)
        prepare(self.config)
        (self.run / "logs").mkdir(exist_ok=True)
        write_submission(self.config, self.script)


def submission(wanted: Wanted) -> Submission:
    """The script and how many jobs of it; a `UserError` where the run cannot start so."""
    wanted = replace(wanted, more=read_options(wanted.more))
    config = read_config(wanted.config, wanted.overrides)
    machine = load_machine(wanted.machine) if wanted.machine else None
    request = _request(wanted, config, machine)
    case = Case(config=config, machine=machine, request=request)
    before_submission(case)
    found = places(case)
    assert found is not None
    script_word(config.run, "run")
    job = Job(
        name=re.sub(r"[^\w.+-]", "_", Path(config.run).name, flags=re.ASCII),
        nodes=found.nodes,
        tasks=found.per_node,
        gpus=request.gpus_on_node(found.per_node),
        cpus=wanted.cpus,
        time=wanted.limit,
        output=f"{config.run}/logs/job-%j.log",
        more=wanted.more,
    )
    script = render(job, [str(submitted_config(config))], title="Written by megaptm launch slurm")
    jobs = wanted.jobs or (_jobs(config, machine, wanted) if machine else 1)
    if jobs > MOST_JOBS:
        raise UserError(
            f"{jobs:,} jobs, each after the other, are more than the {MOST_JOBS} that are submitted at once: give the "
            "run more nodes or a faster layout (megaptm plan --search), the jobs more --time, or say how many to "
            f"submit now (--jobs {MOST_JOBS})."
        )
    return Submission(config=config, script=script, jobs=jobs)


def _jobs(config: Config, machine: Machine, wanted: Wanted) -> int:
    limit = seconds_of(option(wanted.more, "time") or wanted.limit)
    return jobs_needed(plan(config, machine), limit, warning_seconds(wanted.more))


def _request(wanted: Wanted, config: Config, machine: Machine | None) -> Request:
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
