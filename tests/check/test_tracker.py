"""The database that a run would write to is the one that is looked at, whatever its folder is called."""

import pytest

from megaptm.track import default_uri


@pytest.mark.parametrize("name", ["lr#1", "50%20", "100%", "a b"])
def test_a_folder_may_be_called_as_it_likes(bench, name):
    folder = bench.place / name
    folder.mkdir()
    words = bench.words("track.enabled=true", f"track.uri='{default_uri(folder / 'run')}'")
    code, [finding] = bench.check(*words, topics=("tracker",))
    assert (code, finding["says"]) == (0, f"{folder}/mlflow.db can be written.")
    (folder / "mlflow.db").write_text("no database" * 100)
    code, [finding] = bench.check(*words, topics=("tracker",))
    assert code == 2
    assert "cannot be written (file is not a database)" in finding["says"]


def test_an_address_that_is_none_is_one_sentence(bench):
    words = bench.words("track.enabled=true", "track.uri=sqlite:mlflow.db")
    _, [finding] = bench.check(*words, topics=("tracker",))
    assert finding["says"].startswith("track.uri (sqlite:mlflow.db) is no address of a database: write sqlite:///PATH")
