"""Faults that `megaptm check` must find: each function plants one in a bench and returns the command-line arguments."""

from __future__ import annotations

import http.server
import json
import os
import resource
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
import yaml

from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.config import config_to_yaml, resolve_model
from megaptm.data import read_manifest, write_manifest
from megaptm.data.files import npy_bytes
from megaptm.plan.machine import FOLDER
from megaptm.resilience.events import CheckpointEvent, Events
from megaptm.resilience.lock import RunLock
from megaptm.run.compatibility import compatibility_record
from megaptm.run.folder import read_config
from tests.storage.server import free_port

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
    """Plant an index as a buggy builder would write it: hashes match, but the second document is at another offset."""
    import hashlib

    corpus = bench.corpus()
    index = np.load(corpus / "train-000000.index.npy")
    index[1, 0] += 64
    (corpus / "train-000000.index.npy").write_bytes(content := npy_bytes(index))
    rewrite(corpus, index_sha256=hashlib.sha256(content).hexdigest())
    return bench.words(corpus=corpus)


def rewrite(corpus, **changes):
    """Write the manifest again with changes to its first shard."""
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
    return bench.words(corpus=bench.folder / "nowhere")


def silent_object_store(bench, stack):
    variables = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}", "AWS_ACCESS_KEY_ID": "a"}
    stack.enter_context(environment(**variables, AWS_SECRET_ACCESS_KEY="b", AWS_DEFAULT_REGION="us-east-1"))
    # A process caches its first file system, which belongs to the server of other tests.
    clear_cache = fsspec.get_filesystem_class("s3").clear_instance_cache
    clear_cache()
    stack.callback(clear_cache)
    return bench.words("data.mix={s3://bucket/corpus: 1}", "data.timeout_seconds=5")


@contextmanager
def environment(**variables):
    before = dict(os.environ)
    os.environ.update(variables)
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
    (bench.folder / "file").write_text("")
    return bench.words(f"run={bench.folder}/file/run")


def full_disk(bench, stack):
    disk = bench.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system that can be filled")
    stack.callback(subprocess.run, ["umount", str(disk)], check=True)
    return bench.words(f"run={disk}/run")


def no_room(bench, _):
    """Four checkpoints of this model take 33 TB."""
    shape = ["model.size=custom", "model.layers=1", "model.width=262144", "model.heads=512", "model.ffn=1048576"]
    return bench.words(*shape)


def limited_files(bench, stack):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    return bench.words("model.width=256", "model.ffn=1024")


# An existing run


def save_run(bench, *, steps=(10,), config=True, corpora=None):
    """Create a run of the bench's config with checkpoints at these steps."""
    import torch

    path, *overrides = bench.words()
    run_config = read_config(Path(path), overrides)
    manifest = read_manifest(bench.real_corpus("byte-bpe"))
    state = compatibility_record(resolve_model(run_config), manifest.tokenizer["fingerprint"])
    state["corpora"] = corpora or {str(bench.real_corpus("byte-bpe")): manifest.id}
    store = CheckpointStore(bench.run, fence=lambda: True)
    with Events(bench.run) as events:
        for step in steps:
            store.prepare(step)
            store.write(step, 0, [TensorPiece("weight/a", (4,), (0,), (4,), torch.ones(4))])
            store.commit(step, state, ranks=1)
            events.write(CheckpointEvent(step=step, bytes=16, seconds=0.0))
    if config:
        (bench.run / "config.yaml").write_text(config_to_yaml(run_config))


def another_config(bench, _):
    save_run(bench)
    return bench.words("train.seed=7")


def another_model(bench, _):
    save_run(bench, config=False)
    return bench.words("model.layers=2")


def another_text(bench, _):
    save_run(bench, corpora={str(bench.real_corpus("byte-bpe")): "an old id"})
    return bench.words()


def damage(bench, step):
    file = bench.run / f"checkpoints/step-{step:08d}/rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def damaged_checkpoint(bench, _):
    save_run(bench)
    damage(bench, 10)
    return bench.words()


# The tracking server


def closed_port(bench, _):
    return bench.words("track.enabled=true", f"track.uri=http://127.0.0.1:{free_port()}")


def silent_port(bench, stack):
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return bench.words("track.enabled=true", f"track.uri=http://127.0.0.1:{server.getsockname()[1]}")


class Page(http.server.BaseHTTPRequestHandler):
    """Web server that is not MLflow."""

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
    (bench.folder / "mlflow.db").write_text("Dear diary, " * 100)
    return bench.words("track.enabled=true", f"track.uri=sqlite:///{bench.folder}/mlflow.db")


def folder_of_mlflow(bench, _):
    return bench.words("track.enabled=true", f"track.uri={bench.folder}/mlruns")


# Machines and jobs


def small_machine(bench, _):
    """Plant a machine like this one, with half a GiB for a run."""
    machine = yaml.safe_load((FOLDER / "this-cpu.yaml").read_text())
    path = bench.folder / "small.yaml"
    path.write_text(yaml.safe_dump({**machine, "name": "a small one", "memory_gib": machine["reserved_gib"] + 0.5}))
    return bench.words("model.vocabulary=100000", "model.width=512", "--machine", str(path))


def small_host(bench, _):
    """Plant a host whose memory cannot hold the checkpoint copies of its GPUs."""
    machine = yaml.safe_load((FOLDER / "v100-32g.yaml").read_text())
    path = bench.folder / "host.yaml"
    path.write_text(yaml.safe_dump({**machine, "host_gib": 0.5}))
    return bench.words("model.vocabulary=100000", "model.width=512", "--machine", str(path))


def arguments_only(*options):
    """Return a plant that only adds command-line arguments."""
    return lambda bench, _: bench.words(*options)


# Warnings


def straddling(bench, _):
    return bench.words("layout.tensor=2", "layout.data=2", "--nodes=4", "--per-node=1")


def many_epochs(bench, _):
    return bench.words("train.steps=100000")


def older_checkpoint(bench, _):
    save_run(bench, steps=(10, 15))
    damage(bench, 15)
    return bench.words()


def finished(bench, _):
    save_run(bench, steps=(20,))
    return bench.words()


def live_run(bench, stack):
    bench.run.mkdir()
    stack.enter_context(RunLock(bench.run))
    return bench.words()


def memory_disk(bench, stack):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("needs /dev/shm")
    return bench.words(f"run=/dev/shm/{bench.folder.name}-{os.getpid()}")
