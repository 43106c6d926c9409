"""Data ranks share the verdicts on shards: each shard is read for its hash by one of them."""

import hashlib
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from megaptm.data import shared_checks
from megaptm.data.shards import Corpus
from megaptm.data.shared_checks import ShareOfChecks, Verdicts
from megaptm.data.stream_order import StreamOrder
from megaptm.errors import UserError
from megaptm.objectives.objective import SequenceWindow
from megaptm.storage.mounts import Mount
from tests.data.corpora import tiny_corpus

RANKS = 4
SHARDS = 6


@pytest.fixture
def corpus(tmp_path):
    tiny_corpus(tmp_path / "corpus", shards=SHARDS)
    return tmp_path / "corpus"


@pytest.fixture
def shared(tmp_path):
    (tmp_path / "verified").mkdir()
    return tmp_path / "verified"


@pytest.fixture
def hashed(monkeypatch):
    """Number of times that each shard was hashed."""
    counts = Counter()
    really = hashlib.file_digest

    def count(stream, name):
        if stream.name.endswith(".tar"):
            counts[Path(stream.name).name] += 1
        return really(stream, name)

    monkeypatch.setattr("megaptm.data.shards.hashlib.file_digest", count)
    return counts


@pytest.fixture
def once():
    """Each training shard of the corpus, hashed once."""
    return {f"train-{number:06d}.tar": 1 for number in range(SHARDS)}


def order_of(corpus, folder, rank=0):
    opened = replace(Corpus.open(corpus), share=ShareOfChecks(folder, rank, RANKS))
    return StreamOrder(opened, "train", cut=SequenceWindow(stride=16), seed=0)


def read_epoch(order):
    return [
        [token for part in order.piece(0, position) for token in part.tokens.tolist()]
        for position in range(order.per_epoch)
    ]


def read_epochs(orders):
    """Read an epoch on each rank at the same time."""
    with ThreadPoolExecutor(len(orders)) as threads:
        return [*threads.map(read_epoch, orders)]


def flip_last_bit(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def errors_of(orders):
    """Return the error of each rank that reads an epoch."""

    def read(order):
        with pytest.raises(UserError) as error:
            read_epoch(order)
        return str(error.value)

    with ThreadPoolExecutor(len(orders)) as threads:
        return [*threads.map(read, orders)]


def test_each_shard_is_hashed_by_one_rank(corpus, shared, hashed, once):
    texts = read_epochs([order_of(corpus, shared, rank) for rank in range(RANKS)])
    assert hashed == once
    alone = StreamOrder(Corpus.open(corpus), "train", cut=SequenceWindow(stride=16), seed=0)
    assert texts == [read_epoch(alone)] * RANKS


def test_verdicts_last_for_the_start(corpus, shared, hashed, once):
    for rank in range(RANKS):
        read_epoch(order_of(corpus, shared, rank))
    assert hashed == once
    assert len([*shared.iterdir()]) == 1, "claims are left"


def test_damage_is_reported_with_its_file_on_all_ranks(corpus, shared):
    flip_last_bit(corpus / "train-000003.tar")
    for message in errors_of([order_of(corpus, shared, rank) for rank in range(RANKS)]):
        assert "train-000003.tar is damaged (its sha256 differs from the manifest)" in message


def test_node_local_copies_have_their_own_verdicts(corpus, shared, tmp_path, hashed):
    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy)
    flip_last_bit(copy / "train-000002.tar")
    read_epoch(order_of(corpus, shared))
    [message] = errors_of([order_of(copy, shared, 1)])
    assert f"{copy}/train-000002.tar is damaged" in message


def test_machines_with_the_same_path_share_only_network_files(corpus, shared, monkeypatch):
    manifest = corpus / "manifest.json"
    boot, other_boot = shared / "boot", shared / "other-boot"
    boot.write_text("1")
    other_boot.write_text("2")

    def path_on(machine):
        monkeypatch.setattr(shared_checks, "BOOT", machine)
        return Verdicts(shared, manifest, "train")._path

    assert path_on(boot) == path_on(boot) != path_on(other_boot)
    monkeypatch.setattr(shared_checks, "find_mount", lambda path: Mount("nfs4", "server:/corpora"))
    assert path_on(boot) == path_on(other_boot)


def test_shard_on_another_disk_is_checked_by_each_rank(corpus, shared, hashed, monkeypatch):
    monkeypatch.setattr(Verdicts, "_holds_for", lambda self, file: file.name != "train-000001.tar")
    read_epochs([order_of(corpus, shared, rank) for rank in range(RANKS)])
    assert hashed.pop("train-000001.tar") == RANKS
    assert {*hashed.values()} == {1}


def test_claim_of_a_killed_process_is_not_waited_for_forever(corpus, shared, hashed, once, monkeypatch):
    monkeypatch.setattr(shared_checks, "PATIENCE_SECONDS", 0.05)
    order = order_of(corpus, shared)
    for shard in range(SHARDS):
        order.shards._verdicts._claim_path(shard).touch()
    read_epoch(order)
    assert hashed == once


def test_rank_waits_for_another_that_is_hashing(corpus, shared, hashed):
    waiting, hashing = (order_of(corpus, shared, rank).shards._verdicts for rank in (0, 1))
    files = {shard: corpus / f"train-{shard:06d}.tar" for shard in range(SHARDS)}
    checked = []
    assert hashing._claim_shard(2)
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(waiting.check, files, checked.append)
        while len(checked) < SHARDS - 1:
            assert not done.done()
        hashing._write_verdict(2, shared_checks.UNDAMAGED)
        done.result(timeout=60)
    assert sorted(checked) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("folder", ["missing", "corpus/manifest.json"])
def test_without_a_folder_each_rank_hashes_all(corpus, tmp_path, hashed, folder):
    texts = read_epochs([order_of(corpus, tmp_path / folder, rank) for rank in range(RANKS)])
    assert texts == [texts[0]] * RANKS
    assert {*hashed.values()} == {RANKS}


def test_sizes_are_compared_by_share(corpus, shared, monkeypatch):
    """On a shared disk. Node-local copies are compared completely."""
    for rank in range(RANKS):
        (corpus / f"train-{rank:06d}.tar").rename(corpus / f"away-{rank}")
        opened = [replace(Corpus.open(corpus), share=ShareOfChecks(shared, other, RANKS)) for other in range(RANKS)]
        for own in opened:
            with pytest.raises(UserError, match=f"train-{rank:06d}.tar is missing"):
                own.check("train", "size")
        with monkeypatch.context() as patch:
            patch.setattr("megaptm.data.shards.find_mount", lambda path: Mount("lustre", "server:/corpora"))
            for other in {*range(RANKS)} - {rank}:
                opened[other].check("train", "size")
            with pytest.raises(UserError, match=f"train-{rank:06d}.tar is missing"):
                opened[rank].check("train", "size")
        (corpus / f"away-{rank}").rename(corpus / f"train-{rank:06d}.tar")
