"""Hugging Face copies of checkpoints in the background, and their push to a hub on this machine."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from megaptm.config import load_config
from megaptm.plan.machine import load_machine
from megaptm.plan.plan import make_plan
from megaptm.resilience.events import read_events
from megaptm.run.branch import Branch
from megaptm.run.checkpoint import open_checkpoint
from megaptm.train.hub_export import is_export_due
from tests.bad_input.commands import user_error
from tests.drills.program import arguments, losses
from tests.forked import megaptm

KEYS = ("train.steps=3", "checkpoint.every=1", "checkpoint.keep=1", "layout.data=2")
MODEL = "writer/tiny"


class Hub(BaseHTTPRequestHandler):
    """The calls of the hub by which `huggingface_hub` creates a model and uploads a folder."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/repos/create"):
            request = json.loads(body)
            self.server.private.append(request.get("private") or request.get("visibility") == "private")
            self.reply({"url": f"{self.server.url}/{MODEL}"})
        elif self.path.endswith("/validate-yaml"):
            self.reply({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            modes = {True: "lfs", False: "regular"}
            paths = [file["path"] for file in json.loads(body)["files"]]
            files = [
                {"path": path, "uploadMode": modes[path.endswith(".safetensors")], "shouldIgnore": False}
                for path in paths
            ]
            self.reply({"files": files})
        elif self.path.endswith("/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            for each in objects:
                each["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}}
            self.reply({"transfer": "basic", "objects": objects})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                self.server.files |= self.committed_file(line)
            self.reply({"success": True, "commitOid": "1" * 40, "commitUrl": f"{self.server.url}/{MODEL}/commit/1"})
        else:
            self.send_error(404)

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[hashlib.sha256(content).hexdigest()] = content
        self.reply({})

    def do_GET(self):
        self.send_error(404)

    def committed_file(self, line):
        value = line["value"]
        match line["key"]:
            case "file":
                return {value["path"]: base64.b64decode(value["content"])}
            case "lfsFile":
                return {value["path"]: self.server.objects[value["oid"]]}
        return {}

    def reply(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch):
    """Hub on this machine, for this process and its children: `files` are those of its model."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.private, server.files, server.objects = [], {}, {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {"HF_ENDPOINT": server.url, "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1"}.items():
        monkeypatch.setenv(name, value)
    yield server
    server.shutdown()
    server.server_close()


def exports(run):
    return {event["step"]: event["problem"] for event in read_events(run) if event["kind"] == "hub-export"}


def test_copies_are_beside_the_checkpoints_and_pushed(real_corpus, tmp_path, hub):
    """Two data ranks, and a copy of the last step. A branch shares the checkpoint alone."""
    run = tmp_path / "run"
    keys = (*KEYS, "hub.export_every=9", f"hub.push_to={MODEL}")
    megaptm("train", *arguments("gpt2", run, real_corpus("byte-bpe"), *keys))
    assert exports(run) == {3: None}
    copy = run / "checkpoints/step-00000003/hf"
    model = AutoModelForCausalLM.from_pretrained(copy)
    weights = open_checkpoint(run, step=3).weights()
    torch.testing.assert_close(model.transformer.wte.weight, weights["embed.token.weight"], rtol=0, atol=0)
    assert len(AutoTokenizer.from_pretrained(copy)) == 512
    assert hub.private == [True]
    assert hub.files == {path.name: path.read_bytes() for path in copy.iterdir()}
    card = hub.files["README.md"].decode()
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"
    assert "| step | 3 |" in card
    assert str(tmp_path) not in card
    branch = Branch.parse([f"run={tmp_path / 'branch'}", f"from={run}"])
    assert branch.create()
    assert not (branch.run / "checkpoints/step-00000003/hf").exists()


def test_failed_copy_changes_nothing(real_corpus, tmp_path, monkeypatch):
    """No hub is reachable: training warns, goes on, and has the losses of a run without copies."""
    for name, value in {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_test"}.items():
        monkeypatch.setenv(name, value)
    corpus = real_corpus("byte-bpe")
    keys = ("hub.export_every=9", f"hub.push_to={MODEL}")
    output = megaptm("train", *arguments("gpt2", tmp_path / "run", corpus, *KEYS, *keys))
    assert "is exported, but cannot be pushed to writer/tiny" in exports(tmp_path / "run")[3]
    assert "the Hugging Face copy of step 3 failed" in output
    megaptm("train", *arguments("gpt2", tmp_path / "other", corpus, *KEYS))
    assert losses(tmp_path / "run") == losses(tmp_path / "other")


@pytest.mark.parametrize(
    ("previous", "step", "is_due"), [(0, 1, False), (1, 2, True), (2, 3, False), (3, 6, True), (4, 9, True)]
)
def test_first_checkpoint_of_every_so_many_steps_is_exported(previous, step, is_due):
    config = load_config("gpt2/tiny", ["train.steps=9", "hub.export_every=2"])
    assert is_export_due(config, previous, step) is is_due


def test_plan_has_the_host_memory_of_a_copy():
    keys = ["checkpoint.asynchronous=false"]
    plain, copied = (
        make_plan(load_config("gpt3/xl", [*keys, *more]), load_machine("a100-80g"))
        for more in ([], ["hub.export_every=1000"])
    )
    assert copied.saving.host_bytes - plain.saving.host_bytes == 4 * plain.parameters


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["hub.push_to=writer/tiny"], "hub.push_to needs hub.export_every"),
        (["hub.export_every=5", "hub.push_to=a/b/c"], "hub.push_to"),
    ],
)
def test_mistakes_have_a_sentence(tmp_path, keys, sentence):
    words = ("train", "gpt2/tiny", f"run={tmp_path / 'run'}", "data.mix={corpora/books: 1}")
    assert sentence in user_error(*words, *keys)
