"""A run is not resumed with another model, tokenizer or second process, and a damaged shard is named."""

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from megaptm.data import read_manifest
from tests.bad_input.commands import content, user_error
from tests.drills.program import arguments, checkpoints, finish, start, wait_for

pytestmark = pytest.mark.drill


@dataclass(frozen=True)
class Run:
    """A stopped run, its corpus, and the error message of a second job that was started beside it."""

    folder: Path
    corpus: Path
    second_job_error: str

    def words(self, *more: str) -> list[str]:
        return ["train", *arguments("gpt2", self.folder, self.corpus, *more)]


@pytest.fixture(scope="module")
def run(real_corpus, tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    folder, corpus = root / "run", shutil.copytree(real_corpus("byte-bpe"), root / "corpus")
    words = ["train", *arguments("gpt2", folder, corpus, "train.steps=100000", "checkpoint.every=5")]
    job = start(*words)
    wait_for(lambda: checkpoints(folder), job)
    message = user_error(*words)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=120)
    assert job.returncode == 75
    return Run(folder, corpus, message)


def refused(words):
    """Error message of a run that fails after its processes have started."""
    done = finish(*words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    [sentence] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return sentence.removeprefix("error: ")


def test_run_folder_in_use(run):
    assert run.second_job_error.startswith(f"run folder {run.folder} is in use by process ")
    assert run.second_job_error.endswith("wait for it, stop it, or choose another run=FOLDER")


def test_config_with_another_model(run):
    before = content(run.folder)
    assert user_error(*run.words("train.steps=100000", "model.layers=2")) == (
        f"model.layers is 2 but the run in {run.folder} was started with 4: leave the key out to continue the run, or "
        "choose another run=FOLDER (`megaptm config keys` lists the keys that may change on resume)."
    )
    assert content(run.folder) == before


def test_checkpoint_of_another_model(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run.folder / "checkpoints", folder / "checkpoints")
    before = content(folder)
    message = refused(["train", *arguments("gpt2", folder, run.corpus, "model.layers=2")])
    assert f"{folder}/checkpoints/step-" in message
    assert message.endswith(
        "has another model: its layers is 4, the config's is 2; choose another run=FOLDER, or use the config that the "
        "checkpoint was written with."
    )
    assert before.items() <= content(folder).items()


def test_corpus_with_another_tokenizer(run, real_corpus):
    moved = run.corpus.with_name("moved")
    run.corpus.rename(moved)
    try:
        shutil.copytree(real_corpus("unigram"), run.corpus)
        before = content(run.folder / "checkpoints")
        message = refused(run.words("train.steps=100000"))
    finally:
        shutil.rmtree(run.corpus)
        moved.rename(run.corpus)
    assert "was trained with another tokenizer than that of the corpora in data.mix" in message
    assert message.endswith(f"use corpora built with {run.folder / 'tokenizer'}.")
    assert content(run.folder / "checkpoints") == before


def test_flipped_byte_in_a_shard(run, tmp_path):
    corpus, folder = shutil.copytree(run.corpus, tmp_path / "corpus"), tmp_path / "run"
    shard = corpus / read_manifest(corpus).splits["train"].shards[0].name
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    assert refused(["train", *arguments("gpt2", folder, corpus)]) == (
        f"{shard} is damaged (its sha256 differs from the manifest): copy the shard again or rebuild the corpus."
    )
    assert not folder.exists()
