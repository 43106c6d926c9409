"""Time and memory to open a corpus of a million shards and to read a sample."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from megaptm.data import manifest
from megaptm.data.files import npy_bytes
from megaptm.data.table import ROW, ShardTable, table_name
from tests.data.corpora import tiny_corpus

SHARDS = 1_000_000
SAMPLE = 10**9

# A process of its own, because peak memory and CPU time are those of a process.
CONTINUE = rf"""
import json, os, re, sys, time
from pathlib import Path
from megaptm.data import open_mix
from tests.data.corpora import tiny_special

folder = Path(sys.argv[1])
start = time.process_time()
mix = open_mix({{str(folder): 1.0}}, objective="causal-lm", sequence=64, seed=1, special=tiny_special())
location = mix.locate({SAMPLE})
seconds = time.process_time() - start
order = mix.orders[0]
epoch = order._epoch(location.epoch)
window = int((epoch.samples <= location.position).sum()) - 1
# The files of the two windows that the sample may need.
for shard in [*epoch.shards_of(window), *epoch.shards_of(window + 1)]:
    info = order.shards.info(int(shard))
    os.link(folder / "shard.tar", folder / info.name)
    os.link(folder / "shard.index.npy", folder / info.index_name)
start = time.process_time()
sample = mix.sample({SAMPLE})
seconds += time.process_time() - start
tokens = sample["tokens"].tolist()
# Not ru_maxrss, which includes the process that started this one.
peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) << 10
print(json.dumps(dict(seconds=seconds, peak=peak, epoch=location.epoch, tokens=len(tokens))))
"""


def enlarge(folder, shards):
    """Repeat the only training shard of a corpus in its table."""
    content = json.loads((folder / manifest.MANIFEST).read_bytes())
    [row] = ShardTable.open(folder, "train", content["splits"]["train"]["table_sha256"]).rows
    rows = np.full(shards, row, dtype=ROW)
    rows["number"] = np.arange(shards)
    table = npy_bytes(rows)
    (folder / table_name("train")).write_bytes(table)
    sums = {column: int(rows[column].sum()) for column in ("samples", "tokens", "bytes")}
    sha256 = hashlib.sha256(table).hexdigest()
    content["splits"]["train"] = {**sums, "shards": shards, "table_sha256": sha256}
    content["id"] = manifest.content_id(content)
    (folder / manifest.MANIFEST).write_text(json.dumps(content))
    for suffix in (".tar", ".index.npy"):
        (folder / f"train-000000{suffix}").rename(folder / f"shard{suffix}")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sample_a_billion_of_a_million_shards(tmp_path):
    tiny_corpus(tmp_path, shards=1)
    enlarge(tmp_path, SHARDS)
    assert (tmp_path / manifest.MANIFEST).stat().st_size < 10_000
    process = subprocess.run([sys.executable, "-c", CONTINUE, tmp_path], capture_output=True, text=True)
    assert not process.stderr
    result = json.loads(process.stdout)
    print(result)
    assert result["peak"] < 500 << 20
    # CPU time, which other processes do not change.
    assert result["seconds"] < 2
    assert result["epoch"] > 10
    assert result["tokens"] == 64
