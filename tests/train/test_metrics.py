"""Steps that are recorded in the metrics."""

import re

from megaptm.track import read_metrics
from tests.drills.program import arguments
from tests.forked import megaptm


def test_first_and_last_step_are_recorded(real_corpus, tmp_path):
    run = tmp_path / "run"
    words = arguments("bert", run, real_corpus("wordpiece"), "train.log_every=5", "train.steps=12")
    megaptm("train", *words, "train.stop_at=7", code=75)
    output = megaptm("train", *words)
    assert [record["step"] for record in read_metrics(run) if "loss" in record] == [1, 5, 10, 12]
    number = r"\d+\.\d{4}"
    each = rf"{number} \(mlm {number}, next-sentence {number}\)"
    assert re.search(rf"^step 10/12  loss {each}  lr", output, re.MULTILINE)
    assert re.search(rf"^step 12/12  validation loss {each}$", output, re.MULTILINE)
