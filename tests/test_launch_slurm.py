"""`megaptm launch slurm`, before Slurm is asked for anything."""

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from tests.drills.program import arguments


@pytest.fixture
def launch(real_corpus, tmp_path):
    """Runs it on a small config, without Slurm's programs."""

    def run(*words):
        config = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), "layout.data=4")
        return CliRunner().invoke(main, ["launch", "slurm", *config, *words], env={"PATH": "/nonexistent"})

    return run


def test_the_script_that_would_be_submitted_is_shown_and_nothing_made(launch, tmp_path):
    shown = launch("--dry-run", "--tasks-per-node", "2", "--time", "01:00:00", "--sbatch=--partition=large")
    assert shown.exit_code == 0
    for line in ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "--time=01:00:00", "--partition=large"):
        assert f"#SBATCH {line}\n" in shown.output
    assert shown.output.endswith(f'train {tmp_path / "run"} "$@"\n')
    assert not (tmp_path / "run").exists()


def test_the_nodes_follow_from_the_layout(launch):
    assert "#SBATCH --nodes=1\n" in launch("--dry-run").output
    assert "#SBATCH --ntasks-per-node=1\n" in launch("--dry-run", "--nodes", "4").output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks-per-node", "3"], "4 processes (data 4 x tensor 1 x pipeline 1) do not fill nodes of 3"),
        (["--nodes", "3"], "--nodes 3 of 4 processes are not the 4 of the layout"),
        (["--nodes", "0"], "0 is not in the range x>=1"),
        (["layout.tensor=3"], "layout.tensor (3) must divide"),
        (["data.mix={/nowhere: 1}"], "/nowhere"),
        ([], "sbatch is not on this machine"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(launch, tmp_path, words, said):
    refused = launch(*words)
    assert refused.exit_code == 2
    assert said in refused.output
    assert not (tmp_path / "run").exists()
