"""`sbatch slurm/corpus.sh` starts Ray on the nodes of a job, and builds the same corpus as one process."""

import pytest

from tests import ROOT
from tests.drills.program import finish
from tests.real.jobs import ENDS

pytestmark = pytest.mark.real

SOURCES = ("*.md", "docs/*.md")
SETTINGS = ("tokenizer.vocabulary=300", "validation=0.1")


def test_corpus_of_two_nodes_equals_one_process(slurm, tmp_path):
    texts = [str(ROOT / source) for source in SOURCES]
    log = tmp_path / "job.log"
    job = slurm.submit(
        *("--nodes=2", "--cpus-per-task=1", f"--output={log}", "slurm/corpus.sh"),
        *(*texts, f"out={tmp_path / 'two'}", *SETTINGS),
    )
    one_process = finish("corpus", "build", *texts, f"out={tmp_path / 'one'}", *SETTINGS, "workers=0")
    assert one_process.returncode == 0, one_process.stderr
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    shards = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.tar"))
    assert shards
    for shard in shards:
        assert (tmp_path / "one" / shard).read_bytes() == (tmp_path / "two" / shard).read_bytes()
    assert not slurm.processes()
