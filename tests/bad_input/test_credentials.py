"""Every input rejects URLs with passwords: the error is one sentence without the password, and nothing is written."""

from base64 import b64encode

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from tests.train.runs import CONFIGS

SECRET = "hunter2"
URL = f"http://user:{SECRET}@127.0.0.1:9/web"
BUCKET = f"s3://AKIAIOSFODNN7EXAMPLE:{SECRET}/FEMI@bucket/web"
SIGNED = f"https://bucket.s3.amazonaws.com/web?X-Amz-Expires=60&X-Amz-Signature={SECRET}"


@pytest.fixture
def error_message(tmp_path, monkeypatch):
    """Function: run a command in a folder with these files, and return its error message."""
    monkeypatch.chdir(tmp_path)

    def run(*words, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        done = CliRunner().invoke(main, list(words))
        assert done.exit_code == 2, done.output
        [sentence] = done.stderr.splitlines()
        assert SECRET not in done.output
        assert sentence.startswith("error: ")
        assert "the URL contains a password, a key or a signature: remove them" in sentence
        assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(f"{name}.yaml" for name in files)
        return sentence

    return run


CONFIG = str(CONFIGS / "gpt2/tiny.yaml")


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("train", CONFIG, "run=here", f"track.uri={URL}"), "track.uri"),
        (("train", CONFIG, "run=here", f"data.mix={{{BUCKET}: 1}}"), "data.mix"),
        (("train", CONFIG, f"run={BUCKET}"), "run"),
        (("train", CONFIG, f"train.stepz={URL}"), "train.stepz"),
        (("train", URL), "word 2 of the command"),
        (("check", CONFIG, f"track.uri={URL}"), "track.uri"),
        (("plan", CONFIG, "--nodes", URL), "word 4 of the command"),
        (("launch", "ray", CONFIG, f"track.uri={URL}"), "track.uri"),
        (("launch", "slurm", CONFIG, "--dry-run", f"--sbatch=--comment={URL}"), "--sbatch"),
        (("corpus", "build", BUCKET, "out=here"), "word 3 of the command"),
        (("corpus", "build", SIGNED, "out=here"), "word 3 of the command"),
        (("corpus", "build", ".", f"out={BUCKET}"), "out"),
        (("evaluate", "here", "--corpus", BUCKET), "word 4 of the command"),
        (("export", "hf", "here", BUCKET), "word 4 of the command"),
    ],
)
def test_url_in_a_command(error_message, words, where):
    assert error_message(*words).startswith(f"error: {where}: ")


@pytest.mark.parametrize(
    "text",
    [
        f"run: here\ntrack:\n  uri: {URL}\n",
        f"run: here\ndata:\n  mix: {{{BUCKET}: 1}}\n",
        f"run: here\ndata:\n  mix:\n    {BUCKET}: 1\n    {BUCKET}: 2\n",
        f"run: here\ntrack:\n  uri: [[{{a: {URL}}}]]\n",
        f'run: here\ntrack:\n  uri: "http:\\u002f\\u002fuser:{SECRET}@host"\n',
        f"extends: other.yaml\ntrack:\n  uri: {URL}\n",
    ],
)
def test_url_in_a_config(error_message, text):
    for command in (("train", "config.yaml"), ("corpus", "build", "config.yaml", "out=here")):
        assert error_message(*command, config=text, other="run: here\n").startswith("error: config.yaml:")


def test_url_in_binary_yaml(tmp_path):
    """YAML can encode a URL so that the file does not contain its text."""
    config = tmp_path / "config.yaml"
    config.write_text(f"run: here\ntrack:\n  uri: !!binary {b64encode(URL.encode()).decode()}\n")
    done = CliRunner().invoke(main, ["train", str(config)])
    assert (done.exit_code, SECRET in done.output) == (2, False), done.output
    assert done.stderr.startswith(f"error: {config}:3: not valid YAML: ")


def test_url_in_a_recipe(error_message):
    recipe = f"sources:\n- path: {BUCKET}\n  field: text\n"
    assert error_message("corpus", "build", "recipe.yaml", "out=here", recipe=recipe).startswith(
        "error: recipe.yaml:2: "
    )


def test_url_in_a_call(tmp_path):
    """The API rejects such URLs too."""
    from megaptm.errors import UserError
    from megaptm.storage import open_remote
    from megaptm.track import Tracker

    for call in (lambda: Tracker(tmp_path / "here", uri=URL), lambda: open_remote(BUCKET)):
        with pytest.raises(UserError) as error:
            call()
        assert SECRET not in str(error.value)
    assert list(tmp_path.iterdir()) == []
