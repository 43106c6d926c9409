"""The reference of keys says what the schema says, in the terminal and on its page."""

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.config import load
from megaptm.config.reference import as_markdown, config_sections, find_sections
from megaptm.errors import UserError
from megaptm.run.changes import flat
from tests import ROOT


def test_the_page_is_what_the_command_prints():
    """Else: `megaptm config keys --markdown > docs/config.md`."""
    assert (ROOT / "docs/config.md").read_text(encoding="utf-8") == as_markdown(config_sections())


def test_every_key_of_a_config_is_told_with_its_meaning():
    keys = {key.path: key for section in config_sections() for key in section.keys}
    config = load("gpt2/tiny", ["train.ramp={start: 8, increment: 8, samples: 100}"])
    assert set(flat(config.model_dump())) <= set(keys)
    assert [key.path for key in keys.values() if not key.meaning] == []
    said = {path: (key.type, key.default) for path, key in keys.items()}
    assert said["train.batch"] == ("integer, at least 1", "required")
    assert said["data.verify"] == ("hash, size, none", "hash")
    assert said["train.hang_seconds"] == ("number, at least 1 or null", "300.0")
    assert keys["optimizer.clip"].default == keys["objective"].default == keys["devices"].default == "absent"
    assert "model.stacks.NAME.heads" in keys


def test_a_section_and_a_key_can_be_asked_for():
    assert [one.name for one in find_sections("train")] == ["train", "train.ramp"]
    [one] = find_sections("train.steps")
    assert [key.path for key in one.keys] == ["train.steps"]
    with pytest.raises(UserError, match=r"no key train\.stpes; did you mean train\.steps\?"):
        find_sections("train.stpes")
    assert [key.path for one in find_sections("learning_rate") for key in one.keys] == ["optimizer.lr"]
    assert [key.path for one in find_sections("heads") for key in one.keys] == [
        "model.heads",
        "model.stacks.NAME.heads",
    ]


def test_the_command_prints_it_and_shows_a_config():
    said = CliRunner().invoke(main, ["config", "keys", "optimizer"]).output
    assert "optimizer.warmup_steps" in said
    assert "Peak learning rate." in said
    shown = CliRunner().invoke(main, ["config", "show", "gpt3/175b", "devices=1024"])
    assert "layers: 96" in shown.output
    assert CliRunner().invoke(main, ["config", "show", "gpt3/175b", "devices=3"]).exit_code == 2
