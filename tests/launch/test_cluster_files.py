"""Files in cluster/: valid for Ray, with equal clusters and valid commands."""

import re
import shlex

import pytest
import yaml

from megaptm.commands.launch_ray import launch_ray_command as command
from tests import ROOT

CLUSTER = ROOT / "cluster"


def content(name):
    return yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_ray_validates_launcher_files(name):
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    ready = prepare_config(content(name))  # with Ray's defaults, as `ray up` adds them
    validate_config(ready)
    with pytest.raises(Exception, match="bogus"):
        validate_config({**ready, "bogus": 1})
    assert ready["available_node_types"][ready["head_node_type"]]["resources"] == {"CPU": 0}
    assert max(kind["max_workers"] for kind in ready["available_node_types"].values()) == ready["max_workers"]


def test_rayjob_has_the_cluster_of_raycluster():
    job, cluster = content("rayjob.yaml")["spec"], content("raycluster.yaml")["spec"]
    assert job["rayClusterSpec"] == cluster


@pytest.mark.parametrize("name", ["cluster/aws.yaml", "cluster/raycluster.yaml", "cluster/rayjob.yaml", "docs/ray.md"])
def test_commands_in_files_are_valid(name):
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"megaptm launch ray (configs/[^`\n]+)", text)
    assert commands
    for line in commands:
        words = [word for word in shlex.split(line) if word != "#"]
        parsed = command.make_context("ray", words)
        assert (ROOT / parsed.params["config"]).is_file()
        assert all("=" in word for word in parsed.params["overrides"])
