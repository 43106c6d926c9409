"""Each planted fault is found, with its own sentence, and is the only one; a good config has none."""

from __future__ import annotations

import http.server
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
import yaml

from megaptm.checkpoint.store import Store
from megaptm.checkpoint.tensors import Piece
from megaptm.config import dump, resolve_model
from megaptm.data import read_manifest, write_manifest
from megaptm.data.files import npy_bytes
from megaptm.plan.machine import FOLDER
from megaptm.resilience.events import Events
from megaptm.resilience.lock import RunLock
from megaptm.train.identity import identity
from megaptm.train.prepare import read_config
from tests.check.conftest import saying
from tests.storage.server import free_port

MACHINE = ("--machine", "this-cpu")


@pytest.fixture
def planted(bench):
    """What the check of a spoiled config says, and its exit code; what was planted is taken away at the end."""
    with ExitStack() as stack:

        def found(plant):
            words = plant(bench, stack)
            return bench.check(*words)

        yield found


# The corpus


def flipped_byte(bench, _):
    corpus = bench.corpus()
    shard = corpus / "train-000000.tar"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    return bench.words(corpus=corpus)


def missing_shard(bench, _):
    corpus = bench.corpus()
    (corpus / "train-000000.tar").unlink()
    return bench.words(corpus=corpus)


def truncated_shard(bench, _):
    corpus = bench.corpus()
    os.truncate(corpus / "validation-000000.tar", 1000)
    return bench.words(corpus=corpus)


def damaged_index(bench, _):
    corpus = bench.corpus()
    index = np.load(corpus / "train-000000.index.npy")
    (corpus / "train-000000.index.npy").write_bytes(npy_bytes(index + 1))
    return bench.words(corpus=corpus)


def lying_index(bench, _):
    """As a builder with a mistake would leave it: every hash is right, and the second document lies elsewhere."""
    import hashlib

    corpus = bench.corpus()
    index = np.load(corpus / "train-000000.index.npy")
    index[1, 0] += 64
    (corpus / "train-000000.index.npy").write_bytes(content := npy_bytes(index))
    rewrite(corpus, index_sha256=hashlib.sha256(content).hexdigest())
    return bench.words(corpus=corpus)


def rewrite(corpus, **changes):
    """The manifest anew, with another first shard."""
    manifest = read_manifest(corpus)
    splits = {name: list(split.shards) for name, split in manifest.splits.items()}
    splits["train"][0] = replace(splits["train"][0], **changes)
    described = {"dtype": manifest.dtype, "tokenizer": manifest.tokenizer, "made_from": manifest.made_from}
    write_manifest(corpus, splits=splits, fields=manifest.fields, **described)


def edited_manifest(bench, _):
    corpus = bench.corpus()
    manifest = json.loads((corpus / "manifest.json").read_text())
    manifest["splits"]["train"]["tokens"] += 1
    (corpus / "manifest.json").write_text(json.dumps(manifest))
    return bench.words(corpus=corpus)


def no_corpus(bench, _):
    return bench.words(corpus=bench.place / "nowhere")


def silent_object_store(bench, stack):
    given = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}", "AWS_ACCESS_KEY_ID": "a"}
    stack.enter_context(environment(**given, AWS_SECRET_ACCESS_KEY="b", AWS_DEFAULT_REGION="us-east-1"))
    # A process keeps the file system that it first opened, which is of the server of other tests.
    forget = fsspec.get_filesystem_class("s3").clear_instance_cache
    forget()
    stack.callback(forget)
    return bench.words("data.mix={s3://bucket/corpus: 1}", "data.patience=5")


@contextmanager
def environment(**given):
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def another_tokenizer(bench, _):
    corpus = bench.corpus()
    shutil.rmtree(corpus / "tokenizer")
    shutil.copytree(bench.other_corpus / "tokenizer", corpus / "tokenizer")
    return bench.words(corpus=corpus)


def two_tokenizers(bench, _):
    return bench.words(f"data.mix={{{bench.real_corpus('byte-bpe')}: 1, {bench.other_corpus}: 1}}")


def small_vocabulary(bench, _):
    return bench.words("model.vocabulary=300")


def few_tokens(bench, _):
    return bench.words("train.steps=4000", "data.epochs=1")


def small_validation_split(bench, _):
    return bench.words("train.batch=12000", "train.steps=1", "optimizer.warmup_steps=0")


# The run folder


def file_in_the_way(bench, _):
    bench.run.write_text("")
    return bench.words()


def file_above(bench, _):
    (bench.place / "file").write_text("")
    return bench.words(f"run={bench.place}/file/run")


def full_disk(bench, stack):
    disk = bench.place / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system that can be filled")
    stack.callback(subprocess.run, ["umount", str(disk)], check=True)
    return bench.words(f"run={disk}/run")


def no_room(bench, _):
    """Nobody has 33 TB for four checkpoints of such a model."""
    shape = ["model.size=custom", "model.layers=1", "model.width=262144", "model.heads=512", "model.ffn=1048576"]
    return bench.words(*shape)


def limited_files(bench, stack):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    return bench.words("model.width=256", "model.ffn=1024")


# A run that was begun


def begin(bench, *, steps=(10,), config=True, corpora=None):
    """A run of the bench's config that was saved at these steps."""
    import torch

    path, *overrides = bench.words()
    wanted = read_config(Path(path), overrides)
    manifest = read_manifest(bench.real_corpus("byte-bpe"))
    state = identity(resolve_model(wanted), manifest.tokenizer["fingerprint"])
    state["corpora"] = corpora or {str(bench.real_corpus("byte-bpe")): manifest.id}
    store = Store(bench.run, fence=lambda: True)
    with Events(bench.run) as events:
        for step in steps:
            store.prepare(step)
            store.write(step, 0, [Piece("weight/a", (4,), (0,), (4,), torch.ones(4))])
            store.commit(step, state, ranks=1)
            events.write("checkpoint", step=step, bytes=16, seconds=0.0)
    if config:
        (bench.run / "config.yaml").write_text(dump(wanted))


def another_config(bench, _):
    begin(bench)
    return bench.words("train.seed=7")


def another_model(bench, _):
    begin(bench, config=False)
    return bench.words("model.layers=2")


def another_text(bench, _):
    begin(bench, corpora={str(bench.real_corpus("byte-bpe")): "an id of old"})
    return bench.words()


def damage(bench, step):
    file = bench.run / f"checkpoints/step-{step:08d}/rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def damaged_checkpoint(bench, _):
    begin(bench)
    damage(bench, 10)
    return bench.words()


# The tracking server


def closed_port(bench, _):
    return bench.words("track.enabled=true", f"track.uri=http://127.0.0.1:{free_port()}")


def silent_port(bench, stack):
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return bench.words("track.enabled=true", f"track.uri=http://127.0.0.1:{server.getsockname()[1]}")


class Page(http.server.BaseHTTPRequestHandler):
    """A server that is no MLflow."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def another_server(bench, stack):
    server = stack.enter_context(http.server.HTTPServer(("127.0.0.1", 0), Page))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return bench.words("track.enabled=true", f"track.uri=http://127.0.0.1:{server.server_port}")


def no_database(bench, _):
    (bench.place / "mlflow.db").write_text("Dear diary, " * 100)
    return bench.words("track.enabled=true", f"track.uri=sqlite:///{bench.place}/mlflow.db")


def folder_of_mlflow(bench, _):
    return bench.words("track.enabled=true", f"track.uri={bench.place}/mlruns")


# Machines and jobs


def small_machine(bench, _):
    """This one, with half a GiB for a run."""
    machine = yaml.safe_load((FOLDER / "this-cpu.yaml").read_text())
    path = bench.place / "small.yaml"
    path.write_text(yaml.safe_dump({**machine, "name": "a small one", "memory_gib": machine["reserved_gib"] + 0.5}))
    return bench.words("model.vocabulary=100000", "model.width=512", "--machine", str(path))


def asking(*options):
    """A plant that changes only what stands on the command line."""
    return lambda bench, _: bench.words(*options)


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
    (no_corpus, r"data: .*/nowhere/manifest.json does not exist, .* build it with `megaptm corpus build`"),
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
    (another_config, r"run: train.seed is 7 but the run in .* was begun with 1234: set it back"),
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
        r"time: --time soon is no time: write minutes \(90\), H:M:S \(24:00:00\) or D-H \(2-12\)",
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


def name_of(plant):
    return getattr(plant, "__name__", None)


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


def straddling(bench, _):
    return bench.words("layout.tensor=2", "layout.data=2", "--nodes=4", "--per-node=1")


def many_epochs(bench, _):
    return bench.words("train.steps=100000")


def older_checkpoint(bench, _):
    begin(bench, steps=(10, 15))
    damage(bench, 15)
    return bench.words()


def finished(bench, _):
    begin(bench, steps=(20,))
    return bench.words()


def live_run(bench, stack):
    bench.run.mkdir()
    stack.enter_context(RunLock(bench.run))
    return bench.words()


def memory_disk(bench, stack):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("needs /dev/shm")
    return bench.words(f"run=/dev/shm/{bench.place.name}-{os.getpid()}")


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
        asking("optimizer.decay_steps=90"),
        r"config: optimizer.decay_steps \(90\) lie far beyond train.steps \(20\): the rate",
    ),
    (
        asking("optimizer.decay_steps=9"),
        r"config: optimizer.decay_steps \(9\) end long before train.steps \(20\): the last 1",
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
