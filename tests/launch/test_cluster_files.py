"""The files in cluster/: read by Ray's own validation, and the same where they say the same."""

import re
import shlex

import pytest
import yaml

from megaptm.commands.launch_ray import ray as command
from tests import ROOT

CLUSTER = ROOT / "cluster"


def content(name):
    return yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_ray_accepts_the_files_of_its_launcher(name):
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    ready = prepare_config(content(name))  # with Ray's defaults, as `ray up` completes it
    validate_config(ready)
    with pytest.raises(Exception, match="bogus"):
        validate_config({**ready, "bogus": 1})
    assert ready["available_node_types"][ready["head_node_type"]]["resources"] == {"CPU": 0}
    assert max(kind["max_workers"] for kind in ready["available_node_types"].values()) == ready["max_workers"]


def test_a_run_on_kubernetes_has_the_cluster_that_many_runs_have():
    job, cluster = content("rayjob.yaml")["spec"], content("raycluster.yaml")["spec"]
    assert job["rayClusterSpec"] == cluster


@pytest.mark.parametrize("name", ["cluster/aws.yaml", "cluster/raycluster.yaml", "cluster/rayjob.yaml", "docs/ray.md"])
def test_the_commands_in_them_are_commands(name):
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"megaptm launch ray (configs/[^`\n]+)", text)
    assert found
    for line in found:
        words = [word for word in shlex.split(line) if word != "#"]
        parsed = command.make_context("ray", words)
        assert (ROOT / parsed.params["config"]).is_file()
        assert all("=" in word for word in parsed.params["overrides"])
