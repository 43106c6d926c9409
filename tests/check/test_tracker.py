"""Checks of the tracking database, whatever the name of its folder."""

import pytest

from megaptm.track import default_tracking_uri


@pytest.mark.parametrize("name", ["lr#1", "50%20", "100%", "a b"])
def test_database_in_a_folder_with_special_characters(bench, name):
    folder = bench.folder / name
    folder.mkdir()
    words = bench.words("track.enabled=true", f"track.uri='{default_tracking_uri(folder / 'run')}'")
    code, [finding] = bench.check(*words, topics=("tracker",))
    assert code == 0
    assert finding["message"] == f"{folder}/mlflow.db can be written."
    (folder / "mlflow.db").write_text("no database" * 100)
    code, [finding] = bench.check(*words, topics=("tracker",))
    assert code == 2
    assert "cannot be written (file is not a database)" in finding["message"]


def test_invalid_database_url_is_a_fault(bench):
    words = bench.words("track.enabled=true", "track.uri=sqlite:mlflow.db")
    _, [finding] = bench.check(*words, topics=("tracker",))
    assert finding["message"].startswith(
        "track.uri (sqlite:mlflow.db) is not the URI of a database: write sqlite:///PATH"
    )
