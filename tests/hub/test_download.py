"""A name in the place of a folder is asked of the hub, once; a hub that has it, one that has not, and none at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest

from megaptm.errors import UserError
from megaptm.hub.download import find_or_download
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.image_processor import PROCESSOR, PROCESSOR_OF_MODEL
from tests.models.tiny import tiny_model

NAME, REVISION = "somebody/tiny-gpt2", "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """The two questions that a download asks of the hub: which files, and each of them."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        self.asked.append(self.path)
        files = sorted(self.folder.iterdir())
        kind, _, rest = self.path.partition(NAME)
        if kind == "/api/models/" and "/tree/" in rest:
            sizes = {file.name: file.stat().st_size for file in files}
            tree = [{"type": "file", "path": name, "size": size, "oid": f"{size:040d}"} for name, size in sizes.items()]
            self.say(200, json.dumps(tree).encode(), body)
        elif kind == "/api/models/":
            content = json.dumps({"id": NAME, "sha": REVISION, "siblings": [{"rfilename": f.name} for f in files]})
            self.say(200, content.encode(), body)
        elif kind == "/" and rest.startswith(f"/resolve/{REVISION}/"):
            self.say(200, (self.folder / rest.rpartition("/")[2]).read_bytes(), body)
        else:
            self.say(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})

    def say(self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        more = {"Content-Length": str(len(content)), "ETag": f'"{len(content)}-{self.path[-8:].strip("/")}"'}
        for name, value in {**more, "X-Repo-Commit": REVISION, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A server that has one model, asked in the place of the real one; nothing goes into anybody's cache."""
    model = tiny_model("gpt2")
    to_hugging_face(model.spec, dict(model.named_parameters()), None, tmp_path / "model")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"never fetched")
    for name in (PROCESSOR, PROCESSOR_OF_MODEL):
        (tmp_path / "model" / name).write_text("{}")
    handler = type("Handler", (Hub,), {"folder": tmp_path / "model", "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at_hub(monkeypatch, server.server_address[1], tmp_path)
    yield handler
    server.shutdown()
    server.server_close()


def at_hub(monkeypatch: pytest.MonkeyPatch, port: int, folder: Path) -> None:
    constants = huggingface_hub.constants
    monkeypatch.chdir(folder)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    template = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"http://127.0.0.1:{port}{template}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))


def test_a_model_comes_from_the_hub_without_its_pickle(hub: type[Hub]) -> None:
    folder = find_or_download(NAME)
    found = from_hugging_face(folder)
    assert found.spec.size.layers == 2
    assert not any(path.endswith(".bin") for path in hub.asked)
    # Without them a model of images would be read as its family usually is.
    assert all((folder / name).read_text() == "{}" for name in (PROCESSOR, PROCESSOR_OF_MODEL))


def test_a_name_that_the_hub_does_not_know_is_one_sentence_and_one_question(hub: type[Hub]) -> None:
    with pytest.raises(UserError, match=r"^nobody/nothing is not a folder here, and the .* hub has no public model"):
        find_or_download("nobody/nothing")
    assert len(hub.asked) == 1


def test_without_a_network_a_wrong_path_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        at_hub(monkeypatch, closed.getsockname()[1], tmp_path)
        with pytest.raises(
            UserError, match=r"^gpt2 is not a folder here, and the .* hub cannot be reached \("
        ) as error:
            find_or_download("gpt2")
    assert "\n" not in str(error.value)
    assert "hf download gpt2" in str(error.value)
