"""A run is not continued as another, by another, or on other text; and what is wrong with a shard is told by name."""

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from megaptm.data import read_manifest
from tests.bad_input.mistakes import content, told
from tests.drills.program import arguments, checkpoints, finish, start, wait_for

pytestmark = pytest.mark.drill


@dataclass(frozen=True)
class Run:
    """A run that was stopped, its corpus, and what was said to a second job while it was alive."""

    folder: Path
    corpus: Path
    to_a_second_job: str

    def words(self, *more: str) -> list[str]:
        return ["train", *arguments("gpt2", self.folder, self.corpus, *more)]


@pytest.fixture(scope="module")
def run(real_corpus, tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    folder, corpus = place / "run", shutil.copytree(real_corpus("byte-bpe"), place / "corpus")
    words = ["train", *arguments("gpt2", folder, corpus, "train.steps=100000", "checkpoint.every=5")]
    job = start(*words)
    wait_for(lambda: checkpoints(folder), job)
    said = told(*words)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=120)
    assert job.returncode == 75
    return Run(folder, corpus, said)


def refused(words):
    """The sentence with which a run ends whose processes have started."""
    done = finish(*words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    [sentence] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return sentence.removeprefix("error: ")


def test_a_run_folder_in_use_by_a_live_run(run):
    assert run.to_a_second_job.startswith(f"run folder {run.folder} is in use by process ")
    assert run.to_a_second_job.endswith("wait for it, stop it, or choose another run=FOLDER")


def test_the_checkpoint_of_a_model_that_the_config_no_longer_names(run):
    before = content(run.folder)
    assert told(*run.words("train.steps=100000", "model.layers=2")) == (
        f"model.layers is 2 but the run in {run.folder} was started with 4: leave the key out to continue the run, or "
        "choose another run=FOLDER (`megaptm config keys` lists the keys that may change on resume)."
    )
    assert content(run.folder) == before


def test_a_checkpoint_of_another_model_in_the_run_folder(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run.folder / "checkpoints", folder / "checkpoints")
    before = content(folder)
    said = refused(["train", *arguments("gpt2", folder, run.corpus, "model.layers=2")])
    assert f"{folder}/checkpoints/step-" in said
    assert said.endswith(
        "has another model: its layers is 4, the config's is 2; choose another run=FOLDER, or use the config that the "
        "checkpoint was written with."
    )
    assert before.items() <= content(folder).items()


def test_a_corpus_of_another_tokenizer_in_the_place_of_the_one_trained_on(run, real_corpus):
    kept = run.corpus.with_name("kept")
    run.corpus.rename(kept)
    try:
        shutil.copytree(real_corpus("unigram"), run.corpus)
        before = content(run.folder / "checkpoints")
        said = refused(run.words("train.steps=100000"))
    finally:
        shutil.rmtree(run.corpus)
        kept.rename(run.corpus)
    assert "was trained with another tokenizer than that of the corpora in data.mix" in said
    assert said.endswith(f"use corpora built with {run.folder / 'tokenizer'}.")
    assert content(run.folder / "checkpoints") == before


def test_a_flipped_byte_in_a_shard(run, tmp_path):
    corpus, folder = shutil.copytree(run.corpus, tmp_path / "corpus"), tmp_path / "run"
    shard = corpus / read_manifest(corpus).splits["train"].shards[0].name
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    assert refused(["train", *arguments("gpt2", folder, corpus)]) == (
        f"{shard} is damaged (its sha256 differs from the manifest): copy the shard again or rebuild the corpus."
    )
    assert not folder.exists()
