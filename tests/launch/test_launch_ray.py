"""`megaptm launch ray` before a cluster is used."""

import http.server
import socket
import threading

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from tests.drills.program import arguments


@pytest.fixture
def launch(real_corpus, tmp_path):
    """Run the command on a small config."""

    def run(*words):
        config = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"))
        return CliRunner().invoke(main, ["launch", "ray", *config, *words], env={"RAY_ADDRESS": ""})

    return run


@pytest.fixture
def closed():
    """Address without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def web():
    """Address of a server that is not Ray."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("where", ["closed", "web"])
def test_unreachable_address_fails_in_bounded_time(launch, tmp_path, request, monkeypatch, where):
    monkeypatch.setattr("megaptm.schedulers.ray.connection.ANSWER_SECONDS", 2.0)
    address = request.getfixturevalue(where)
    result = launch("--address", address)
    assert result.exit_code == 2
    assert f"no Ray cluster answers at {address} (" in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--address", "ray://head:10001"], "--address ray://head:10001 is for Ray Client"),
        (["run=/tmp/ray/session_1/_ray_pkg_ab12/runs/x"], "would be in a copy of the working directory"),
        (["--machine", "h100"], "--machine h100: no such machine"),
        (["--wait", "-1"], "-1.0 is not in the range x>=0"),
        (["data.mix={/nowhere: 1}"], "/nowhere"),
        (["layout.tensor=3"], "layout.tensor (3) must divide"),
    ],
)
def test_user_error_leaves_no_run_folder(launch, tmp_path, words, message):
    result = launch(*words)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "run").exists()
