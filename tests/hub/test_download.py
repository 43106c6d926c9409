"""Download by name, from a local server instead of the Hugging Face hub."""

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
from megaptm.families.vit.image_processor import PROCESSOR, PROCESSOR_OF_MODEL
from megaptm.hub.download import find_or_download
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from tests.models.tiny import tiny_model

NAME, REVISION = "somebody/tiny-gpt2", "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """Server for the two kinds of requests of a download: the list of files, and each file."""

    folder: Path
    requests: list[str]
    broken: tuple[str, ...] = ()
    """Names of files that the server does not send."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        self.requests.append(self.path)
        files = sorted(self.folder.iterdir())
        kind, _, endpoint = self.path.partition(NAME)
        if kind == "/api/models/" and "/tree/" in endpoint:
            sizes = {file.name: file.stat().st_size for file in files}
            tree = [{"type": "file", "path": name, "size": size, "oid": f"{size:040d}"} for name, size in sizes.items()]
            self.send(200, json.dumps(tree).encode(), body)
        elif kind == "/api/models/":
            content = json.dumps({"id": NAME, "sha": REVISION, "siblings": [{"rfilename": f.name} for f in files]})
            self.send(200, content.encode(), body)
        elif endpoint.endswith(self.broken or ("\0",)):
            self.send(403, b"", body)
        elif kind == "/" and endpoint.startswith(f"/resolve/{REVISION}/"):
            self.send(200, (self.folder / endpoint.rpartition("/")[2]).read_bytes(), body)
        else:
            self.send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})

    def send(self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
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
    """Start a server with one model instead of the hub, with its own cache."""
    model = tiny_model("gpt2")
    to_hugging_face(model.spec, dict(model.named_parameters()), None, tmp_path / "model")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"never fetched")
    for name in (PROCESSOR, PROCESSOR_OF_MODEL):
        (tmp_path / "model" / name).write_text("{}")
    handler = type("Handler", (Hub,), {"folder": tmp_path / "model", "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    redirect_hub(monkeypatch, server.server_address[1], tmp_path)
    yield handler
    server.shutdown()
    server.server_close()


def redirect_hub(monkeypatch: pytest.MonkeyPatch, port: int, folder: Path) -> None:
    constants = huggingface_hub.constants
    monkeypatch.chdir(folder)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    template = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"http://127.0.0.1:{port}{template}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))


def test_download_skips_pickles(hub: type[Hub]) -> None:
    folder = find_or_download(NAME)
    imported = from_hugging_face(folder)
    assert imported.spec.size.layers == 2
    assert not any(path.endswith(".bin") for path in hub.requests)
    # Without these, images would be preprocessed with defaults.
    assert all((folder / name).read_text() == "{}" for name in (PROCESSOR, PROCESSOR_OF_MODEL))


def test_incomplete_download_is_not_replaced_by_an_earlier_copy(hub: type[Hub], tmp_path: Path) -> None:
    """mlxcel's issue 604: part of a model, or another version of it, was used without a word."""
    earlier = tmp_path / "cache" / f"models--{NAME.replace('/', '--')}"
    (earlier / "snapshots" / "earlier").mkdir(parents=True)
    (earlier / "refs").mkdir()
    (earlier / "refs" / "main").write_text("earlier")
    hub.broken = ("model.safetensors",)
    with pytest.raises(UserError, match=rf"^{NAME} was not completely downloaded .*: start again; the files"):
        find_or_download(NAME)


@pytest.mark.parametrize("name", ["spm.model", "tokenizer.model", "sentencepiece.bpe.model", "chat_template.jinja"])
def test_tokenizer_files_are_downloaded(name: str, hub: type[Hub]) -> None:
    (hub.folder / name).write_text("x")
    assert (find_or_download(NAME) / name).read_text() == "x"


def test_unknown_name_needs_one_request(hub: type[Hub]) -> None:
    with pytest.raises(UserError, match=r"^nobody/nothing is not a folder here, and the .* hub has no public model"):
        find_or_download("nobody/nothing")
    assert len(hub.requests) == 1


def test_unreachable_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        redirect_hub(monkeypatch, closed.getsockname()[1], tmp_path)
        with pytest.raises(
            UserError, match=r"^gpt2 is not a folder here, and the .* hub cannot be reached \("
        ) as error:
            find_or_download("gpt2")
    assert "\n" not in str(error.value)
    assert "hf download gpt2" in str(error.value)
