"""Options for sbatch: those that megaptm sets itself are refused in each spelling."""

import pytest

from megaptm.errors import UserError
from megaptm.schedulers.slurm.options import parse_sbatch_options, sbatch_lines, sbatch_option_value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--nodes=2", r"--nodes \(-N\): use --nodes"),
        ("--nodes 2", r"--nodes \(-N\): use --nodes"),
        ("-N2", r"--nodes \(-N\): use --nodes"),
        ("-N 2", r"--nodes \(-N\): use --nodes"),
        ("-N=2", r"--nodes \(-N\): use --nodes"),
        ("-HN2", r"--nodes \(-N\): use --nodes"),
        ("--exclusive -N2", r"--nodes \(-N\): use --nodes"),
        ("--nod=2", r"--nod, which sbatch may read as --nodes: write the full name"),
        ("-n8", r"--ntasks \(-n\): use --nodes and --per-node"),
        ("--ntasks-per-node=4", r"--ntasks-per-node: use --per-node"),
        ("--tasks-per-node=4", r"--tasks-per-node: use --per-node"),
        ("-a0-3", r"--array \(-a\): launch each run separately"),
        ("--output=x.log", r"--output \(-o\): a job's log is logs/job-JOB\.log in the run folder"),
        ("-o x.log", r"--output \(-o\): a job's log"),
        ("-Jmine", r"--job-name \(-J\): the job is named after run=FOLDER"),
        ("--gres=gpu:4", r"--gres: use --gpus-per-node"),
        ("-G 4", r"--gpus \(-G\): use --gpus-per-node"),
        ("--ti=10", r"--ti, which sbatch may read as --time: write the full name"),
        ("--wrap=true", r"--wrap: megaptm writes the script"),
        ("--comment='a", r"--sbatch=--comment='a: a quote is not closed"),
        ("--comment=a\nrm -r x", r"contains '\\n'"),
        ("large", r"--sbatch=large: options of sbatch start with a dash"),
    ],
)
def test_option_that_megaptm_sets_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        parse_sbatch_options([text])


@pytest.mark.parametrize("text", ["--partition=large", "--partition large", "-plarge", "-p large", "-Hp large"])
def test_option_value_in_each_spelling(text):
    assert (
        sbatch_option_value(parse_sbatch_options(["--partition=other", text, "--no-requeue"]), "partition") == "large"
    )


def test_script_lines_quote_spaces_and_keep_values_beside_options():
    words = parse_sbatch_options(["-p large", "--comment='two words #1'", "--gres=nvme:1 --exclusive"])
    assert sbatch_lines(words) == ["-p large", '"--comment=two words #1"', "--gres=nvme:1", "--exclusive"]
