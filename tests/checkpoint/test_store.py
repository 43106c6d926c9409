"""A committed checkpoint is found again whole; anything else is passed over or explained."""

import os
import resource
import shutil
import subprocess
import sys

import pytest
import torch

from megaptm.checkpoint.files import StorageError
from megaptm.checkpoint.store import GoneError, Store
from megaptm.checkpoint.tensors import NotFiniteError, TensorPiece
from megaptm.errors import UserError


def always() -> bool:
    return True


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, keep=2, fence=always)


def pieces(step, rank, ranks=2):
    """Rank's rows of one matrix, filled so that step and rank can be told."""
    rows = torch.arange(12.0).reshape(4, 3)[rank * 4 // ranks : (rank + 1) * 4 // ranks] + 100 * step
    return [TensorPiece("weight/w", (4, 3), (rank * 4 // ranks, 0), tuple(rows.shape), rows)]


def whole(step):
    return torch.arange(12.0).reshape(4, 3) + 100 * step


def save(store, step, ranks=2):
    store.prepare(step)
    for rank in range(ranks):
        store.write(step, rank, pieces(step, rank, ranks))
    return store.commit(step, {"step": step, "cursor": [step * 8]}, ranks)


def names(store):
    return sorted(path.name for path in store.folder.iterdir())


def change_byte(path, position):
    with path.open("r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def test_what_was_saved_is_found_again(store):
    assert store.newest() is None
    saved = save(store, 10)
    found = store.newest()
    assert found.step == saved.step == 10
    assert found.state == {"step": 10, "cursor": [80]}
    assert torch.equal(found.reader.read("weight/w"), whole(10))
    assert sorted(path.name for path in found.folder.iterdir()) == [
        "manifest.json",
        "rank-00000.safetensors",
        "rank-00001.safetensors",
    ]
    assert found.size == sum(path.stat().st_size for path in found.folder.glob("*.safetensors"))


def test_only_the_last_few_are_kept(store):
    for step in (5, 10, 15, 20):
        save(store, step)
    assert store.steps() == [20, 15]
    assert names(store) == ["step-00000015", "step-00000020"]


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"checkpoint\.keep is 0"):
        Store(tmp_path, keep=0)


@pytest.mark.parametrize("position", [0, 200, -1])
@pytest.mark.parametrize("file", ["rank-00001.safetensors", "manifest.json"])
def test_a_changed_byte_is_found_and_the_checkpoint_before_is_used(store, tmp_path, file, position):
    save(store, 10)
    save(store, 20)
    change_byte(store.folder / "step-00000020" / file, position)
    damaged = []
    reporting = Store(tmp_path, fence=always, damaged=lambda *told: damaged.append(told))
    found = reporting.newest()
    assert found.step == 10
    assert torch.equal(found.reader.read("weight/w"), whole(10))
    assert names(store) == ["step-00000010", "step-00000020.damaged"]
    [(step, problem, kept)] = damaged
    assert (step, kept.name) == (20, "step-00000020.damaged")
    assert file in problem


def test_a_file_cut_short_or_missing_is_found(store, caplog):
    for step in (10, 20):
        save(store, step)
    os.truncate(store.folder / "step-00000020" / "rank-00000.safetensors", 50)
    assert store.newest().step == 10
    assert "rank-00000.safetensors has 50 bytes" in caplog.text
    save(store, 20)
    (store.folder / "step-00000020" / "rank-00001.safetensors").unlink()
    assert store.newest().step == 10
    assert "rank-00001.safetensors is missing" in caplog.text
    assert names(store) == ["step-00000010", "step-00000020.damaged", "step-00000020.damaged-1"]


def test_ranks_can_share_the_work_of_verifying(store):
    checkpoint = save(store, 10)
    change_byte(checkpoint.folder / "rank-00001.safetensors", -1)
    checkpoint.verify(part=0, parts=2)
    with pytest.raises(StorageError, match="rank-00001"):
        checkpoint.verify(part=1, parts=2)


def test_a_run_with_only_damaged_checkpoints_does_not_begin_again(store):
    save(store, 10)
    change_byte(store.folder / "step-00000010" / "manifest.json", 30)
    for _ in range(2):
        with pytest.raises(UserError, match="are damaged: put a good copy there"):
            store.newest()


def test_who_only_reads_changes_nothing(store, tmp_path):
    for step in (10, 20):
        save(store, step)
    change_byte(store.folder / "step-00000020" / "rank-00000.safetensors", -1)
    assert Store(tmp_path).newest().step == 10
    assert names(store) == ["step-00000010", "step-00000020"]
    with pytest.raises(AssertionError, match="fence"):
        Store(tmp_path).prepare(30)


def test_leftovers_are_never_used_and_removed_by_the_next(store):
    save(store, 10)
    store.prepare(20)
    store.write(20, 0, pieces(20, 0))
    assert store.newest().step == 10
    assert names(store) == ["step-00000010", "step-00000020.writing-job"]
    store.prepare(30)
    assert names(store) == ["step-00000010", "step-00000030.writing-job"]


def test_copies_that_a_person_made_are_left_alone(store):
    save(store, 10)
    for name in ("step-00000010.bak", "step-00000010 (copy)", "step-5.good", "notes"):
        shutil.copytree(store.folder / "step-00000010", store.folder / name)
    before = names(store)
    store.take_over()
    save(store, 20)
    assert names(store) == sorted([*before, "step-00000020"])


def test_a_checkpoint_without_its_manifest_is_set_aside_and_told(store, tmp_path, caplog):
    for step in (10, 20):
        save(store, step)
    (store.folder / "step-00000020" / "manifest.json").unlink()
    damaged = []
    following = Store(tmp_path, fence=always, damaged=lambda *told: damaged.append(told))
    following.take_over()
    assert following.newest().step == 10
    assert names(store) == ["step-00000010", "step-00000020.damaged"]
    assert (store.folder / "step-00000020.damaged" / "rank-00000.safetensors").exists()
    assert damaged == [(20, "its manifest.json is missing", store.folder / "step-00000020.damaged")]
    assert "checkpoint of step 20 is damaged: its manifest.json is missing" in caplog.text


def test_who_only_reads_is_warned_of_a_newest_checkpoint_without_its_manifest(store, tmp_path, caplog):
    for step in (10, 20):
        save(store, step)
    (store.folder / "step-00000020" / "manifest.json").unlink()
    assert Store(tmp_path).newest().step == 10
    assert "checkpoint of step 20 is damaged: its manifest.json is missing" in caplog.text
    assert names(store) == ["step-00000010", "step-00000020"]


def test_a_run_whose_only_checkpoint_lost_its_manifest_does_not_begin_again(store):
    save(store, 10)
    (store.folder / "step-00000010" / "manifest.json").unlink()
    with pytest.raises(UserError, match="are damaged: put a good copy there"):
        store.newest()


def test_what_cannot_be_removed_keeps_its_name(store):
    """Files that some process has open stay behind on NFS, as `.nfs...`; here another file system holds the folder."""
    save(store, 10)
    held = store.folder / "step-00000005.removed-0a1b2c3d"
    held.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "none", held], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        for step in (20, 30):
            store.take_over()
            save(store, step)
        assert names(store) == ["step-00000005.removed-0a1b2c3d", "step-00000020", "step-00000030"]
    finally:
        subprocess.run(["umount", held], check=True)


@pytest.mark.parametrize("name", ["step-00000005.removed.removed", "step-00000005.writing-job.removed"])
def test_names_of_earlier_versions_are_removed(store, name):
    (store.folder / name).mkdir(parents=True)
    store.take_over()
    assert names(store) == []


def test_a_checkpoint_without_all_its_ranks_is_not_committed(store):
    store.prepare(10)
    store.write(10, 0, pieces(10, 0))
    with pytest.raises(UserError, match=r"rank-00001\.safetensors was not written"):
        store.commit(10, {}, ranks=2)
    assert store.newest() is None


def test_a_step_saved_again_replaces_the_first(store):
    save(store, 10)
    store.prepare(10)
    store.write(10, 0, [TensorPiece("weight/w", (1,), (0,), (1,), torch.ones(1))])
    assert store.newest().reader.shape("weight/w") == (4, 3)
    store.commit(10, {}, ranks=1)
    assert store.newest().reader.shape("weight/w") == (1,)
    assert names(store) == ["step-00000010"]


def test_a_job_that_died_while_replacing_a_step_loses_neither(store):
    save(store, 10)
    (store.folder / "step-00000010").rename(store.folder / "step-00000010.replaced")
    assert store.newest().step == 10
    store.prepare(20)
    assert store.newest().step == 10
    save(store, 10)
    assert names(store) == ["step-00000010"]


def test_a_job_that_was_taken_over_can_neither_prepare_nor_commit(tmp_path):
    mine = True
    old = Store(tmp_path, fence=lambda: mine, token="old")
    new = Store(tmp_path, fence=always, token="new")
    old.prepare(10)
    old.write(10, 0, pieces(10, 0, 1))
    mine = False
    for attempt in (lambda: old.commit(10, {}, 1), lambda: old.prepare(20)):
        with pytest.raises(UserError, match="another job took over"):
            attempt()
    new.prepare(10)
    with pytest.raises(UserError, match=r"gone: another rank could not write, or another job took over"):
        old.write(10, 1, pieces(10, 0, 1))
    new.write(10, 0, pieces(10, 0, 1))
    assert new.commit(10, {}, 1).step == new.newest().step == 10


def test_a_job_halted_before_its_last_rename_commits_nothing_to_a_run_that_another_took_over(tmp_path):
    """It was told that the run is its own, and then another took over: the question comes too early, always."""
    following, asked = Store(tmp_path, fence=always, token="following"), []

    def halted_after_the_third():
        asked.append(True)
        if len(asked) == 3:  # to prepare, to commit, and just before the rename
            following.take_over()
            assert following.newest() is None
        return True

    with pytest.raises(StorageError, match="cannot commit the checkpoint of step 10"):
        save(Store(tmp_path, fence=halted_after_the_third, token="halted"), 10)
    assert len(asked) == 3
    assert names(following) == []
    save(following, 10)
    assert following.newest().step == 10


def test_too_little_space_is_said_before_anything_is_written(store):
    with pytest.raises(StorageError, match=r"step 10 needs 1000000\.0 TB but .* free: .*keep \(2\) frees nothing"):
        store.prepare(10, expected_bytes=10**18)
    assert names(store) == []


def test_another_version_s_checkpoint_is_refused_not_set_aside(store, monkeypatch):
    monkeypatch.setattr("megaptm.checkpoint.store.FORMAT", "megaptm-checkpoint-0")
    save(store, 10)
    monkeypatch.undo()
    with pytest.raises(UserError, match="format 'megaptm-checkpoint-0'"):
        store.newest()


def big(step):
    return [TensorPiece("weight/big", (1 << 20,), (0,), (1 << 20,), torch.full((1 << 20,), float(step)))]


def test_a_checkpoint_is_expected_to_need_what_the_one_before_took(store, monkeypatch):
    took = sum(path.stat().st_size for path in save(store, 10).folder.iterdir())
    monkeypatch.setattr("megaptm.checkpoint.store.free_bytes", lambda folder: took)
    store.prepare(20)
    monkeypatch.setattr("megaptm.checkpoint.store.free_bytes", lambda folder: took - 1)
    with pytest.raises(StorageError, match="step 20 needs"):
        store.prepare(20)
    assert names(store) == ["step-00000010"]


def check_full_disk(store, said=r"no space left to write rank-00001\.safetensors of step 20: .* free in "):
    """The second checkpoint does not fit: one sentence, nothing half-written, the first intact."""
    store.prepare(10)
    store.write(10, 0, big(10))
    store.commit(10, {}, 1)
    store.prepare(20, expected_bytes=0)
    with pytest.raises(StorageError, match=said):
        [store.write(20, rank, big(20) * (rank + 1)) for rank in range(3)]
    assert names(store) == ["step-00000010"]
    assert store.newest().reader.read("weight/big")[0] == 10


@pytest.fixture
def small_disk(tmp_path):
    """14 MB, of which each `big` checkpoint takes 4.2."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=14m", "none", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system that can be filled")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_full_disk_leaves_the_checkpoint_before(small_disk):
    check_full_disk(Store(small_disk, fence=always))


def save_big(store, step):
    store.prepare(step)
    store.write(step, 0, big(step))
    return store.commit(step, {}, 1)


def test_where_disk_is_short_what_may_leave_leaves_before_the_next_is_written(small_disk, caplog):
    """Three fit, a fourth does not: at every moment the newest is whole."""
    store = Store(small_disk, keep=3, fence=always)
    for step in (10, 20, 30, 40, 50):
        save_big(store, step)
    assert store.steps() == [50, 40, 30]
    assert "the checkpoint of step 10 was removed before that of step 40 is written" in caplog.text
    assert store.newest().reader.read("weight/big")[0] == 50


def test_the_refusal_says_what_would_be_enough_and_that_is_true(small_disk):
    store = Store(small_disk, keep=3, fence=always)
    for step in (10, 20):
        save_big(store, step)
    (small_disk / "ballast").write_bytes(bytes(3 << 20))
    with pytest.raises(StorageError, match=r"step 30 needs 4\.2 MB but .* make room for [\d.]+ MB more there") as told:
        save_big(store, 30)
    assert "checkpoint.keep=2 in place of 3 frees 4.2 MB, which is enough" in str(told.value)
    assert store.steps() == [20, 10]
    fewer = Store(small_disk, keep=2, fence=always)
    save_big(fewer, 30)
    assert fewer.steps() == [30, 20]
    with pytest.raises(StorageError, match=r"checkpoint\.keep \(2\) frees nothing more, since the last one stays"):
        fewer.prepare(40, expected_bytes=8 << 20)
    assert fewer.newest().step == 30
    assert save_big(fewer, 40).step == 40


def test_a_limit_on_file_size_leaves_the_checkpoint_before(tmp_path):
    code = f"""
import resource
from pathlib import Path
from tests.checkpoint.test_store import Store, always, check_full_disk
resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, {resource.RLIM_INFINITY}))
said = r"cannot write rank-00001.* needs more than the 6,291,456 bytes that a file may have here: .*ulimit -f"
check_full_disk(Store(Path({str(tmp_path)!r}), fence=always), said)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_never_committed(store, dtype, bad):
    save(store, 10)
    store.prepare(20)
    rows = torch.ones(4, 3, dtype=dtype)
    rows[2, 1] = bad
    with pytest.raises(NotFiniteError, match=r"^weight/w is not finite \(1 of 12 numbers\), so no checkpoint"):
        store.write(20, 0, [TensorPiece("weight/w", (4, 3), (0, 0), (4, 3), rows)])
    with pytest.raises(GoneError):  # the ranks that write beside it
        store.write(20, 1, pieces(20, 1))
    assert names(store) == ["step-00000010"]
    assert store.newest().step == 10


def test_large_numbers_are_numbers(store):
    store.prepare(10)
    largest = torch.full((4, 3), torch.finfo(torch.float32).max)  # the sum is infinite
    store.write(10, 0, [TensorPiece("weight/w", (4, 3), (0, 0), (4, 3), largest)])
    assert torch.equal(store.commit(10, {}, 1).reader.read("weight/w"), largest)
