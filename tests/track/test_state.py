"""Upload state of a restart: continued if valid, else replaced by a new one."""

import json

import pytest

from megaptm.track import view_instructions
from megaptm.track.journal import STATE, UploadState


def test_state_round_trip(tmp_path):
    state = UploadState.read(tmp_path, uri=None, experiment="mine")
    state.run_id, state.uploaded_bytes = "abc", 12
    state.write(tmp_path)
    assert UploadState.read(tmp_path, uri=None, experiment="mine") == state


@pytest.mark.parametrize(
    "change",
    [
        {"uploaded_bytes": "twelve"},
        {"uploaded_bytes": -1},
        {"uploaded_bytes": 1.5},
        {"run_id": 7},
        {"job": None},
        {"experiment_id": ["1"]},
    ],
)
def test_state_with_wrong_types_is_replaced(tmp_path, change):
    state = UploadState.read(tmp_path, uri=None, experiment="mine")
    content = json.loads((tmp_path / STATE).read_bytes())
    (tmp_path / STATE).write_text(json.dumps(content | change))
    assert UploadState.read(tmp_path, uri=None, experiment="mine").job != state.job


@pytest.mark.parametrize("content", ["", "[]", "3", "{", '{"uri": null}'])
def test_state_of_another_structure_is_replaced(tmp_path, content):
    (tmp_path / STATE).write_text(content)
    assert UploadState.read(tmp_path, uri=None, experiment="mine").uploaded_bytes == 0


def test_invalid_state_gives_no_view_instructions(tmp_path):
    state = UploadState.read(tmp_path, uri="http://server", experiment="mine")
    state.run_id, state.experiment_id = "abc", "1"
    state.write(tmp_path)
    assert view_instructions(tmp_path) == ["http://server/#/experiments/1/runs/abc/model-metrics"]
    content = json.loads((tmp_path / STATE).read_bytes())
    for change in ({"uri": 7}, {"run_id": ["abc"]}):
        (tmp_path / STATE).write_text(json.dumps(content | change))
        assert view_instructions(tmp_path) == []
