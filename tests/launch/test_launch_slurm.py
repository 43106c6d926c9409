"""`megaptm launch slurm` before Slurm is used."""

import re
import shlex

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.check.timing import jobs_needed
from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.plan.machine import load_machine
from megaptm.plan.plan import make_plan
from megaptm.run.folder import read_config
from megaptm.run.submission import check_submitted, submitted_config, write_submission
from tests import ROOT
from tests.drills.program import arguments

HUGE = ("model.width=4096", "model.ffn=16384", "model.layers=24", "model.heads=32")


@pytest.fixture
def launch(real_corpus, tmp_path):
    """Run the command on a small config, without Slurm's programs."""

    def run(*words):
        config = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), "layout.data=4")
        return CliRunner().invoke(main, ["launch", "slurm", *config, *words], env={"PATH": "/nonexistent"})

    return run


def test_dry_run_prints_the_script_and_creates_nothing(launch, tmp_path):
    shown = launch("--dry-run", "--per-node", "2", "--time", "01:00:00", "--sbatch=--partition=large")
    assert shown.exit_code == 0
    for line in ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "--time=01:00:00", "--partition=large"):
        assert f"#SBATCH {line}\n" in shown.output
    assert re.search(rf'^train {tmp_path / "run"}/submitted/[0-9a-f]{{16}}\.yaml "\$@"$', shown.stdout, re.MULTILINE)
    assert not (tmp_path / "run").exists()


def test_nodes_follow_from_the_layout(launch):
    assert "#SBATCH --nodes=1\n" in launch("--dry-run").output
    assert "#SBATCH --ntasks-per-node=1\n" in launch("--dry-run", "--nodes", "4").output


def test_num_jobs_follows_from_the_plan():
    """More than one job a day, because each job also starts and saves."""
    made = make_plan(load_config(ROOT / "configs/gpt3/175b.yaml"), load_machine("a100-80g"))
    days = made.days_with_failures
    assert days < jobs_needed([made], 24 * 3600.0, warning=900.0) < 1.1 * days
    assert jobs_needed([made], 12 * 3600.0, warning=900.0) > 2 * days
    assert jobs_needed([made], 60 * 86400.0, warning=900.0) == 1


def test_dry_run_prints_the_number_of_jobs(launch):
    assert "1 job." in launch("--dry-run", "--machine", "this-cpu").stderr
    assert "3 consecutive jobs." in launch("--dry-run", "--machine", "this-cpu", "--jobs", "3").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--per-node", "3"], "2 nodes x 3 processes are 6, but the layout needs 4 (data 4 x tensor 1 x pipeline 1)"),
        (["--nodes", "3"], "3 nodes x 2 processes are 6, but the layout needs 4"),
        (["--nodes", "0"], "--nodes 0: a job needs at least one node"),
        (["--machine", "a100"], "--machine a100: no such machine; did you mean a100-"),
        (["--time", "soon"], "--time soon is not a time"),
        (
            ["--time", "10"],
            "a job of 10 min gets its signal to save 15 min before its end, so it would save immediately",
        ),
        (["--machine", "v100-32g", *HUGE], "a rank needs 72.9 GiB of the 29.7 usable GiB of a device of V100 32 GB"),
        (["--sbatch=--nodes=4"], "--sbatch must not contain --nodes (-N): use --nodes."),
        (["--sbatch=-N4"], "--sbatch must not contain --nodes (-N): use --nodes."),
        (["--sbatch=--gpus-per-node=9"], "--sbatch=--gpus-per-node=9: set the number of GPUs with --gpus-per-node"),
        (["--sbatch=--gpus-per-node=a100:3"], "with the same number: --sbatch=--gpus-per-node=TYPE:4."),
        (['run="/a/line\\nbreak"'], r"run ('/a/line\nbreak') contains '\n', which"),
        (["run=/a/100%j"], "run ('/a/100%j') contains '%', which sbatch does not read literally"),
        (['run=/a/"b"'], "contains '\"', which sbatch does not read literally"),
        (["run=/a/b\\c"], r"contains '\\', which sbatch does not read literally"),
        (["--jobs", "501"], "501 consecutive jobs are more than the 500 that are submitted at once"),
        (
            ["--machine=this-cpu", "--time=17:00", "train.steps=1000000000"],
            "consecutive jobs are more than the 500 that are submitted at once: use more nodes",
        ),
        (["layout.tensor=3"], "layout.tensor (3) must divide"),
        (["data.mix={/nowhere: 1}"], "/nowhere"),
        ([], "sbatch is not installed on this machine"),
    ],
)
def test_user_error_leaves_no_run_folder(launch, tmp_path, words, message):
    result = launch(*words)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "run").exists()


def test_dry_run_prints_script_and_faults_without_slurm(launch, tmp_path):
    shown = launch("--dry-run", "--time", "10", "data.mix={/nowhere: 1}")
    assert shown.exit_code == 2
    assert re.search(r'^train .*/submitted/[0-9a-f]{16}\.yaml "\$@"$', shown.stdout, re.MULTILINE)
    assert "error: this script would not be submitted (2 faults):\n  /nowhere/manifest.json does" in shown.stderr
    assert "\n  a job of 10 min gets its signal to save 15 min before its end" in shown.stderr
    assert not (tmp_path / "run").exists()


def test_dry_run_prints_script_with_too_many_jobs(launch):
    shown = launch("--dry-run", "--jobs", "501")
    assert shown.exit_code == 2
    assert shown.stdout.startswith("#!/usr/bin/env bash\n")
    assert "501 consecutive jobs are more than the 500" in shown.stderr


def test_typed_mlflow_url_is_repeated_in_the_job(launch):
    assert re.search(
        r"^train \S+ track.uri=http://mine:5000 ", launch("--dry-run", "track.uri=http://mine:5000").stdout, re.M
    )


def test_gpu_type_in_sbatch_options(launch):
    assert "#SBATCH --gpus-per-node=a100:4\n" in launch("--dry-run", "--sbatch=--gpus-per-node=a100:4").output


def test_run_folder_with_spaces_is_quoted(launch):
    shown = launch("--dry-run", "run=\"/a/lr 3e-4; 'x' #1\"").stdout
    assert "#SBATCH --job-name=lr_3e-4___x___1\n" in shown
    assert "#SBATCH \"--output=/a/lr 3e-4; 'x' #1/logs/job-%j.log\"\n" in shown
    [words] = re.findall(r'^train (.*) "\$@"$', shown, re.MULTILINE)
    assert shlex.split(words)[0].startswith("/a/lr 3e-4; 'x' #1/submitted/")


def test_changed_submitted_config_is_refused(tmp_path, real_corpus):
    config = read_config(
        ROOT / "configs/gpt2/tiny.yaml", [f"run={tmp_path}", f"data.mix={{{real_corpus('byte-bpe')}: 1}}"]
    )
    write_submission(config, "")
    path = submitted_config(config)
    check_submitted(path)
    assert read_config(path) == config
    path.write_text(path.read_text() + "\n")
    with pytest.raises(UserError, match="was changed after this job was submitted with it"):
        check_submitted(path)
