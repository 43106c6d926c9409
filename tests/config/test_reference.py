"""Reference of config keys, in the terminal and in docs/config.md."""

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.config import load_config
from megaptm.config.reference import config_keys_as_markdown, config_sections, find_sections
from megaptm.config.yamls import flatten_keys
from megaptm.errors import UserError
from tests import ROOT


def test_page_equals_the_output_of_the_command():
    """To regenerate: `megaptm config keys --markdown > docs/config.md`."""
    assert (ROOT / "docs/config.md").read_text(encoding="utf-8") == config_keys_as_markdown(config_sections())


def test_every_key_has_a_meaning():
    keys = {key.path: key for section in config_sections() for key in section.keys}
    config = load_config("gpt2/tiny", ["train.ramp={start: 8, increment: 8, samples: 100}"])
    settable = {key for key in flatten_keys(config.model_dump()) if not key.startswith("model.attention.")}
    assert settable <= set(keys)
    assert "model.attention" in keys
    assert [key.path for key in keys.values() if not key.meaning] == []
    shown = {path: (key.type, key.default) for path, key in keys.items()}
    assert shown["train.batch"] == ("integer, at least 1", "required")
    assert shown["data.verify"] == ("hash, size, none", "hash")
    assert shown["train.hang_seconds"] == ("number, at least 1 or null", "300.0")
    assert keys["optimizer.clip"].default == keys["objective"].default == keys["devices"].default == "absent"
    assert "model.stacks.NAME.heads" in keys


def test_find_sections_and_keys():
    assert [section.name for section in find_sections("train")] == [
        "train",
        "train.ramp",
        "train.loss_scale",
        "train.spikes",
        "train.stragglers",
        "train.stop",
        "train.profile",
    ]
    [section] = find_sections("train.steps")
    assert [key.path for key in section.keys] == ["train.steps"]
    with pytest.raises(UserError, match=r"no key train\.stpes; did you mean train\.steps\?"):
        find_sections("train.stpes")
    assert [key.path for section in find_sections("learning_rate") for key in section.keys] == ["optimizer.lr"]
    assert [key.path for section in find_sections("heads") for key in section.keys] == [
        "model.heads",
        "model.stacks.NAME.heads",
    ]


def test_config_keys_and_config_show():
    output = CliRunner().invoke(main, ["config", "keys", "optimizer"]).output
    assert "optimizer.warmup_steps" in output
    assert "Peak learning rate." in output
    shown = CliRunner().invoke(main, ["config", "show", "gpt3/175b", "devices=1024"])
    assert "layers: 96" in shown.output
    assert CliRunner().invoke(main, ["config", "show", "gpt3/175b", "devices=3"]).exit_code == 2
