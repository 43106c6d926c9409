"""A corpus of a million shards opens, and continues at any sample, as a small one does."""

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

# Run by itself, because what is measured is a whole process: its memory at the highest, and the work it did.
CONTINUE = rf"""
import json, os, re, sys, time
from pathlib import Path
from megaptm.data import open_mix
from tests.data.corpora import tiny_special

folder = Path(sys.argv[1])
begun = time.process_time()
mix = open_mix({{str(folder): 1.0}}, objective="causal-lm", sequence=64, seed=1, special=tiny_special())
place = mix.locate({SAMPLE})
seconds = time.process_time() - begun
order = mix.orders[0]
epoch = order._epoch(place.epoch)
window = int((epoch.samples <= place.position).sum()) - 1
# The files of the two windows that the sample may need, and no others.
for shard in [*epoch.shards_of(window), *epoch.shards_of(window + 1)]:
    info = order.shards.info(int(shard))
    os.link(folder / "shard.tar", folder / info.name)
    os.link(folder / "shard.index.npy", folder / info.index_name)
begun = time.process_time()
sample = mix.sample({SAMPLE})
seconds += time.process_time() - begun
tokens = sample["tokens"].tolist()
# Not ru_maxrss, in which the process that started this one shows.
peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) << 10
print(json.dumps(dict(seconds=seconds, peak=peak, epoch=place.epoch, tokens=len(tokens))))
"""


def enlarge(folder, shards):
    """Make the one training shard of a corpus stand for so many, all with its content."""
    content = json.loads((folder / manifest.MANIFEST).read_bytes())
    [only] = ShardTable.open(folder, "train", content["splits"]["train"]["table_sha256"]).rows
    rows = np.full(shards, only, dtype=ROW)
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
def test_a_million_shards_continue_at_sample_a_billion(tmp_path):
    tiny_corpus(tmp_path, shards=1)
    enlarge(tmp_path, SHARDS)
    assert (tmp_path / manifest.MANIFEST).stat().st_size < 10_000
    done = subprocess.run([sys.executable, "-c", CONTINUE, tmp_path], capture_output=True, text=True)
    assert not done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["peak"] < 500 << 20
    # Of the processor, not of the clock, so that other work on the machine does not show.
    assert found["seconds"] < 2
    assert found["epoch"] > 10
    assert found["tokens"] == 64
