"""Real Slurm cluster of several nodes on this machine, with its daemons in the foreground and its files in one
folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from megaptm.schedulers.slurm.jobs import COULD_NOT_START
from tests import ROOT
from tests.processes import environment_of, everybody

PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
TIMEOUT_SECONDS = 300.0
CPUS, GPUS = 16, 8
PR_SET_PDEATHSIG = 1

# No accounting, cgroups or authentication: one user on one machine. With `config_overrides`, nodes may have more
# processors than the machine. A node that Slurm found dead returns when it responds. One that was declared down does
# not, because its earlier messages may arrive late.
SETTINGS = """
ClusterName=test
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
JobRequeue=1
MinJobAge=600
KillWait=15
SlurmctldTimeout=10
ReturnToService=1
"""


class SlurmCluster:
    """Cluster of `nodes` nodes that run jobs (partition `main`) and 128 that are only described (partition `large`)."""

    def __init__(self, folder: Path, nodes: int, *, gpus: int = GPUS, slurmd_timeout: int = 5) -> None:
        self.folder, self.slurmd_timeout = folder, slurmd_timeout
        self.gpus = gpus
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self.prolog = folder / "prolog.sh"
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "SLURM_TIME_FORMAT": "standard"}
        self.environment["PYTHONPATH"] = str(ROOT)  # for objectives of tests
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._declared_down: set[str] = set()

    def start(self) -> None:
        self._configure()
        self._start("slurmctld", "-D")
        for node in self.nodes:
            self.start_node(node)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until all nodes accept jobs. A node that did not respond on a busy machine is excluded for some
        seconds."""
        idle = ["sinfo", "--noheader", "--Node", "--partition=main", "--states=idle", "--format=%N"]
        self.wait_for(lambda: len(self.run_command(*idle).split()) == len(self.nodes))

    def stop(self) -> None:
        """Cancel all jobs, end the daemons, and kill the remaining processes of jobs."""
        self.cancel_all()
        deadline = time.monotonic() + 10
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        for daemon in self._daemons.values():
            daemon.terminate()
        for process in self.processes():
            process.kill()
        for daemon in self._daemons.values():
            try:
                daemon.wait(timeout=5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def cancel_all(self) -> None:
        """Cancel all jobs."""
        self.run_command("scancel", "--user", str(os.getuid()), check=False)

    def run_command(self, *command: str, check: bool = True) -> str:
        """Run a Slurm command; return its output."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert not (check and done.returncode), f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def submit(self, *words: str, folder: Path = ROOT) -> str:
        """Run `sbatch WORDS` in a folder with this Python's environment; return the job id."""
        environment = {**self.environment, "MEGAPTM_VENV": sys.prefix}
        done = subprocess.run(
            ["sbatch", "--parsable", *words], env=environment, cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run_in_allocation(self, nodes: int, *command: str) -> str:
        """Run a command in an allocation of nodes; return its output."""
        allocation = ["salloc", "--quiet", f"--nodes={nodes}", "--ntasks-per-node=1", "--exclusive"]
        done = subprocess.run(
            [*allocation, *command], env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=240
        )
        assert done.stdout, done.stderr
        return done.stdout

    def job(self, number: int | str) -> dict[str, str]:
        """Return Slurm's fields of a job: JobState, NumNodes, Restarts ..."""
        words = self.run_command("scontrol", "show", "job", str(number), "--oneliner").split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def wait_for(self, condition: Callable[[], Any], *, seconds: float = TIMEOUT_SECONDS) -> Any:
        """Return the first truthy result of `condition`."""
        start_time = time.monotonic()
        last_release = start_time
        while not (result := condition()):
            now = time.monotonic()
            assert now < start_time + seconds, (
                f"nothing in {seconds:.0f} s\n{self.run_command('squeue', '-l')}{self.logs()}"
            )
            if now > last_release + 3:
                last_release = now
                self._release_held_jobs()
            time.sleep(0.3)  # each poll starts Slurm programs, or reads the environment of every process
        return result

    def _release_held_jobs(self) -> None:
        """Release jobs that Slurm holds because a node failed to start them, as a busy node sometimes does."""
        for line in self.run_command("squeue", "--noheader", "--format=%A|%r").splitlines():
            job, _, reason = line.partition("|")
            if reason == COULD_NOT_START:
                self.run_command("scontrol", "release", job)
                self.run_command("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait_for_state(self, number: int | str, *states: str) -> str:
        """Wait until a job is in one of these states; return it."""
        return self.wait_for(lambda: (state := self.job(number)["JobState"]) in states and state)

    def start_now(self, job: str) -> None:
        """Start a requeued job without Slurm's delay of two minutes."""
        self.wait_for_state(job, "PENDING")
        time.sleep(1.1)  # a job that starts in the second in which it was killed is rejected by slurmd
        self.run_command("scontrol", "update", f"JobId={job}", "StartTime=now")

    def start_node(self, node: str, *, hide: Path | None = None) -> None:
        """Start the daemon of a node. With `hide`, it and its tasks cannot see that folder."""
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        prefix = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {hide} && exec "$@"', "sh") if hide else ()
        self._start(f"slurmd-{node}", "-D", "-N", node, within=prefix)
        if node in self._declared_down:
            self._declared_down.discard(node)
            self.run_command("scontrol", "update", f"NodeName={node}", "State=RESUME")

    @contextmanager
    def hide_folder(self, node: str, folder: Path) -> Iterator[None]:
        """Hide a folder from a node, as if its disk were not mounted."""
        self.restart_node(node, hide=folder)
        try:
            yield
        finally:
            self.restart_node(node)

    def restart_node(self, node: str, *, hide: Path | None = None) -> None:
        """Restart the daemon of an idle node. Slurm waits a minute for one that is not idle."""
        self.wait_for(lambda: self._is_idle(node))
        self.kill_daemon(node)
        self.start_node(node, hide=hide)
        self.wait_for(lambda: self._is_idle(node))

    def _is_idle(self, node: str) -> bool:
        return self.run_command("sinfo", "--noheader", f"--nodes={node}", "--format=%T").split()[0] == "idle"

    @contextmanager
    def task_variables(self, node: str, **variables: str) -> Iterator[None]:
        """Set variables of the tasks on a node, as a site's prolog does."""
        words = " ".join(f'"export {name}={value}"' for name, value in variables.items())
        self.prolog.write_text(f"#!/bin/sh\n[ $SLURMD_NODENAME = {node} ] && printf '%s\\n' {words}\nexit 0\n")
        try:
            yield
        finally:
            self.prolog.write_text("#!/bin/sh\n")

    def heal(self) -> None:
        """Restart the daemons of lost nodes."""
        for node in self.nodes:
            if self._daemons[f"slurmd-{node}"].poll() is not None:
                self.start_node(node)
                self.wait_for(lambda node=node: self._is_idle(node))

    def kill_daemon(self, node: str) -> None:
        """Kill the daemon of a node. Its tasks continue."""
        daemon = self._daemons[f"slurmd-{node}"]
        daemon.kill()
        daemon.wait()

    def kill_node(self, node: str) -> None:
        """Kill the daemon, the step daemons and the tasks of a node, as a power failure does."""
        self.kill_daemon(node)
        tasks = self.tasks_of(node)
        step_daemons = []
        for task in tasks:
            with contextlib.suppress(psutil.NoSuchProcess):
                if (parent := task.parent()) and parent.name() == "slurmstepd":
                    step_daemons.append(parent)
        for process in step_daemons + tasks:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def declare_down(self, node: str) -> None:
        """Declare a node down, which Slurm does after SlurmdTimeout."""
        self.run_command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
        self._declared_down.add(node)

    def tasks_of(self, node: str) -> list[psutil.Process]:
        """Return all processes that Slurm started on a node."""
        return [process for process in self.processes() if environment_of(process).get("SLURMD_NODENAME") == node]

    def logs(self) -> str:
        return "".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))

    def processes(self) -> list[psutil.Process]:
        """Return all processes of all jobs. They inherit the path of this cluster's configuration."""
        config_path = self.environment["SLURM_CONF"]
        pairs = [(process, environment_of(process)) for process in everybody()]
        return [
            process
            for process, variables in pairs
            if variables.get("SLURM_CONF") == config_path and "SLURM_JOB_ID" in variables
        ]

    def _start(self, name: str, *arguments: str, within: Sequence[str] = ()) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        self._daemons[name] = subprocess.Popen(
            [*within, shutil.which(name.partition("-")[0], path=_path()) or name, *arguments],
            env=self.environment,
            cwd=self.folder,  # a failed slurmstepd leaves its core here
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_end_with_parent,
        )
        log.close()

    def _configure(self) -> None:
        host, ports = socket.gethostname().partition(".")[0], _free_ports(len(self.nodes) + 1)
        for name in ("state", "spool", "devices"):
            (self.folder / name).mkdir(parents=True)
        for number in range(self.gpus):
            os.mknod(self.folder / f"devices/nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        gpus = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        kind = f"CPUs={CPUS} RealMemory=64000{gpus}"
        lines = [
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            f"SlurmdTimeout={self.slurmd_timeout}",
            "SlurmUser=root",
            "SlurmdUser=root",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmdSpoolDir={self.folder}/spool/%n",
            f"StateSaveLocation={self.folder}/state",
            f"TaskProlog={self.prolog}",
            *(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {kind} State=UNKNOWN"
                for node, port in zip(self.nodes, ports[1:], strict=True)
            ),
            *(["GresTypes=gpu"] if self.gpus else []),
            f"NodeName=large[001-128] CPUs=128 RealMemory=1000000{gpus} State=CLOUD",
            f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP",
            "PartitionName=large Nodes=large[001-128] MaxTime=INFINITE State=UP",
        ]
        self.prolog.write_text("#!/bin/sh\n")
        self.prolog.chmod(0o755)
        (self.folder / "slurm.conf").write_text(SETTINGS + "\n".join(lines) + "\n")
        if self.gpus:
            devices = f"Name=gpu File={self.folder}/devices/nvidia[0-{self.gpus - 1}]"
            (self.folder / "gres.conf").write_text("".join(f"NodeName={node} {devices}\n" for node in self.nodes))


def _end_with_parent() -> None:
    """End a daemon with the tests, however they end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


@contextmanager
def slurm_cluster(nodes: int, *, gpus: int = GPUS, slurmd_timeout: int = 5) -> Iterator[SlurmCluster]:
    """Context of a running cluster, which notices after `slurmd_timeout` seconds that a node does not respond. The test
    is skipped if Slurm is not installed."""
    missing = [package for program, package in PACKAGES.items() if shutil.which(program, path=_path()) is None]
    if missing:
        pytest.skip(f"needs Slurm: apt-get install {' '.join(missing)}")
    if os.geteuid():
        pytest.skip("needs root: slurmd and the device files of its nodes do")
    with tempfile.TemporaryDirectory(
        prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:  # paths of sockets must be short
        cluster = SlurmCluster(Path(folder), nodes, gpus=gpus, slurmd_timeout=slurmd_timeout)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
