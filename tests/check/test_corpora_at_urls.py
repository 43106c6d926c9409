"""Checks of a corpus on an object store, without leaving it in the cache."""

import pytest

from megaptm.storage import join_path, upload
from tests.check.conftest import messages
from tests.storage.server import BUCKET

pytestmark = pytest.mark.real


@pytest.fixture
def url(s3, real_corpus, tmp_path):
    corpus, url = real_corpus("byte-bpe"), f"s3://{BUCKET}/{tmp_path.name}"
    for path in corpus.rglob("*"):
        if path.is_file():
            upload(path, join_path(url, str(path.relative_to(corpus))))
    return url


@pytest.fixture
def check_remote_corpus(bench, url):
    return lambda: bench.check(
        *bench.words(f"data.mix={{{url}: 1}}", f"data.cache_dir={bench.folder}/cache"), topics=("data",)
    )


def test_undamaged_remote_corpus_is_ok_and_not_cached(bench, check_remote_corpus):
    code, findings = check_remote_corpus()
    assert code == 0
    assert messages(findings, "fault", "warning") == []
    assert "all hashed" in findings[0]["message"]
    assert list(bench.folder.iterdir()) == []


def test_changed_byte_of_a_remote_shard_is_found(bench, url, check_remote_corpus):
    shard = bench.folder / "changed"
    content = bytearray((bench.real_corpus("byte-bpe") / "train-000000.tar").read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    upload(shard, join_path(url, "train-000000.tar"))
    code, findings = check_remote_corpus()
    assert code == 2
    [fault] = messages(findings, "fault")
    assert fault.startswith(f"data: {url}/train-000000.tar is damaged (its sha256 differs from the manifest): copy")
