"""Requests that Slurm would reject are reported before a job is submitted, with a remedy."""

import json
import re

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from tests.drills.program import arguments
from tests.real.slurm_cluster import slurm_cluster

pytestmark = pytest.mark.real

PARTITIONS = {"short": ("Nodes=node[1-2]", "MaxTime=2:00:00"), "closed": ("Nodes=node1", "State=DOWN")}


@pytest.fixture(scope="module")
def cluster(slurm):
    """The shared cluster with a partition for short jobs and a closed one."""
    for name, more in PARTITIONS.items():
        slurm.run_command("scontrol", "create", f"PartitionName={name}", *more)
    yield slurm
    for name in PARTITIONS:
        slurm.run_command("scontrol", "delete", f"PartitionName={name}")


@pytest.fixture
def idle_cluster(cluster):
    """The cluster when all nodes accept jobs; otherwise a partition of two may have no room."""
    cluster.wait_until_idle()
    return cluster


@pytest.fixture
def check_request(real_corpus, tmp_path):
    """Function that returns the exit code and findings of a run of four processes."""

    def findings(slurm, *options):
        config = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), "layout.data=4")
        topics = ("--only=processes", "--only=time", "--only=slurm")
        done = CliRunner().invoke(main, ["check", *config, *options, *topics, "--json"], env=slurm.environment)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done.exit_code, json.loads(done.stdout)["findings"]

    return findings


@pytest.mark.parametrize("more", [(), ("--gpus-per-node=0",), ("--sbatch=--partition=large",), ("--sbatch=-pshort",)])
def test_valid_request_has_no_fault(idle_cluster, check_request, more):
    code, findings = check_request(idle_cluster, "--nodes=2", "--time=1:00:00", *more)
    assert code == 0, findings
    assert {finding["state"] for finding in findings} == {"ok", "unknown"}
    assert [finding["message"] for finding in findings if finding["topic"] == "slurm"][-1].startswith(
        "sbatch --test-only accepts the job"
    )


REFUSED = {
    "no such partition": (
        ["--sbatch=--partition=huge"],
        r"Slurm has no partition huge \(partitions: main, large, short, closed\): set another --sbatch",
    ),
    "a closed partition": (["--sbatch=-pclosed"], r"Slurm's partition closed is DOWN: choose another, or wait"),
    "too many nodes": (
        ["--nodes=4", "--sbatch=-pshort"],
        r"Slurm's partition short allows jobs of at most 2 nodes, not 4: change --nodes or the partition",
    ),
    "too long": (
        ["--time=3:00:00", "--sbatch=-pshort"],
        r"Slurm's partition short allows jobs of at most 2 h, not 3 h: lower --time; the run continues in the next job",
    ),
    "too many GPUs": (
        ["--gpus-per-node=9"],
        r"Slurm's partition main has 0 nodes with 9 GPUs, but the job requests 2: .* \(no node has more than 8\)",
    ),
    "what only Slurm knows": (
        ["--sbatch=--constraint=fast"],
        r"Slurm rejects the job \(.*[Ff]eature.*\): change the request; `sinfo` lists the partitions",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_request_is_the_only_fault(idle_cluster, check_request, case):
    options, sentence = REFUSED[case]
    code, findings = check_request(idle_cluster, "--nodes=2", *options)
    assert code == 2
    assert [finding["topic"] for finding in findings if finding["state"] == "fault"] == ["slurm"]
    says = next(finding["message"] for finding in findings if finding["state"] == "fault")
    assert re.match(sentence, says), says


def test_slurm_without_gpus(check_request):
    with slurm_cluster(nodes=2, gpus=0) as cluster_without_gpus:
        _, findings = check_request(cluster_without_gpus, "--nodes=2")
        [fault] = [finding["message"] for finding in findings if finding["state"] == "fault"]
        code, _ = check_request(cluster_without_gpus, "--nodes=2", "--gpus-per-node=0")
    assert fault == (
        "Slurm's partition main declares no GPUs, but the job requests 2 on each node: set GresTypes=gpu and "
        "Gres=gpu:N in slurm.conf, choose another partition, or use --gpus-per-node 0."
    )
    assert code == 0


def test_unresponsive_slurm_is_reported(cluster, check_request, monkeypatch, tmp_path):
    monkeypatch.setattr("megaptm.schedulers.slurm.command.ANSWER_SECONDS", 2.0)
    monkeypatch.setitem(cluster.environment, "SLURM_CONF", str(tmp_path / "slurm.conf"))
    code, findings = check_request(cluster, "--nodes=2")
    assert code == 2
    [fault] = [finding["message"] for finding in findings if finding["state"] == "fault"]
    assert re.match(r"Slurm does not answer \(scontrol: .*\): check that slurmctld runs", fault), fault
