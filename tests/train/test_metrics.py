"""Which steps of a run are recorded."""

from megaptm.track import read_metrics
from tests.drills.program import arguments, finish


def test_a_start_s_first_step_and_the_last_of_all_are_recorded_besides(real_corpus, tmp_path):
    run = tmp_path / "run"
    words = arguments("gpt2", run, real_corpus("byte-bpe"), "train.log_every=5", "train.steps=12")
    assert finish("train", *words, "train.stop_at=7").returncode == 75
    done = finish("train", *words)
    assert done.returncode == 0, done.stderr
    assert [record["step"] for record in read_metrics(run) if "loss" in record] == [1, 5, 8, 10, 12]
    assert "step 8/12  loss" in done.stdout
