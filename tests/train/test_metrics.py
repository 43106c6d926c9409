"""Which steps of a run are recorded."""

from megaptm.track import read_metrics
from tests.drills.program import arguments
from tests.forked import megaptm


def test_the_first_step_and_the_last_are_recorded_besides_however_often_a_run_starts(real_corpus, tmp_path):
    run = tmp_path / "run"
    words = arguments("gpt2", run, real_corpus("byte-bpe"), "train.log_every=5", "train.steps=12")
    megaptm("train", *words, "train.stop_at=7", code=75)
    said = megaptm("train", *words)
    assert [record["step"] for record in read_metrics(run) if "loss" in record] == [1, 5, 10, 12]
    assert "step 10/12  loss" in said
