"""Errors of a web server are not mistaken for a missing file."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from data_pipeline.sources.remote import list_url
from megaptm import storage
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.storage import RemoteFileCache, RetryPolicy

NO_RETRY = RetryPolicy(seconds=0.0, deadline=5.0, report=lambda line: None)
CONTENT = b"content"


class StatusHandler(BaseHTTPRequestHandler):
    """`/404` has status 404; `/200` is a file."""

    def do_GET(self) -> None:
        code = int(self.path.strip("/").partition("/")[0])
        self.send_response(code)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(CONTENT)

    do_HEAD = do_GET  # noqa: N815  # called by name

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), StatusHandler) as http_server:
        threading.Thread(target=http_server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http_server.server_port}"
        http_server.shutdown()


def test_existing_and_missing_files(server: str) -> None:
    assert storage.exists(f"{server}/200", NO_RETRY)
    assert storage.file_size(f"{server}/200", NO_RETRY) == len(CONTENT)
    assert not storage.exists(f"{server}/404", NO_RETRY)
    with pytest.raises(UserError, match="/404 does not exist: check the path or URL"):
        storage.file_size(f"{server}/404", NO_RETRY)
    assert list_url(f"{server}/404") is None


@pytest.mark.parametrize("read_url", [storage.exists, storage.file_size, storage.read_file])
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "access to .*/403 is denied"),
        (429, "/429 could not be reached for \\d+ s .*429"),
        (503, "/503 could not be reached for \\d+ s .*503"),
    ],
)
def test_refusals_are_not_reported_as_missing(server: str, status: int, message: str, read_url: object) -> None:
    with pytest.raises(UserError, match=message):
        read_url(f"{server}/{status}", NO_RETRY)  # type: ignore[operator]


@pytest.mark.parametrize("status", [405, 410, 416])
def test_permanent_status_is_not_retried(server: str, status: int) -> None:
    patient_retry = RetryPolicy(deadline=5.0, report=lambda line: pytest.fail(line))
    with pytest.raises(UserError, match=rf"/{status} cannot be read .*{status}.*: check the URL"):
        storage.read_file(f"{server}/{status}", patient_retry)


@pytest.fixture
def unreachable() -> Iterator[str]:
    """URL of a port on which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/corpus"


@pytest.mark.parametrize("read_url", [storage.exists, storage.file_size, storage.read_file])
def test_unreachable_server_is_reported(unreachable: str, read_url: object) -> None:
    with pytest.raises(UserError, match=r"corpus could not be reached for \d+ s .*Cannot connect"):
        read_url(unreachable, NO_RETRY)  # type: ignore[operator]


def test_corpus_on_unreachable_server_is_reported(unreachable: str, tmp_path: object) -> None:
    with pytest.raises(UserError, match=r"manifest.json could not be reached"):
        Corpus.open(unreachable, RemoteFileCache(tmp_path, retry=NO_RETRY))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"cannot be listed .Cannot connect"):
        list_url(unreachable)
