"""Commands that read no weights do not import torch, which takes long on a busy machine or a network disk."""

import json
import subprocess
import sys

import torch

from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.config import config_to_yaml, load_config
from tests import ROOT

PROGRAM = """
import json, sys
sys.modules["torch"] = None
from megaptm.__main__ import main
for words in json.loads(sys.argv[1]):
    assert main(words, standalone_mode=False) is None, words
"""


def test_commands_on_checkpoints_and_reports_do_not_import_torch(tmp_path):
    run = tmp_path / "run"
    store = CheckpointStore(run, fence=lambda: True)
    for step in (1, 2):
        store.prepare(step)
        store.write(step, 0, [TensorPiece("weight/a", (4,), (0,), (4,), torch.ones(4))])
        store.commit(step, {}, ranks=1)
    (run / "config.yaml").write_text(config_to_yaml(load_config("gpt2/tiny", [f"run={run}"])))
    record = {"time": 1.0, "step": 1, "loss": 2.0, "step_seconds": 0.1}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    commands = [
        ["checkpoint", "list", str(run)],
        ["checkpoint", "verify", str(run)],
        ["checkpoint", "tag", f"{run}@1", "first"],
        ["checkpoint", "copy", f"{run}@first", f"{run}-copy"],
        ["checkpoint", "tag", str(run), "first", "--remove"],
        ["checkpoint", "prune", str(run), "checkpoint.keep=1", "--yes"],
        ["report", str(run)],
        ["watch", str(run)],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "undamaged" in done.stdout
    assert "removed 1 checkpoints" in done.stdout
    assert "step 1 of 300" in done.stdout
