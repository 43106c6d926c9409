"""Committed checkpoints are found complete; unfinished and damaged ones are skipped and reported."""

import errno
import os
import resource
import shutil
import subprocess
import sys

import pytest
import torch

from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.checkpoint.files import StorageError
from megaptm.checkpoint.records import NonFiniteError
from megaptm.checkpoint.store import CheckpointStore, GoneError
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.errors import UserError
from megaptm.storage import RetryPolicy, write_atomically


def always() -> bool:
    return True


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path, keep=2, fence=always)


def pieces(step, rank, ranks=2):
    """Return the rows of one rank of `expected_matrix`."""
    rows = torch.arange(12.0).reshape(4, 3)[rank * 4 // ranks : (rank + 1) * 4 // ranks] + 100 * step
    return [TensorPiece("weight/w", (4, 3), (rank * 4 // ranks, 0), tuple(rows.shape), rows)]


def expected_matrix(step):
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


def test_newest_returns_saved_checkpoint(store):
    assert store.newest() is None
    saved = save(store, 10)
    newest = store.newest()
    assert newest.step == saved.step == 10
    assert newest.state == {"step": 10, "cursor": [80]}
    assert torch.equal(newest.reader.read("weight/w"), expected_matrix(10))
    assert sorted(path.name for path in newest.folder.iterdir()) == [
        "index-00000.json",
        "manifest.json",
        "rank-00000.safetensors",
        "rank-00001.safetensors",
    ]
    assert newest.size == sum(path.stat().st_size for path in newest.folder.glob("*.safetensors"))


def test_oldest_checkpoints_are_removed(store):
    for step in (5, 10, 15, 20):
        save(store, step)
    assert store.steps() == [20, 15]
    assert names(store) == ["step-00000015", "step-00000020"]


def test_keep_0_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"checkpoint\.keep is 0"):
        CheckpointStore(tmp_path, keep=0)


@pytest.mark.parametrize("position", [0, 200, -1])
@pytest.mark.parametrize("file", ["rank-00001.safetensors", "index-00000.json", "manifest.json"])
def test_changed_byte_is_detected_and_earlier_checkpoint_used(store, tmp_path, file, position):
    save(store, 10)
    save(store, 20)
    change_byte(store.folder / "step-00000020" / file, position)
    damaged = []
    reporting = CheckpointStore(tmp_path, fence=always, on_damaged=lambda *report: damaged.append(report))
    newest = reporting.newest()
    assert newest.step == 10
    assert torch.equal(newest.reader.read("weight/w"), expected_matrix(10))
    assert names(store) == ["step-00000010", "step-00000020.damaged"]
    [(step, problem, folder)] = damaged
    assert (step, folder.name) == (20, "step-00000020.damaged")
    assert file in problem


def test_truncated_or_missing_file_is_detected(store, caplog):
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


def write_all(store, step, ranks):
    store.prepare(step)
    for rank in range(ranks):
        store.write(step, rank, pieces(step, rank, ranks))


@pytest.fixture
def two_per_index(monkeypatch):
    monkeypatch.setattr("megaptm.checkpoint.store.RANKS_PER_INDEX", 2)


def test_indexes_have_the_files_of_some_ranks(store, two_per_index):
    write_all(store, 10, ranks=3)
    for rank in range(3):
        store.write_index(10, rank, ranks=3)
    assert not [*store._writing_path(10).glob("rank-*.record.json")]
    checkpoint = store.commit(10, {}, ranks=3)
    assert [[file.name for file in checkpoint.read_index(number)] for number in (0, 1)] == [
        ["rank-00000.safetensors", "rank-00001.safetensors"],
        ["rank-00002.safetensors"],
    ]
    assert not [*checkpoint.folder.glob("*.record.json")]


def test_commit_writes_missing_indexes(store, two_per_index):
    write_all(store, 10, ranks=4)
    store.write_index(10, 2, ranks=4)
    checkpoint = store.commit(10, {}, ranks=4)
    assert len(checkpoint.indexes) == 2
    assert torch.equal(store.newest().reader.read("weight/w"), expected_matrix(10))
    assert not [*checkpoint.folder.glob("*.record.json")]


def test_reader_opens_the_indexes_of_its_tensors(store, two_per_index):
    store.prepare(10)
    for rank in range(6):
        value = torch.full((1,), float(rank))
        store.write(10, rank, [TensorPiece(f"weight/{rank // 2}", (2,), (rank % 2,), (1,), value)])
    checkpoint = store.commit(10, {}, ranks=6)
    reader = checkpoint.reader
    assert reader.names() == ["weight/0", "weight/1", "weight/2"]
    assert reader.read("weight/1").tolist() == [2.0, 3.0]
    assert [*checkpoint._files] == [1]
    assert reader.shape("weight/2") == (2,)
    assert [*checkpoint._files] == [1, 2]


def test_missing_index_is_detected(store, two_per_index, caplog):
    for step in (10, 20):
        save(store, step, ranks=4)
    (store.folder / "step-00000020" / "index-00001.json").unlink()
    assert store.newest().step == 10
    assert "index-00001.json is missing" in caplog.text


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 7, 16])
def test_parts_verify_each_file_and_index_once(store, two_per_index, monkeypatch, parts):
    write_all(store, 10, ranks=4)
    store.commit(10, {}, ranks=4)
    verified, read = [], set()
    monkeypatch.setattr(Checkpoint, "verify_file", lambda self, file: verified.append(file.name))
    for part in range(parts):
        checkpoint = store.load(10)
        checkpoint.verify(part=part, parts=parts)
        read |= {*checkpoint._files}
    assert sorted(verified) == [f"rank-0000{rank}.safetensors" for rank in range(4)]
    assert read == {0, 1}


def test_index_requires_files_of_its_ranks(store, two_per_index):
    store.prepare(10)
    for rank in (0, 1, 3):
        store.write(10, rank, pieces(10, rank, 4))
    store.write_index(10, 0, ranks=4)
    with pytest.raises(StorageError, match=r"rank-00002\.safetensors was not written"):
        store.write_index(10, 2, ranks=4)


def test_replaced_job_cannot_write_an_index(tmp_path):
    old, new = (
        CheckpointStore(tmp_path, fence=always, token="old"),
        CheckpointStore(tmp_path, fence=always, token="new"),
    )
    old.prepare(10)
    old.write(10, 0, pieces(10, 0, 1))
    new.take_over()
    with pytest.raises(GoneError, match="was removed, because another job took over"):
        old.write_index(10, 0, ranks=1)


@pytest.mark.parametrize("name", ["index-00000.json", "index-00000.record.json"])
def test_full_disk_while_indexes_are_written_keeps_earlier_checkpoint(store, monkeypatch, name):
    save(store, 10)
    write_all(store, 20, ranks=2)

    def full(path, content):
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_atomically(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("megaptm.checkpoint.store.write_atomically", full)
        with pytest.raises(StorageError, match=r"cannot write index-00000\.json of step 20: no space left on the disk"):
            store.write_index(20, 0, ranks=2)
    assert store.newest().step == 10
    save(store, 20)
    assert names(store) == ["step-00000010", "step-00000020"]


def test_index_is_written_again_after_a_short_failure(store, monkeypatch):
    write_all(store, 10, ranks=2)
    failures = iter([errno.EIO, errno.ESTALE])

    def failing(path, content):
        if path.name == "index-00000.record.json" and (number := next(failures, None)):
            raise OSError(number, os.strerror(number), str(path))
        write_atomically(path, content)

    monkeypatch.setattr("megaptm.checkpoint.files.WRITE_RETRY", RetryPolicy(seconds=60.0, pause=0.01))
    monkeypatch.setattr("megaptm.checkpoint.store.write_atomically", failing)
    store.write_index(10, 0, ranks=2)
    assert torch.equal(store.commit(10, {}, ranks=2).reader.read("weight/w"), expected_matrix(10))


def test_removed_link_keeps_its_target(store, tmp_path):
    save(store, 10)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (store.folder / "step-00000005.removed-0a1b2c3d").symlink_to(tmp_path / "precious")
    save(store, 20)
    assert (tmp_path / "precious" / "file").exists()


def test_verify_checks_its_part_of_the_files(store):
    checkpoint = save(store, 10)
    change_byte(checkpoint.folder / "rank-00001.safetensors", -1)
    checkpoint.verify(part=0, parts=2)
    with pytest.raises(StorageError, match="rank-00001"):
        checkpoint.verify(part=1, parts=2)


def test_run_with_only_damaged_checkpoints_does_not_restart(store):
    save(store, 10)
    change_byte(store.folder / "step-00000010" / "manifest.json", 30)
    for _ in range(2):
        with pytest.raises(UserError, match="are damaged: put an undamaged copy there"):
            store.newest()


def test_store_without_fence_changes_nothing(store, tmp_path):
    for step in (10, 20):
        save(store, step)
    change_byte(store.folder / "step-00000020" / "rank-00000.safetensors", -1)
    assert CheckpointStore(tmp_path).newest().step == 10
    assert names(store) == ["step-00000010", "step-00000020"]
    with pytest.raises(AssertionError, match="fence"):
        CheckpointStore(tmp_path).prepare(30)


def test_unfinished_checkpoints_are_ignored_and_removed(store):
    save(store, 10)
    store.prepare(20)
    store.write(20, 0, pieces(20, 0))
    assert store.newest().step == 10
    assert names(store) == ["step-00000010", "step-00000020.writing-job"]
    store.prepare(30)
    assert names(store) == ["step-00000010", "step-00000030.writing-job"]


def test_copies_of_a_user_are_not_touched(store):
    save(store, 10)
    for name in ("step-00000010.bak", "step-00000010 (copy)", "step-5.good", "notes"):
        shutil.copytree(store.folder / "step-00000010", store.folder / name)
    before = names(store)
    store.take_over()
    save(store, 20)
    assert names(store) == sorted([*before, "step-00000020"])


def test_checkpoint_without_manifest_is_set_aside(store, tmp_path, caplog):
    for step in (10, 20):
        save(store, step)
    (store.folder / "step-00000020" / "manifest.json").unlink()
    damaged = []
    next_job = CheckpointStore(tmp_path, fence=always, on_damaged=lambda *report: damaged.append(report))
    next_job.take_over()
    assert next_job.newest().step == 10
    assert names(store) == ["step-00000010", "step-00000020.damaged"]
    assert (store.folder / "step-00000020.damaged" / "rank-00000.safetensors").exists()
    assert damaged == [(20, "its manifest.json is missing", store.folder / "step-00000020.damaged")]
    assert "the checkpoint of step 20 is not used (its manifest.json is missing)" in caplog.text


def test_reader_warns_of_checkpoint_without_manifest(store, tmp_path, caplog):
    for step in (10, 20):
        save(store, step)
    (store.folder / "step-00000020" / "manifest.json").unlink()
    assert CheckpointStore(tmp_path).newest().step == 10
    assert "the checkpoint of step 20 is not used (its manifest.json is missing)" in caplog.text
    assert names(store) == ["step-00000010", "step-00000020"]


def test_run_without_manifests_does_not_restart(store):
    save(store, 10)
    (store.folder / "step-00000010" / "manifest.json").unlink()
    with pytest.raises(UserError, match="are damaged: put an undamaged copy there"):
        store.newest()


def test_folder_that_cannot_be_removed_keeps_its_name(store):
    """Files that a process has open remain on NFS as `.nfs...`. The test mounts a file system in the folder instead."""
    save(store, 10)
    mounted = store.folder / "step-00000005.removed-0a1b2c3d"
    mounted.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "none", mounted], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        for step in (20, 30):
            store.take_over()
            save(store, step)
        assert names(store) == ["step-00000005.removed-0a1b2c3d", "step-00000020", "step-00000030"]
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_commit_requires_files_of_all_ranks(store):
    store.prepare(10)
    store.write(10, 0, pieces(10, 0))
    with pytest.raises(UserError, match=r"rank-00001\.safetensors was not written"):
        store.commit(10, {}, ranks=2)
    assert store.newest() is None


def test_second_save_of_a_step_replaces_the_first(store):
    save(store, 10)
    store.prepare(10)
    store.write(10, 0, [TensorPiece("weight/w", (1,), (0,), (1,), torch.ones(1))])
    assert store.newest().reader.shape("weight/w") == (4, 3)
    store.commit(10, {}, ranks=1)
    assert store.newest().reader.shape("weight/w") == (1,)
    assert names(store) == ["step-00000010"]


def test_replaced_checkpoint_is_used_if_replacement_is_missing(store):
    save(store, 10)
    (store.folder / "step-00000010").rename(store.folder / "step-00000010.replaced")
    assert store.newest().step == 10
    store.prepare(20)
    assert store.newest().step == 10
    save(store, 10)
    assert names(store) == ["step-00000010"]


def test_replaced_job_cannot_prepare_or_commit(tmp_path):
    is_owner = True
    old = CheckpointStore(tmp_path, fence=lambda: is_owner, token="old")
    new = CheckpointStore(tmp_path, fence=always, token="new")
    old.prepare(10)
    old.write(10, 0, pieces(10, 0, 1))
    is_owner = False
    for attempt in (lambda: old.commit(10, {}, 1), lambda: old.prepare(20)):
        with pytest.raises(UserError, match="another job took over"):
            attempt()
    new.prepare(10)
    with pytest.raises(UserError, match=r"was removed, because another rank failed to write, or another job took over"):
        old.write(10, 1, pieces(10, 0, 1))
    new.write(10, 0, pieces(10, 0, 1))
    assert new.commit(10, {}, 1).step == new.newest().step == 10


def test_job_suspended_before_rename_cannot_commit(tmp_path):
    """Another job takes over after the fence returned True."""
    next_job, fence_calls = CheckpointStore(tmp_path, fence=always, token="following"), []

    def suspend_at_third_call():
        fence_calls.append(True)
        if len(fence_calls) == 3:  # to prepare, to commit, and just before the rename
            next_job.take_over()
            assert next_job.newest() is None
        return True

    with pytest.raises(StorageError, match="cannot commit the checkpoint of step 10"):
        save(CheckpointStore(tmp_path, fence=suspend_at_third_call, token="halted"), 10)
    assert len(fence_calls) == 3
    assert names(next_job) == []
    save(next_job, 10)
    assert next_job.newest().step == 10


def test_missing_space_is_reported_before_writing(store):
    with pytest.raises(StorageError, match=r"step 10 needs 1000000\.0 TB, but .* free: .*keep frees nothing"):
        store.prepare(10, expected_bytes=10**18)
    assert names(store) == []


def test_other_format_is_rejected_and_not_moved(store, monkeypatch):
    monkeypatch.setattr("megaptm.checkpoint.store.FORMAT", "megaptm-checkpoint-0")
    save(store, 10)
    monkeypatch.undo()
    with pytest.raises(UserError, match="format 'megaptm-checkpoint-0'"):
        store.newest()


def big_pieces(step):
    return [TensorPiece("weight/big", (1 << 20,), (0,), (1 << 20,), torch.full((1 << 20,), float(step)))]


def test_expected_bytes_default_to_newest_checkpoint(store, monkeypatch):
    num_bytes = sum(path.stat().st_size for path in save(store, 10).folder.iterdir())
    monkeypatch.setattr("megaptm.checkpoint.store.free_bytes", lambda folder: num_bytes)
    store.prepare(20)
    monkeypatch.setattr("megaptm.checkpoint.store.free_bytes", lambda folder: num_bytes - 1)
    with pytest.raises(StorageError, match="step 20 needs"):
        store.prepare(20)
    assert names(store) == ["step-00000010"]


def check_full_disk(store, message=r"cannot write rank-00001\.safetensors of step 20: no space left on the disk of "):
    """The second checkpoint does not fit: the error is one sentence, no files are left, and the first is intact."""
    store.prepare(10)
    store.write(10, 0, big_pieces(10))
    store.commit(10, {}, 1)
    store.prepare(20, expected_bytes=0)
    with pytest.raises(StorageError, match=message):
        [store.write(20, rank, big_pieces(20) * (rank + 1)) for rank in range(3)]
    assert names(store) == ["step-00000010"]
    assert store.newest().reader.read("weight/big")[0] == 10


@pytest.fixture
def small_disk(tmp_path):
    """Disk of 14 MB, of which each checkpoint of `big_pieces` takes 4.2."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=14m", "none", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system that can be filled")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_full_disk_keeps_earlier_checkpoint(small_disk):
    check_full_disk(CheckpointStore(small_disk, fence=always))


def save_big(store, step):
    store.prepare(step)
    store.write(step, 0, big_pieces(step))
    return store.commit(step, {}, 1)


def test_oldest_is_removed_early_if_space_is_short(small_disk, caplog):
    """Three checkpoints fit, a fourth does not. The newest is always complete."""
    store = CheckpointStore(small_disk, keep=3, fence=always)
    for step in (10, 20, 30, 40, 50):
        save_big(store, step)
    assert store.steps() == [50, 40, 30]
    assert "the checkpoint of step 10 was removed to make room for that of step 40" in caplog.text
    assert store.newest().reader.read("weight/big")[0] == 50


def test_message_states_sufficient_remedy(small_disk):
    store = CheckpointStore(small_disk, keep=3, fence=always)
    for step in (10, 20):
        save_big(store, step)
    (small_disk / "ballast").write_bytes(bytes(3 << 20))
    with pytest.raises(StorageError, match=r"step 30 needs 4\.2 MB, but .* free [\d.]+ MB more there") as raised:
        save_big(store, 30)
    assert "checkpoint.keep=2 instead of 3 frees 4.2 MB, which is enough" in str(raised.value)
    assert store.steps() == [20, 10]
    keeps_2 = CheckpointStore(small_disk, keep=2, fence=always)
    save_big(keeps_2, 30)
    assert keeps_2.steps() == [30, 20]
    with pytest.raises(StorageError, match=r"keep frees nothing, because the newest checkpoint stays"):
        keeps_2.prepare(40, expected_bytes=8 << 20)
    assert keeps_2.newest().step == 30
    assert save_big(keeps_2, 40).step == 40


def test_file_size_limit_keeps_earlier_checkpoint(tmp_path):
    code = f"""
import resource
from pathlib import Path
from tests.checkpoint.test_store import CheckpointStore, always, check_full_disk
resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, {resource.RLIM_INFINITY}))
message = r"cannot write rank-00001.* needs more than the 6,291,456 bytes that a file may have here: .*ulimit -f"
check_full_disk(CheckpointStore(Path({str(tmp_path)!r}), fence=always), message)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_values_are_not_committed(store, dtype, value):
    save(store, 10)
    store.prepare(20)
    rows = torch.ones(4, 3, dtype=dtype)
    rows[2, 1] = value
    with pytest.raises(NonFiniteError, match=r"^weight/w has NaN or infinity in 1 of 12 elements, so no checkpoint"):
        store.write(20, 0, [TensorPiece("weight/w", (4, 3), (0, 0), (4, 3), rows)])
    with pytest.raises(GoneError):  # on the other ranks
        store.write(20, 1, pieces(20, 1))
    assert names(store) == ["step-00000010"]
    assert store.newest().step == 10


def test_largest_finite_values_are_committed(store):
    store.prepare(10)
    largest = torch.full((4, 3), torch.finfo(torch.float32).max)  # the sum is infinite
    store.write(10, 0, [TensorPiece("weight/w", (4, 3), (0, 0), (4, 3), largest)])
    assert torch.equal(store.commit(10, {}, 1).reader.read("weight/w"), largest)
