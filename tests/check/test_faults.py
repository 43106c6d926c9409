"""Each planted fault is found, with its own sentence, and is the only one; a good config has none."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest

from megaptm.check.data import corpora
from megaptm.check.finding import Case, look
from megaptm.config import load
from tests import ROOT
from tests.check.conftest import saying
from tests.check.plants import (
    another_config,
    another_model,
    another_server,
    another_text,
    another_tokenizer,
    asking,
    begin,
    closed_port,
    damaged_checkpoint,
    damaged_index,
    edited_manifest,
    few_tokens,
    file_above,
    file_in_the_way,
    finished,
    flipped_byte,
    folder_of_mlflow,
    full_disk,
    limited_files,
    live_run,
    lying_index,
    many_epochs,
    memory_disk,
    missing_shard,
    no_corpus,
    no_database,
    no_room,
    older_checkpoint,
    silent_object_store,
    silent_port,
    small_host,
    small_machine,
    small_validation_split,
    small_vocabulary,
    straddling,
    truncated_shard,
    two_tokenizers,
)

MACHINE = ("--machine", "this-cpu")


@pytest.fixture
def planted(bench):
    """What the check of a spoiled config says, and its exit code; what was planted is taken away at the end."""
    with ExitStack() as stack:

        def found(plant):
            words = plant(bench, stack)
            return bench.check(*words)

        yield found


FAULTS = [
    (flipped_byte, r"data: .*/train-000000.tar is damaged \(its sha256 is not the manifest's\): copy the shard again"),
    (missing_shard, r"data: .*/train-000000.tar is missing but the manifest names it: copy"),
    (
        truncated_shard,
        r"data: .*/validation-000000.tar has 1,000 bytes where the manifest says .* \(truncated\?\): copy",
    ),
    (damaged_index, r"data: .*/train-000000.index.npy is damaged"),
    (
        lying_index,
        r"data: .*/train-000000.tar: train-000000.index.npy finds no document of [\d,]+ tokens at byte .*; build",
    ),
    (edited_manifest, r"data: .*/manifest.json was changed after it was written \(its id does not match\): build"),
    (no_corpus, r"data: .*/nowhere/manifest.json does not exist, .* `megaptm corpus build TEXT out=.*nowhere token"),
    (
        silent_object_store,
        r"data: s3://bucket/corpus/manifest.json could not be reached for \d+ s .*: see that its server",
    ),
    (another_tokenizer, r"data: .*/tokenizer is not the tokenizer that its corpus was made with: put that one back"),
    (
        two_tokenizers,
        r"data: data.mix: .*/byte-bpe and .*/tales were made with different tokenizers: build one of them again",
    ),
    (small_vocabulary, r"data: model.vocabulary \(300\) is less than the 512 ids of the tokenizer of .*: set"),
    (
        few_tokens,
        r"data: train.steps \(4,000\) is more than the [\d,]+ steps that data.mix has text for .* raise data.ep",
    ),
    (small_validation_split, r"data: the validation split gives \d+ rows .* lower train.batch"),
    (file_in_the_way, r"folder: run \(.*/run\) cannot be a folder \(Not a directory\): choose another run=FOLDER"),
    (file_above, r"folder: run \(.*/file/run\) cannot be a folder \(Not a directory\): choose another run=FOLDER"),
    (full_disk, r"folder: no space left on the disk of run \(.*/disk/run\): free some there"),
    (no_room, r"folder: .*/run needs room for a checkpoint of .* TB, but its disk has .* free: free some there"),
    (
        limited_files,
        r"folder: .*/run needs room for a checkpoint of .*, but its disk takes no file of more than .* \(ulimit",
    ),
    (another_config, r"run: train.seed is 7 but the run in .* was begun with 1234: leave the key out"),
    (
        another_model,
        r"run: .*/step-00000010 is of another model: its layers is 4, the config's is 2; choose another run",
    ),
    (
        another_text,
        r"run: .* in data.mix was built again since .*/step-00000010 was trained on it: put back the corpus",
    ),
    (
        damaged_checkpoint,
        r"run: all checkpoints in .* are damaged \(.* does not hold what was written.*\): put a good copy",
    ),
    (
        closed_port,
        r"tracker: track.uri \(http://127.0.0.1:\d+\) does not answer \(Connection refused\): start the server",
    ),
    (
        silent_port,
        r"tracker: track.uri \(http://127.0.0.1:\d+\) does not answer \(no answer in 1 s\): start the server",
    ),
    (another_server, r"tracker: track.uri \(.*\) answers with 404 and not as MLflow does: correct it"),
    (no_database, r"tracker: track.uri \(sqlite:.*\) cannot be written \(file is not a database\): correct the path"),
    (
        folder_of_mlflow,
        r"tracker: track.uri \(.*/mlruns\) is a folder, which MLflow no longer writes to: use sqlite:///",
    ),
    (
        small_machine,
        r"memory: a rank needs .* GiB of the 0.5 GiB that a device of a small one has for it: raise layout.t",
    ),
    (
        small_host,
        r"memory: copies that checkpoints are written from take .* GiB that a host has for them: set checkpoint.asyn",
    ),
    (asking("--machine", "a100-80"), r"machine: --machine a100-80: no such machine; did you mean a100-80g\?"),
    (asking("--nodes", "0"), r"processes: --nodes 0: a job needs at least one node"),
    (
        asking("layout.data=4", "--nodes", "3", "--per-node", "2"),
        r"processes: 3 nodes x 2 processes are 6, but the layout",
    ),
    (
        asking("layout.data=2", "--nodes=1", *MACHINE),
        r"processes: 2 processes on each node are more than the 1 device of",
    ),
    (asking("layout.pipeline=3"), r"config: layout.pipeline \(3\) must divide the 4 layers of gpt2/custom"),
    (
        asking("train.stpes=20"),
        r"config: override 'train.stpes=20': unknown key train.stpes; did you mean train.steps\?",
    ),
    (asking("train.batch=many"), r"config: override 'train.batch=many': train.batch must be an integer, not 'many'"),
    (
        asking("--time", "soon"),
        r"time: --time soon is not a time: write minutes \(90\), H:M:S \(24:00:00\) or D-H \(2-12\)",
    ),
    (
        asking("--time", "15"),
        r"time: a job of 15 min is told to save 15 min before its end, which is at once: raise --time",
    ),
    (
        asking("--time", "16", *MACHINE),
        r"time: a job of 16 min makes no step: it starts in .* before its end it is told to",
    ),
]


@pytest.mark.parametrize(
    ("plant", "sentence"), FAULTS, ids=[f"{plant.__name__}-{n}" for n, (plant, _) in enumerate(FAULTS)]
)
def test_a_planted_fault_is_found_with_its_own_sentence_and_no_other(planted, monkeypatch, plant, sentence):
    monkeypatch.setattr("megaptm.check.tracker.ANSWER_SECONDS", 1.0)
    code, findings = planted(plant)
    assert code == 2
    [fault] = saying(findings, "fault")
    assert re.match(sentence, fault), fault
    assert fault.endswith((".", "?"))


WARNINGS = [
    (
        straddling,
        r"processes: layout.tensor \(2\) does not divide the 1 process of a node: tensor ranks talk in every",
    ),
    (
        many_epochs,
        r"data: .* is read [\d,.]+ times: build it from more text, lower train.steps, or set data.epochs=\d+ if",
    ),
    (
        older_checkpoint,
        r"run: .*/step-00000015/.* does not hold what was written.*: the run goes on from .* of step 10 in",
    ),
    (finished, r"run: the run has all its 20 steps: raise train.steps, or nothing is left to do"),
    (live_run, r"folder: .*/run is in use by process \d+ on .* since .*: a job that starts before it ends is refused"),
    (memory_disk, r"folder: /dev/shm/.* is in memory \(tmpfs\): what is saved there is gone with the machine"),
    (asking("optimizer.warmup_steps=20"), r"config: optimizer.warmup_steps \(20\) are not over when the run ends"),
    (
        asking("optimizer.decay=linear", "optimizer.stable_steps=20"),
        r"config: optimizer.stable_steps \(20\) are not over when the run ends",
    ),
    (
        asking("optimizer.decay_steps=90"),
        r"config: optimizer.decay_steps \(90\) lie far beyond train.steps \(20\): the rate",
    ),
    (
        asking("optimizer.decay_steps=9"),
        r"config: optimizer.decay_steps \(9\) end long before train.steps \(20\): the last 1",
    ),
    (
        asking("objective={causal-lm: {weight: {0: 1, 50: 0.5}}}"),
        r"config: objective: the weight of lm changes at step 50, which the run does not reach \(train.steps 20\)",
    ),
    (
        asking("objective={a: {task: causal-lm, share: 1}, b: {task: causal-lm, share: {0: 1, 50: 2}}}"),
        r"config: objective.b.share changes at step 50, which the run does not reach \(train.steps 20\)",
    ),
    (
        asking("objective={a: {task: causal-lm, share: 1}, b: {task: causal-lm, share: {0: 0, 20: 2}}}"),
        r"config: objective.b begins at step 20, where train.steps ends: only a phase after this one \(train.after",
    ),
    (
        asking("train.ramp={steps: {0: 6, 50: 12}}"),
        r"config: the batch has 6 rows when the run ends \(train.steps 20\), not the 12 of train.batch: train.ramp"
        r".steps has 12 from step 50 on; raise",
    ),
    (
        asking("train.ramp={start: 6, increment: 6, samples: 10000000}"),
        r"config: the batch has 6 rows .*: train.ramp.samples \(10,000,000\) are more than it reads; raise",
    ),
]


@pytest.mark.parametrize(
    ("plant", "sentence"), WARNINGS, ids=[f"{plant.__name__}-{n}" for n, (plant, _) in enumerate(WARNINGS)]
)
def test_what_runs_but_not_as_one_might_wish_is_warned_of_and_is_no_fault(planted, plant, sentence):
    code, findings = planted(plant)
    assert code == 0
    assert saying(findings, "fault") == []
    [warning] = saying(findings, "warning")
    assert re.match(sentence, warning), warning


def test_a_good_config_has_no_fault_and_no_warning_and_nothing_is_left_behind(bench):
    words = bench.words("track.enabled=true", "layout.data=2", "--time=2:00:00", *MACHINE)
    code, findings = bench.check(*words, topics=())
    assert code == 0
    assert saying(findings, "fault", "warning") == []
    assert {one["topic"] for one in findings} >= {"config", "processes", "memory", "data", "folder", "time", "software"}
    assert list(bench.place.iterdir()) == []


def test_a_run_that_was_begun_can_go_on_and_is_left_as_it_is(bench):
    begin(bench)
    before = {path: path.stat().st_mtime_ns for path in bench.run.rglob("*") if path.is_file()}
    code, findings = bench.check(*bench.words("layout.data=2"))
    assert code == 0
    assert saying(findings, "fault", "warning") == []
    assert "run: the run goes on from the checkpoint of step 10 of 20, which is whole." in saying(findings, "good")
    assert {path: path.stat().st_mtime_ns for path in bench.run.rglob("*") if path.is_file()} == before


def test_every_mistake_of_a_config_is_told_and_the_rest_is_looked_at(bench):
    corpus = bench.corpus()
    (corpus / "train-000000.tar").unlink()
    code, findings = bench.check(*bench.words("train.stpes=9", "layout.tensor=3", "layout.data=5", corpus=corpus))
    assert code == 2
    faults = saying(findings, "fault")
    expected = (
        "unknown key train.stpes",
        "(3) must divide the 2 attention heads",
        "train.batch (12)",
        "tar is missing",
    )
    for words in expected:
        assert [words in fault for fault in faults].count(True) == 1, faults
    assert any(one["topic"] == "folder" and one["state"] == "good" for one in findings)


@pytest.mark.parametrize(("there", "state"), [(True, "good"), (False, "fault")])
def test_a_file_of_vectors_is_looked_for(tmp_path, there, state):
    path = tmp_path / "glove.txt"
    if there:
        path.write_text("a 1 2\n")
    config = load(ROOT / "configs/cove/tiny.yaml", [f"model.vectors={path}", f"data.mix={{{tmp_path}/none: 1}}"])
    _, found = look([("data", corpora)], Case(config=config, hashing="none"))
    assert (found.state, str(path) in found.says) == (state, True)


def test_weights_that_are_not_there_are_told_beside_a_corpus_that_is_not(bench):
    words = bench.words(f"train.init_from={bench.place / 'none'}", corpus=bench.place / "nowhere")
    corpus, weights = saying(bench.check(*words, topics=("data",))[1], "fault")
    assert "is not a finished corpus" in corpus
    assert "none) is not the folder of a run: train it first" in weights
