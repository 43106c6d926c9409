"""A corpus built directly on an object store, a real server process."""

import json
from dataclasses import replace

import pytest

from data_pipeline.corpus.build import build_corpus
from megaptm.errors import UserError
from megaptm.storage import download, exists, join_path, list_files, read_file, upload
from tests.data_pipeline.corpus.test_build import files_of
from tests.storage.server import BUCKET

pytestmark = pytest.mark.real


def remote_files(url: str) -> dict[str, bytes]:
    return {name: read_file(join_path(url, name)) for name in list_files(url) if not name.startswith("report")}


@pytest.fixture
def url(s3, request) -> str:
    return f"s3://{BUCKET}/{request.node.name}"


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.corpus.output.CACHE", str(tmp_path / "cache"))


def test_corpus_at_url_equals_local_corpus(url, recipe, tmp_path):
    build_corpus(recipe, url, workers=0)
    build_corpus(recipe, tmp_path / "corpus", workers=0)
    local = files_of(tmp_path / "corpus")
    assert remote_files(url).items() <= local.items()
    for name in ("tokenizer/tokenizer.json", "manifest.json", "train-000000.tar"):
        download(join_path(url, name), tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == local[name]
    assert json.loads(read_file(join_path(url, "report.json")))["documents"] > 0
    assert list((tmp_path / "cache").iterdir()) == []


def test_corpus_at_url_is_replaced_with_overwrite(url, recipe, text, tmp_path):
    build_corpus(recipe, url, workers=0)
    first = remote_files(url)
    with pytest.raises(UserError, match=r"already contains a corpus.*overwrite=true"):
        build_corpus(recipe, url, workers=0)
    build_corpus(replace(recipe, seed=1, shard_bytes=1 << 20), url, workers=0, overwrite=True)
    assert remote_files(url)["manifest.json"] != first["manifest.json"]
    named = {name for name in list_files(url) if name.endswith(".tar")}
    assert named == {"train-000000.tar", "validation-000000.tar"}


def test_url_with_other_files_is_rejected(url, recipe, tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    upload(tmp_path / "thesis", join_path(url, "thesis.txt"))
    with pytest.raises(UserError, match=r"contains thesis\.txt but no corpus"):
        build_corpus(recipe, url, workers=0, overwrite=True)
    assert list_files(url) == {"thesis.txt": 13}


def test_manifest_is_uploaded_last(url, recipe, monkeypatch):
    sent = []

    def invalid(path, location, **options):
        sent.append(location)
        if len(sent) > 3:
            raise UserError("the server is gone.")
        return upload(path, location, **options)

    monkeypatch.setattr("data_pipeline.corpus.output.upload", invalid)
    with pytest.raises(UserError, match="server is gone"):
        build_corpus(recipe, url, workers=0)
    assert not exists(join_path(url, "manifest.json"))
    assert len(sent) == 4


def test_missing_bucket_is_rejected(recipe, s3):
    with pytest.raises(UserError, match="s3://no-such-bucket-here"):
        build_corpus(recipe, "s3://no-such-bucket-here/corpus", workers=0)
