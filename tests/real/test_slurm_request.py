"""What Slurm would not grant is told before a job is submitted, in a sentence that says what to change."""

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
    """The shared one, with a partition for short jobs and one that is closed."""
    for name, more in PARTITIONS.items():
        slurm.say("scontrol", "create", f"PartitionName={name}", *more)
    yield slurm
    for name in PARTITIONS:
        slurm.say("scontrol", "delete", f"PartitionName={name}")


@pytest.fixture
def idle(cluster):
    """The same when all its nodes take jobs, else Slurm truly has no room in a partition of two."""
    cluster.wait_until_idle()
    return cluster


@pytest.fixture
def asked(real_corpus, tmp_path):
    """Findings about a run of four processes on a Slurm, with more options."""

    def findings(slurm, *options):
        config = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), "layout.data=4")
        topics = ("--only=processes", "--only=time", "--only=slurm")
        done = CliRunner().invoke(main, ["check", *config, *options, *topics, "--json"], env=slurm.environment)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done.exit_code, json.loads(done.stdout)["findings"]

    return findings


@pytest.mark.parametrize("more", [(), ("--gpus-per-node=0",), ("--sbatch=--partition=large",), ("--sbatch=-pshort",)])
def test_a_good_request_has_no_fault(idle, asked, more):
    code, findings = asked(idle, "--nodes=2", "--time=1:00:00", *more)
    assert code == 0, findings
    assert {one["state"] for one in findings} == {"ok", "unknown"}
    assert [one["message"] for one in findings if one["topic"] == "slurm"][-1].startswith(
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
def test_a_request_that_slurm_cannot_grant_is_the_only_fault(idle, asked, case):
    options, sentence = REFUSED[case]
    code, findings = asked(idle, "--nodes=2", *options)
    assert code == 2
    assert [one["topic"] for one in findings if one["state"] == "fault"] == ["slurm"]
    says = next(one["message"] for one in findings if one["state"] == "fault")
    assert re.match(sentence, says), says


def test_a_slurm_without_gpus_is_asked_for_none(asked):
    with slurm_cluster(nodes=2, gpus=0) as plain:
        _, findings = asked(plain, "--nodes=2")
        [fault] = [one["message"] for one in findings if one["state"] == "fault"]
        code, _ = asked(plain, "--nodes=2", "--gpus-per-node=0")
    assert fault == (
        "Slurm's partition main declares no GPUs, but the job requests 2 on each node: set GresTypes=gpu and "
        "Gres=gpu:N in slurm.conf, choose another partition, or use --gpus-per-node 0."
    )
    assert code == 0


def test_a_slurm_that_does_not_answer_is_named(cluster, asked, monkeypatch, tmp_path):
    monkeypatch.setattr("megaptm.schedulers.slurm.command.ANSWER_SECONDS", 2.0)
    monkeypatch.setitem(cluster.environment, "SLURM_CONF", str(tmp_path / "slurm.conf"))
    code, findings = asked(cluster, "--nodes=2")
    assert code == 2
    [fault] = [one["message"] for one in findings if one["state"] == "fault"]
    assert re.match(r"Slurm does not answer \(scontrol: .*\): check that slurmctld runs", fault), fault
