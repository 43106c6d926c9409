"""Options for sbatch: what would change the shape of a job behind megaptm's back is refused, in every spelling."""

import pytest

from megaptm.errors import UserError
from megaptm.schedulers.slurm.options import option, read_options, script_lines


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("--nodes=2", r"--nodes \(-N\): give --nodes"),
        ("--nodes 2", r"--nodes \(-N\): give --nodes"),
        ("-N2", r"--nodes \(-N\): give --nodes"),
        ("-N 2", r"--nodes \(-N\): give --nodes"),
        ("-N=2", r"--nodes \(-N\): give --nodes"),
        ("-HN2", r"--nodes \(-N\): give --nodes"),
        ("--exclusive -N2", r"--nodes \(-N\): give --nodes"),
        ("--nod=2", r"--nod, which sbatch may read as --nodes: write it out"),
        ("-n8", r"--ntasks \(-n\): give --nodes and --per-node"),
        ("--ntasks-per-node=4", r"--ntasks-per-node: give --per-node"),
        ("--tasks-per-node=4", r"--tasks-per-node: give --per-node"),
        ("-a0-3", r"--array \(-a\): launch each run by itself"),
        ("--output=x.log", r"--output \(-o\): a job's log is logs/job-JOB\.log in the run folder"),
        ("-o x.log", r"--output \(-o\): a job's log"),
        ("-Jmine", r"--job-name \(-J\): a job is called as its run=FOLDER"),
        ("--gres=gpu:4", r"--gres: give --gpus-per-node"),
        ("-G 4", r"--gpus \(-G\): give --gpus-per-node"),
        ("--ti=10", r"--ti, which sbatch may read as --time: write it out"),
        ("--wrap=true", r"--wrap: the script is written for you"),
        ("--comment='a", r"--sbatch=--comment='a: a quote is not closed"),
        ("--comment=a\nrm -r x", r"has '\\n' in it"),
        ("large", r"--sbatch=large: options of sbatch begin with a dash"),
    ],
)
def test_an_option_that_is_asked_for_in_another_way_is_refused(written, said):
    with pytest.raises(UserError, match=said):
        read_options([written])


@pytest.mark.parametrize("written", ["--partition=large", "--partition large", "-plarge", "-p large", "-Hp large"])
def test_a_value_is_found_in_every_spelling(written):
    assert option(read_options(["--partition=other", written, "--no-requeue"]), "partition") == "large"


def test_lines_of_a_script_have_a_value_beside_its_option_and_spaces_in_quotes():
    words = read_options(["-p large", "--comment='two words #1'", "--gres=nvme:1 --exclusive"])
    assert script_lines(words) == ["-p large", '"--comment=two words #1"', "--gres=nvme:1", "--exclusive"]
