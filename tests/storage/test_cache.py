"""Eviction from the cache of remote files."""

import hashlib
import os

from megaptm.storage import Cache

HOUR = 3600


def test_eviction_spares_downloads_of_other_processes(tmp_path):
    folder = tmp_path / "cache/corpus"
    folder.mkdir(parents=True)
    ages = {".train-000000.tar.7-ab.part": 2 * HOUR, ".train-000001.tar.8-cd.part": 10, "train-000002.tar": 0}
    for name, age in ages.items():
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (10 * HOUR - age, 10 * HOUR - age))
    source = tmp_path / "train-000003.tar"
    source.write_bytes(bytes(150))
    cache = Cache(tmp_path / "cache", max_bytes=300)
    cache.fetch(str(source), folder / source.name, sha256=hashlib.sha256(bytes(150)).hexdigest())
    assert {path.name for path in folder.iterdir()} == {".train-000001.tar.8-cd.part", "train-000003.tar"}
