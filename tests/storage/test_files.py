"""File operations on object stores survive network faults; permanent errors are one sentence."""

import hashlib
import threading
import time

import pytest

from megaptm import storage
from megaptm.errors import UserError
from megaptm.storage import RetryPolicy
from megaptm.storage import remote as remote_module
from megaptm.storage.remote import RemoteFile

CONTENT = bytes(range(256)) * 400
FAST_RETRY = RetryPolicy(seconds=20, deadline=1.0, pause=0.05, max_pause=0.2, report_after=0.3)


@pytest.fixture
def url(faults, request):
    file_url = f"s3://corpora/{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]}/file"
    yield file_url
    faults.faults.clear()


@pytest.fixture
def uploaded_url(url, faults, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    storage.upload(path, url, sha256=hashlib.sha256(CONTENT).hexdigest(), retry=FAST_RETRY)
    faults.requests.clear()
    return url


@pytest.fixture(params=["local", "s3"])
def folder(request, tmp_path, faults):
    return str(tmp_path / "folder") if request.param == "local" else "s3://corpora/folder"


def test_operations_on_paths_and_urls(folder, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    file = storage.join_path(folder, "file")
    assert not storage.exists(file, FAST_RETRY)
    assert storage.list_files(folder, FAST_RETRY) == {}
    storage.upload(path, file, retry=FAST_RETRY)
    assert storage.exists(file, FAST_RETRY)
    assert storage.file_size(file, FAST_RETRY) == len(CONTENT)
    assert storage.read_file(file, FAST_RETRY) == CONTENT
    assert storage.list_files(folder, FAST_RETRY) == {"file": len(CONTENT)}
    assert storage.download(file, tmp_path / "back", retry=FAST_RETRY) == hashlib.sha256(CONTENT).hexdigest()
    assert (tmp_path / "back").read_bytes() == CONTENT
    storage.remove_file(file, FAST_RETRY)
    storage.remove_file(file, FAST_RETRY)
    assert storage.list_files(folder, FAST_RETRY) == {}


@pytest.mark.parametrize("kind", ["reset", "error", "stall", "truncate"])
def test_download_survives_fault(uploaded_url, faults, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(remote_module, "CHUNK_BYTES", len(CONTENT) // 4)
    faults.inject(kind, match="GET .*/file", times=3, seconds=2.0)
    storage.download(uploaded_url, tmp_path / "back", retry=FAST_RETRY)
    assert (tmp_path / "back").read_bytes() == CONTENT
    assert faults.injected == [kind] * 3
    # Downloaded parts are retained: four requests, one more for each fault, a few for answers that are late.
    assert 4 + 3 <= len([request for request in faults.requests if request.startswith("GET ")]) <= 4 + 3 + 3
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize("kind", ["reset", "error", "stall"])
def test_upload_survives_fault(url, faults, tmp_path, kind):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    faults.inject(kind, match="PUT .*/file", times=2, seconds=2.0)
    storage.upload(path, url, sha256=hashlib.sha256(CONTENT).hexdigest(), retry=FAST_RETRY)
    assert faults.injected == [kind] * 2
    assert storage.read_file(url, FAST_RETRY) == CONTENT


def test_corrupt_upload_is_repeated(url, faults, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    faults.inject("corrupt", match="GET .*/file")
    storage.upload(path, url, sha256=hashlib.sha256(CONTENT).hexdigest(), retry=FAST_RETRY)
    assert len([request for request in faults.requests if request.startswith("PUT ")]) == 2


def test_outage_is_reported_and_waited_for(uploaded_url, faults, tmp_path):
    lines = []
    faults.down()
    threading.Timer(1.5, faults.up).start()
    retry = RetryPolicy(seconds=30, deadline=1.0, pause=0.05, max_pause=0.2, report_after=0.3, report=lines.append)
    storage.download(uploaded_url, tmp_path / "back", retry=retry)
    assert (tmp_path / "back").read_bytes() == CONTENT
    assert lines[0].startswith(f"{uploaded_url} does not answer (")
    assert lines[-1].startswith(f"{uploaded_url} answers again after ")


@pytest.mark.parametrize("kind", ["down", "reset", "stall"])
def test_error_after_max_retry_seconds(uploaded_url, faults, kind):
    faults.down() if kind == "down" else faults.inject(kind, times=1000, seconds=3.0)
    started = time.monotonic()
    with pytest.raises(UserError) as raised:
        storage.read_file(
            uploaded_url, RetryPolicy(seconds=1.0, deadline=0.4, pause=0.1, max_pause=0.2, report=lambda line: None)
        )
    assert str(raised.value).startswith(f"{uploaded_url} could not be reached for ")
    assert str(raised.value).endswith("check that its server responds, and start again.")
    assert "\n" not in str(raised.value)
    # s3fs and botocore add no retries of their own, so an attempt takes at most its deadline.
    assert time.monotonic() - started < 20
    faults.faults.clear()


@pytest.mark.parametrize("missing", ["s3://corpora/nothing/here", "s3://no-such-bucket/file"])
def test_missing_file_is_not_retried(faults, missing):
    with pytest.raises(UserError, match=rf"^{missing} does not exist: check the path or URL\.$"):
        storage.read_file(missing)
    with pytest.raises(UserError, match=rf"^{missing} does not exist"):
        storage.file_size(missing)


def test_denied_access_is_not_retried(faults, monkeypatch):
    def denied(self):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(RemoteFile, "_file_system", denied)
    with pytest.raises(UserError, match=r"^access to s3://corpora/file is denied \(Access Denied\): check the cred"):
        storage.read_file("s3://corpora/file")


def test_unknown_protocol_is_rejected(tmp_path):
    with pytest.raises(
        UserError, match=r"^fax://number: fax:// is not a protocol that megaptm reads: use a local folder"
    ):
        storage.read_file("fax://number")


def test_bug_is_not_retried(uploaded_url, monkeypatch):
    monkeypatch.setattr(RemoteFile, "_file_system", lambda self: None)
    with pytest.raises(AttributeError):
        storage.read_file(uploaded_url)


def test_unexpected_size_is_rejected(uploaded_url, tmp_path):
    with pytest.raises(UserError, match=r"has 102,400 bytes, expected 5"):
        storage.download(uploaded_url, tmp_path / "back", size=5)
    assert not (tmp_path / "back").exists()
