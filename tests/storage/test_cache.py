"""Eviction from the cache of remote files."""

import hashlib
import os
import time

import pytest

from megaptm.errors import UserError
from megaptm.storage import RemoteFileCache, RetryPolicy, default_cache_folder, expand_home
from megaptm.track.uri import refuse_foreign_server

HOUR = 3600


def test_user_without_home_folder(monkeypatch, tmp_path):
    """Users of containers and services often have no entry in /etc/passwd, and no HOME."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_001)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert default_cache_folder() == tmp_path / "megaptm-4000000001"
    refuse_foreign_server("http://mlflow.example:5000")  # looks for ~/.mlflow/credentials
    with pytest.raises(UserError, match=r"^~/runs: this user has no home folder: set HOME, or give a path without `~`"):
        expand_home("~/runs")


def test_eviction_spares_downloads_of_other_processes(tmp_path):
    folder = tmp_path / "cache/corpus-0123456789abcdef"
    folder.mkdir(parents=True)
    ages = {".train-000000.tar.7-ab.part": 2 * HOUR, ".train-000001.tar.8-cd.part": 10, "train-000002.tar": 0}
    for name, age in ages.items():
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (10 * HOUR - age, 10 * HOUR - age))
    source = tmp_path / "train-000003.tar"
    source.write_bytes(bytes(150))
    cache = RemoteFileCache(tmp_path / "cache", max_bytes=300)
    cache.fetch(str(source), folder / source.name, sha256=hashlib.sha256(bytes(150)).hexdigest())
    assert {path.name for path in folder.iterdir()} == {".train-000001.tar.8-cd.part", "train-000003.tar"}


def test_a_cache_filled_by_downloads_is_reported_once(tmp_path):
    """A file from a clock that is ahead does not make the downloads look abandoned."""
    folder = tmp_path / "cache/corpus-0123456789abcdef"
    folder.mkdir(parents=True)
    now = time.time()
    for name, mtime in {".train-000000.tar.7-ab.part": now - 10, "train-000001.tar": now + 10 * HOUR}.items():
        (folder / name).write_bytes(bytes(200))
        os.utime(folder / name, (mtime, mtime))
    reports: list[str] = []
    cache = RemoteFileCache(tmp_path / "cache", max_bytes=300, retry=RetryPolicy(report=reports.append))
    for name in ("train-000002.tar", "train-000003.tar"):
        (tmp_path / name).write_bytes(bytes(150))
        cache.fetch(str(tmp_path / name), folder / name, sha256=hashlib.sha256(bytes(150)).hexdigest())
    assert {path.name for path in folder.iterdir()} == {".train-000000.tar.7-ab.part", "train-000003.tar"}
    [report] = reports
    assert report.startswith(f"{tmp_path / 'cache'} exceeds data.max_cache_bytes (300), because unfinished downloads")


def test_eviction_spares_files_of_the_user(tmp_path):
    """`data.cache_dir` may be a folder with local corpora."""
    (own := tmp_path / "scratch/books/train-000000.tar").parent.mkdir(parents=True)
    own.write_bytes(bytes(200))
    (tmp_path / "train-000001.tar").write_bytes(bytes(150))
    copy = tmp_path / "scratch/web-0123456789abcdef/train-000001.tar"
    cache = RemoteFileCache(tmp_path / "scratch", max_bytes=300)
    cache.fetch(str(tmp_path / copy.name), copy, sha256=hashlib.sha256(bytes(150)).hexdigest())
    assert own.exists()
