"""Files on an object store come and go whole, whatever the network does; and what cannot be is told in a sentence."""

import hashlib
import threading
import time

import pytest

from megaptm import storage
from megaptm.errors import UserError
from megaptm.storage import RetryPolicy
from megaptm.storage import remote as remote_module
from megaptm.storage.remote import Remote

CONTENT = bytes(range(256)) * 400
QUICK = RetryPolicy(seconds=20, deadline=1.0, pause=0.05, longest_pause=0.2, tell_after=0.3)


@pytest.fixture
def url(faults, request):
    place = f"s3://corpora/{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]}/file"
    yield place
    faults.faults.clear()


@pytest.fixture
def sent(url, faults, tmp_path):
    path = tmp_path / "sent"
    path.write_bytes(CONTENT)
    storage.upload(path, url, sha256=hashlib.sha256(CONTENT).hexdigest(), retry=QUICK)
    faults.seen.clear()
    return url


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path, faults):
    return str(tmp_path / "place") if request.param == "local" else "s3://corpora/place"


def test_paths_and_urls_are_used_alike(place, tmp_path):
    path = tmp_path / "sent"
    path.write_bytes(CONTENT)
    file = storage.join(place, "file")
    assert not storage.exists(file, QUICK)
    assert storage.listed(place, QUICK) == {}
    storage.upload(path, file, retry=QUICK)
    assert storage.exists(file, QUICK)
    assert storage.size_of(file, QUICK) == len(CONTENT)
    assert storage.read(file, QUICK) == CONTENT
    assert storage.listed(place, QUICK) == {"file": len(CONTENT)}
    assert storage.download(file, tmp_path / "back", retry=QUICK) == hashlib.sha256(CONTENT).hexdigest()
    assert (tmp_path / "back").read_bytes() == CONTENT
    storage.remove(file, QUICK)
    storage.remove(file, QUICK)
    assert storage.listed(place, QUICK) == {}


@pytest.mark.parametrize("kind", ["reset", "error", "stall", "truncate"])
def test_a_download_outlives_a_fault(sent, faults, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(remote_module, "CHUNK", len(CONTENT) // 4)
    faults.inject(kind, match="GET .*/file", times=3, seconds=2.0)
    storage.download(sent, tmp_path / "back", retry=QUICK)
    assert (tmp_path / "back").read_bytes() == CONTENT
    assert faults.done == [kind] * 3
    # What had come was kept: four parts, and one more for each fault.
    assert len([request for request in faults.seen if request.startswith("GET ")]) == 4 + 3
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize("kind", ["reset", "error", "stall"])
def test_an_upload_outlives_a_fault(url, faults, tmp_path, kind):
    path = tmp_path / "sent"
    path.write_bytes(CONTENT)
    faults.inject(kind, match="PUT .*/file", times=2, seconds=2.0)
    storage.upload(path, url, sha256=hashlib.sha256(CONTENT).hexdigest(), retry=QUICK)
    assert faults.done == [kind] * 2
    assert storage.read(url, QUICK) == CONTENT


def test_a_copy_that_came_back_different_is_sent_again(url, faults, tmp_path):
    path = tmp_path / "sent"
    path.write_bytes(CONTENT)
    faults.inject("corrupt", match="GET .*/file")
    storage.upload(path, url, sha256=hashlib.sha256(CONTENT).hexdigest(), retry=QUICK)
    assert len([request for request in faults.seen if request.startswith("PUT ")]) == 2


def test_a_server_that_is_down_is_waited_for_and_that_is_said(sent, faults, tmp_path):
    said = []
    faults.down()
    threading.Timer(1.5, faults.up).start()
    retry = RetryPolicy(seconds=30, deadline=1.0, pause=0.05, longest_pause=0.2, tell_after=0.3, tell=said.append)
    storage.download(sent, tmp_path / "back", retry=retry)
    assert (tmp_path / "back").read_bytes() == CONTENT
    assert said[0].startswith(f"{sent} does not answer (")
    assert said[-1].startswith(f"{sent} answers again after ")


@pytest.mark.parametrize("kind", ["down", "reset", "stall"])
def test_patience_ends_in_one_sentence(sent, faults, kind):
    faults.down() if kind == "down" else faults.inject(kind, times=1000, seconds=3.0)
    begun = time.monotonic()
    with pytest.raises(UserError) as told:
        storage.read(sent, RetryPolicy(seconds=1.0, deadline=0.4, pause=0.1, longest_pause=0.2, tell=lambda line: None))
    assert str(told.value).startswith(f"{sent} could not be reached for ")
    assert str(told.value).endswith("see that its server answers, and start again.")
    assert "\n" not in str(told.value)
    # Neither s3fs nor botocore add their own: the longest that one attempt can go over is its deadline.
    assert time.monotonic() - begun < 20
    faults.faults.clear()


@pytest.mark.parametrize("missing", ["s3://corpora/nothing/here", "s3://no-such-bucket/file"])
def test_what_is_not_there_is_told_at_once(faults, missing):
    with pytest.raises(UserError, match=rf"^{missing} does not exist: check the address\.$"):
        storage.read(missing)
    with pytest.raises(UserError, match=rf"^{missing} does not exist"):
        storage.size_of(missing)


def test_denied_access_is_told_at_once(faults, monkeypatch):
    def denied(self):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(Remote, "_files", denied)
    with pytest.raises(UserError, match=r"^access to s3://corpora/file is denied \(Access Denied\): check the cred"):
        storage.read("s3://corpora/file")


def test_an_address_nobody_understands_is_told(tmp_path):
    with pytest.raises(UserError, match=r"^fax://number: fax:// is not a protocol that megaptm reads: give a folder"):
        storage.read("fax://number")


def test_a_mistake_of_ours_is_not_tried_again(sent, monkeypatch):
    monkeypatch.setattr(Remote, "_files", lambda self: None)
    with pytest.raises(AttributeError):
        storage.read(sent)


def test_a_file_of_another_size_is_refused(sent, tmp_path):
    with pytest.raises(UserError, match=r"has 102,400 bytes where 5 are expected"):
        storage.download(sent, tmp_path / "back", size=5)
    assert not (tmp_path / "back").exists()
