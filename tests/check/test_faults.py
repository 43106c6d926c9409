"""Each planted fault is found, and only it; a valid config has no findings but `ok`."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest

from megaptm.check.data import check_data
from megaptm.check.finding import CheckInput, run_checks
from megaptm.config import load_config
from tests import ROOT
from tests.check.conftest import messages
from tests.check.plants import (
    another_config,
    another_model,
    another_server,
    another_text,
    another_tokenizer,
    arguments_only,
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
    save_run,
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
def check_planted(bench):
    """Plant a fault, check the config, and return exit code and findings; the fault is removed at the end."""
    with ExitStack() as stack:
        yield lambda plant: bench.check(*plant(bench, stack))


FAULTS = [
    (
        flipped_byte,
        r"data: .*/train-000000.tar is damaged \(its sha256 differs from the manifest\): copy the shard again",
    ),
    (missing_shard, r"data: .*/train-000000.tar is missing but the manifest names it: copy"),
    (
        truncated_shard,
        r"data: .*/validation-000000.tar has 1,000 bytes where the manifest says .* \(truncated\?\): copy",
    ),
    (damaged_index, r"data: .*/train-000000.index.npy is damaged"),
    (
        lying_index,
        r"data: .*/train-000000.tar: train-000000.index.npy names a document of [\d,]+ tokens at byte .*; build",
    ),
    (edited_manifest, r"data: .*/manifest.json was changed after it was written, .* \(its id does not match\): build"),
    (no_corpus, r"data: .*/nowhere/manifest.json does not exist, .* `megaptm corpus build TEXT out=.*nowhere token"),
    (
        silent_object_store,
        r"data: s3://bucket/corpus/manifest.json could not be reached for \d+ s .*: check that its server",
    ),
    (another_tokenizer, r"data: .*/tokenizer is not the tokenizer that its corpus was built with: restore that one"),
    (
        two_tokenizers,
        r"data: data.mix: .*/byte-bpe and .*/tales were made with different tokenizers: build one of them again",
    ),
    (small_vocabulary, r"data: model.vocabulary \(300\) is less than the 512 ids of the tokenizer of .*: set"),
    (
        few_tokens,
        r"data: train.steps \(4,000\) is more than [\d,]+, the steps for which data.mix has text .* raise data.ep",
    ),
    (small_validation_split, r"data: the validation split has \d+ sequences .* lower train.batch"),
    (file_in_the_way, r"folder: run \(.*/run\) cannot be a folder \(Not a directory\): choose another run=FOLDER"),
    (file_above, r"folder: run \(.*/file/run\) cannot be a folder \(Not a directory\): choose another run=FOLDER"),
    (full_disk, r"folder: no space left on the disk of .*/disk/.*: free some space"),
    (no_room, r"folder: .*/run needs space for a checkpoint of .* TB, but its disk has .* free: free some space"),
    (
        limited_files,
        r"folder: .*/run needs space for a checkpoint of .*, but its disk accepts no file of more than .* \(ulimit",
    ),
    (another_config, r"run: train.seed is 7 but the run in .* was started with 1234: add --change to continue with it"),
    (
        another_model,
        r"run: .*/step-00000010 has another model: its layers is 4, the config's is 2; choose another run",
    ),
    (
        another_text,
        r"run: .* in data.mix was rebuilt after .*/step-00000010 was trained on it: restore the previous",
    ),
    (
        damaged_checkpoint,
        r"run: all checkpoints in .* are damaged \(.* is damaged: its sha256 differs.*\): put an undamaged copy",
    ),
    (
        closed_port,
        r"tracker: track.uri \(http://127.0.0.1:\d+\) does not answer \(Connection refused\): start the server",
    ),
    (
        silent_port,
        r"tracker: track.uri \(http://127.0.0.1:\d+\) does not answer \(no answer in 1 s\): start the server",
    ),
    (another_server, r"tracker: track.uri \(.*\) answers with 404, unlike MLflow: correct it"),
    (no_database, r"tracker: track.uri \(sqlite:.*\) cannot be written \(file is not a database\): correct the path"),
    (
        folder_of_mlflow,
        r"tracker: track.uri \(.*/mlruns\) is a folder, which MLflow no longer writes to: use sqlite:///",
    ),
    (
        small_machine,
        r"memory: a rank needs .* GiB of the 0.5 usable GiB of a device of a small one: raise layout.t",
    ),
    (
        small_host,
        r"memory: copies for asynchronous checkpoints take .* GiB of usable host memory: set checkpoint.asyn",
    ),
    (arguments_only("--machine", "a100-80"), r"machine: --machine a100-80: no such machine; did you mean a100-80g\?"),
    (arguments_only("--nodes", "0"), r"processes: --nodes 0: a job needs at least one node"),
    (
        arguments_only("layout.data=4", "--nodes", "3", "--per-node", "2"),
        r"processes: 3 nodes x 2 processes are 6, but the layout",
    ),
    (
        arguments_only("layout.data=2", "--nodes=1", *MACHINE),
        r"processes: 2 processes on each node are more than the 1 device of",
    ),
    (arguments_only("layout.pipeline=5"), r"config: layout.pipeline \(5\) must be at most the 4 layers of gpt2/custom"),
    (
        arguments_only("train.stpes=20"),
        r"config: override 'train.stpes=20': unknown key train.stpes; did you mean train.steps\?",
    ),
    (
        arguments_only("train.batch=many"),
        r"config: override 'train.batch=many': train.batch must be an integer, not 'many'",
    ),
    (
        arguments_only("--time", "soon"),
        r"time: --time soon is not a time: write minutes \(90\), H:M:S \(24:00:00\) or D-H \(2-12\)",
    ),
    (
        arguments_only("--time", "15"),
        r"time: a job of 15 min gets its signal to save 15 min before its end, so it would save immediately: raise",
    ),
    (
        arguments_only("--time", "16", *MACHINE),
        r"time: a job of 16 min completes no step: its start takes .* and it is signaled to save",
    ),
]


@pytest.mark.parametrize(
    ("plant", "sentence"), FAULTS, ids=[f"{plant.__name__}-{n}" for n, (plant, _) in enumerate(FAULTS)]
)
def test_planted_fault_is_the_only_fault(check_planted, monkeypatch, plant, sentence):
    monkeypatch.setattr("megaptm.check.tracker.ANSWER_SECONDS", 1.0)
    code, findings = check_planted(plant)
    assert code == 2
    [fault] = messages(findings, "fault")
    assert re.match(sentence, fault), fault
    assert fault.endswith((".", "?"))


WARNINGS = [
    (
        straddling,
        r"processes: layout.tensor \(2\) does not divide the 1 process of a node: tensor ranks communicate in every",
    ),
    (
        many_epochs,
        r"data: .* is read [\d,.]+ times: build it from more text, lower train.steps, or, if this is intended, set "
        r"data.epochs=\d+",
    ),
    (
        older_checkpoint,
        r"run: .*/step-00000015/.* is damaged: its sha256 differs.*: the run continues from .* of step 10 in",
    ),
    (finished, r"run: the run is complete: all 20 steps are done; raise train.steps to continue"),
    (live_run, r"folder: .*/run is in use by process \d+ on .* since .*: a job that starts before it ends is rejected"),
    (memory_disk, r"folder: /dev/shm/.* is in memory \(tmpfs\): checkpoints there are lost with the machine"),
    (
        arguments_only("optimizer.warmup_steps=20"),
        r"config: optimizer.warmup_steps \(20\) is not less than the length of the run",
    ),
    (
        arguments_only("optimizer.decay=linear", "optimizer.stable_steps=20"),
        r"config: optimizer.stable_steps \(20\) is not less than the length of the run",
    ),
    (
        arguments_only("optimizer.decay_steps=90"),
        r"config: optimizer.decay_steps \(90\) is far beyond train.steps \(20\): the rate",
    ),
    (
        arguments_only("optimizer.decay_steps=9"),
        r"config: optimizer.decay_steps \(9\) is far below train.steps \(20\): the last 1",
    ),
    (
        arguments_only("objective={causal-lm: {weight: {0: 1, 50: 0.5}}}"),
        r"config: objective: the weight of lm changes at step 50, which the run does not reach \(train.steps 20\)",
    ),
    (
        arguments_only("objective={a: {task: causal-lm, share: 1}, b: {task: causal-lm, share: {0: 1, 50: 2}}}"),
        r"config: objective.b.share changes at step 50, which the run does not reach \(train.steps 20\)",
    ),
    (
        arguments_only("objective={a: {task: causal-lm, share: 1}, b: {task: causal-lm, share: {0: 0, 20: 2}}}"),
        r"config: objective.b starts at step 20, the end of the run: only a following phase \(train.phase_start",
    ),
    (
        arguments_only("train.ramp={steps: {0: 6, 50: 12}}"),
        r"config: the batch has 6 sequences at the end of the run \(train.steps 20\), not the 12 of train.batch: "
        r"train.ramp.steps has 12 from step 50 on; raise",
    ),
    (
        arguments_only("train.ramp={start: 6, increment: 6, samples: 10000000}"),
        r"config: the batch has 6 sequences .*: train.ramp.samples \(10,000,000\) is more than the run reads; raise",
    ),
]


@pytest.mark.parametrize(
    ("plant", "sentence"), WARNINGS, ids=[f"{plant.__name__}-{n}" for n, (plant, _) in enumerate(WARNINGS)]
)
def test_planted_warning_is_the_only_warning(check_planted, plant, sentence):
    code, findings = check_planted(plant)
    assert code == 0
    assert messages(findings, "fault") == []
    [warning] = messages(findings, "warning")
    assert re.match(sentence, warning), warning


def test_valid_config_has_no_findings_and_leaves_no_files(bench):
    words = bench.words("track.enabled=true", "layout.data=2", "--time=2:00:00", *MACHINE)
    code, findings = bench.check(*words, topics=())
    assert code == 0
    assert messages(findings, "fault", "warning") == []
    assert {finding["topic"] for finding in findings} >= {
        "config",
        "processes",
        "memory",
        "data",
        "folder",
        "time",
        "software",
    }
    assert list(bench.folder.iterdir()) == []


def test_existing_run_is_ok_and_unchanged(bench):
    save_run(bench)
    before = {path: path.stat().st_mtime_ns for path in bench.run.rglob("*") if path.is_file()}
    code, findings = bench.check(*bench.words("layout.data=2"))
    assert code == 0
    assert messages(findings, "fault", "warning") == []
    assert "run: the run continues from the checkpoint of step 10 of 20, which is undamaged." in messages(
        findings, "ok"
    )
    assert {path: path.stat().st_mtime_ns for path in bench.run.rglob("*") if path.is_file()} == before


def test_all_config_errors_are_reported_and_other_topics_checked(bench):
    corpus = bench.corpus()
    (corpus / "train-000000.tar").unlink()
    code, findings = bench.check(*bench.words("train.stpes=9", "layout.tensor=3", "layout.data=5", corpus=corpus))
    assert code == 2
    faults = messages(findings, "fault")
    expected = (
        "unknown key train.stpes",
        "(3) must divide the 2 attention heads",
        "train.batch (12)",
        "tar is missing",
    )
    for words in expected:
        assert [words in fault for fault in faults].count(True) == 1, faults
    assert any(finding["topic"] == "folder" and finding["state"] == "ok" for finding in findings)


@pytest.mark.parametrize(("name", "state"), [("glove.txt", "ok"), ("missing.txt", "fault")])
def test_file_of_word_vectors_must_exist(tmp_path, name, state):
    (tmp_path / "glove.txt").write_text("a 1 2\n")
    path = tmp_path / name
    config = load_config(
        ROOT / "configs/cove/tiny.yaml", [f"model.word_vectors={path}", f"data.mix={{{tmp_path}/none: 1}}"]
    )
    _, finding = run_checks([("data", check_data)], CheckInput(config=config, hashing="none"))
    assert finding.state == state
    assert str(path) in finding.message


def test_missing_initial_weights_and_missing_corpus_are_both_reported(bench):
    words = bench.words(f"train.init_from={bench.folder / 'none'}", corpus=bench.folder / "nowhere")
    corpus, weights = messages(bench.check(*words, topics=("data",))[1], "fault")
    assert "is not a finished corpus" in corpus
    assert "none) is not the folder of a run: train it first" in weights
