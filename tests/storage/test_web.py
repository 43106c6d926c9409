"""What a server of the web says, and that it says nothing, is told from a file that is not there."""

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
from megaptm.storage import Cache, RetryPolicy

AT_ONCE = RetryPolicy(seconds=0.0, deadline=5.0, tell=lambda line: None)
CONTENT = b"all of it"


class Answers(BaseHTTPRequestHandler):
    """`/404` answers so; `/200` with a file."""

    def do_GET(self) -> None:
        code = int(self.path.strip("/").partition("/")[0])
        self.send_response(code)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(CONTENT)

    do_HEAD = do_GET  # noqa: N815  # the name that is looked for

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as there:
        threading.Thread(target=there.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{there.server_port}"
        there.shutdown()


def test_a_file_is_there_or_not(server: str) -> None:
    assert storage.exists(f"{server}/200", AT_ONCE)
    assert storage.size_of(f"{server}/200", AT_ONCE) == len(CONTENT)
    assert not storage.exists(f"{server}/404", AT_ONCE)
    with pytest.raises(UserError, match="/404 does not exist: check the address"):
        storage.size_of(f"{server}/404", AT_ONCE)
    assert list_url(f"{server}/404") is None


@pytest.mark.parametrize("ask", [storage.exists, storage.size_of, storage.read])
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "access to .*/403 is denied"),
        (429, "/429 could not be reached for \\d+ s .*429"),
        (503, "/503 could not be reached for \\d+ s .*503"),
    ],
)
def test_one_that_refuses_is_told(server: str, status: int, said: str, ask: object) -> None:
    with pytest.raises(UserError, match=said):
        ask(f"{server}/{status}", AT_ONCE)  # type: ignore[operator]


@pytest.mark.parametrize("status", [405, 410, 416])
def test_what_a_server_will_always_refuse_is_asked_once(server: str, status: int) -> None:
    patient = RetryPolicy(deadline=5.0, tell=lambda line: pytest.fail(line))
    with pytest.raises(UserError, match=rf"/{status} cannot be read .*{status}.*: check the address"):
        storage.read(f"{server}/{status}", patient)


def test_one_that_does_not_answer_is_told(tmp_path: object) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens
        place = f"http://127.0.0.1:{bound.getsockname()[1]}/corpus"
        for ask in (storage.exists, storage.size_of, storage.read):
            with pytest.raises(UserError, match=r"corpus could not be reached for \d+ s .*Cannot connect"):
                ask(place, AT_ONCE)
        with pytest.raises(UserError, match=r"manifest.json could not be reached"):
            Corpus.open(place, Cache(tmp_path, retry=AT_ONCE))  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"cannot be listed .Cannot connect"):
            list_url(place)
