"""What a restart knows of what MLflow has: taken if it can be true, else begun anew."""

import json

import pytest

from megaptm.track import view_instructions
from megaptm.track.journal import STATE, UploadState


def test_a_state_is_read_as_it_was_written(tmp_path):
    state = UploadState.read(tmp_path, uri=None, experiment="mine")
    state.run_id, state.uploaded_bytes = "abc", 12
    state.write(tmp_path)
    assert UploadState.read(tmp_path, uri=None, experiment="mine") == state


@pytest.mark.parametrize(
    "change",
    [
        {"uploaded_bytes": "twelve"},
        {"shipped": -1},
        {"shipped": 1.5},
        {"run_id": 7},
        {"job": None},
        {"experiment_id": ["1"]},
    ],
)
def test_a_state_of_wrong_types_is_begun_anew(tmp_path, change):
    state = UploadState.read(tmp_path, uri=None, experiment="mine")
    content = json.loads((tmp_path / STATE).read_bytes())
    (tmp_path / STATE).write_text(json.dumps(content | change))
    assert UploadState.read(tmp_path, uri=None, experiment="mine").job != state.job


@pytest.mark.parametrize("content", ["", "[]", "3", "{", '{"uri": null}'])
def test_a_state_of_another_shape_is_begun_anew(tmp_path, content):
    (tmp_path / STATE).write_text(content)
    assert UploadState.read(tmp_path, uri=None, experiment="mine").uploaded_bytes == 0


def test_a_state_that_cannot_be_true_shows_nobody_the_way(tmp_path):
    state = UploadState.read(tmp_path, uri="http://server", experiment="mine")
    state.run_id, state.experiment_id = "abc", "1"
    state.write(tmp_path)
    assert view_instructions(tmp_path) == ["http://server/#/experiments/1/runs/abc/model-metrics"]
    content = json.loads((tmp_path / STATE).read_bytes())
    for change in ({"uri": 7}, {"run_id": ["abc"]}):
        (tmp_path / STATE).write_text(json.dumps(content | change))
        assert view_instructions(tmp_path) == []
