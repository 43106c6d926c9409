"""Mean of the last checkpoints of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.commands.export import export_hugging_face_command
from megaptm.errors import UserError
from megaptm.inference.loaded_model import load_model
from megaptm.run.checkpoint import open_checkpoint
from tests.train.runs import build, save_untrained, write_text


def test_last_checkpoints_are_averaged(tmp_path: Path) -> None:
    corpus = build(write_text(tmp_path / "tales"), tmp_path / "corpus", "gpt2")
    run, model = save_untrained("gpt2", tmp_path / "run", corpus, step=7)
    store = CheckpointStore(run, keep=9, fence=lambda: True)
    for step, factor in ((8, 3.0), (9, 8.0)):
        store.prepare(step)
        values = {f"weight/{name}": value * factor for name, value in model.named_parameters()}
        store.write(
            step, 0, [TensorPiece(n, tuple(v.shape), (0,) * v.dim(), tuple(v.shape), v) for n, v in values.items()]
        )
        store.commit(step, {}, ranks=1)
    for step, number, factor in ((None, 1, 8.0), (None, 2, 5.5), (None, 3, 4.0), (8, 2, 2.0)):
        mean = open_checkpoint(run, step=step).mean_weights(number)
        assert len(mean) == len([*mean])
        for name, value in model.named_parameters():
            assert (mean[name] - factor * value).abs().max() <= 1e-5 * (1 + value.abs().max())
    with pytest.raises(UserError, match="has 2 checkpoints up to step 8, not 3: average fewer"):
        open_checkpoint(run, step=8).mean_weights(3)

    arguments = [str(run), str(tmp_path / "out"), "--average", "2"]
    output = CliRunner().invoke(export_hugging_face_command, arguments, catch_exceptions=False).output
    assert output.startswith("the mean of 2 checkpoints up to step 9 of ")
    written = dict(load_model(tmp_path / "out").model.named_parameters())
    for name, value in model.named_parameters():
        assert (written[name] - 5.5 * value).abs().max() <= 1e-5 * (1 + value.abs().max())
