"""A corpus on an object store is looked at where it is, and not left in the cache."""

import pytest

from megaptm.storage import join, upload
from tests.check.conftest import saying
from tests.storage.server import BUCKET

pytestmark = pytest.mark.real


@pytest.fixture
def url(s3, real_corpus, tmp_path):
    corpus, url = real_corpus("byte-bpe"), f"s3://{BUCKET}/{tmp_path.name}"
    for path in corpus.rglob("*"):
        if path.is_file():
            upload(path, join(url, str(path.relative_to(corpus))))
    return url


@pytest.fixture
def looked_at(bench, url):
    return lambda: bench.check(
        *bench.words(f"data.mix={{{url}: 1}}", f"data.cache={bench.place}/cache"), topics=("data",)
    )


def test_a_good_corpus_elsewhere_has_no_fault_and_nothing_is_kept_of_it(bench, looked_at):
    code, findings = looked_at()
    assert code == 0
    assert saying(findings, "fault", "warning") == []
    assert "all hashed" in findings[0]["says"]
    assert list(bench.place.iterdir()) == []


def test_a_changed_byte_elsewhere_is_found(bench, url, looked_at):
    shard = bench.place / "changed"
    content = bytearray((bench.real_corpus("byte-bpe") / "train-000000.tar").read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    upload(shard, join(url, "train-000000.tar"))
    code, findings = looked_at()
    assert code == 2
    [fault] = saying(findings, "fault")
    assert fault.startswith(f"data: {url}/train-000000.tar is damaged (its sha256 is not the manifest's): copy")
