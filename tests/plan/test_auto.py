"""`layout: auto`: the fastest planned layout for a machine that is named or found."""

import pytest

from megaptm.config import UncheckedConfig, load_config
from megaptm.config.read import phase_configs
from megaptm.errors import UserError
from megaptm.plan import local_machine
from megaptm.plan.auto import plan_layout
from megaptm.plan.local_machine import find_local_machine
from megaptm.plan.machine import load_machine
from megaptm.plan.search import fastest_layout, search_layouts

SMALL = "gpt2/small"
H100 = ["layout=auto", "machine=h100-80g"]


def planned(*overrides, config=SMALL, previous=None, environ=None):
    written, reason = plan_layout(UncheckedConfig.read(config, overrides), previous, environ=environ or {})
    return written.load().layout, reason


@pytest.fixture
def gpus(monkeypatch):
    """Replace the list of this computer's GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def set_gpus(*lines):
        monkeypatch.setattr(local_machine, "nvidia_smi", lambda *_: "\n".join(lines))

    set_gpus()
    return set_gpus


@pytest.mark.parametrize(
    ("line", "machine"),
    [
        ("NVIDIA H200, 143771", "h200-141g"),
        ("NVIDIA H100 80GB HBM3, 81559", "h100-80g"),
        ("NVIDIA A100-SXM4-80GB, 81920", "a100-80g"),
        ("NVIDIA A100-SXM4-40GB, 40960", "a100-40g"),
        ("NVIDIA GeForce RTX 4090, 24564", "rtx4090"),
        ("Tesla V100-SXM2-32GB, 32768", "v100-32g"),
    ],
)
def test_gpus_are_recognized(gpus, line, machine):
    gpus(line, line)
    assert find_local_machine() == load_machine(machine).model_copy(update={"devices": 2})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"layout \(auto\): nvidia-smi lists no GPU here; set machine to one of a100-40g, .*, and devices\.$"),
        (["NVIDIA L4, 23034"], r"no machine is known for NVIDIA L4 with 22 GiB; set machine to one of a100-40g, "),
        (["NVIDIA GB10, [N/A]"], r"no machine is known for NVIDIA GB10 with 0 GiB"),
        (["NVIDIA H100 NVL, 95830"], r"no machine is known for NVIDIA H100 NVL with 94 GiB"),
        (["NVIDIA H200, 143771", "NVIDIA L4, 23034"], r"several kinds of GPUs \(NVIDIA H200, NVIDIA L4\); set machine"),
    ],
)
def test_unknown_machine_is_refused(gpus, lines, message):
    gpus(*lines)
    with pytest.raises(UserError, match=message):
        planned("layout=auto")


def test_unknown_name_is_refused():
    with pytest.raises(UserError, match="machine h100: no such machine; did you mean h100-80g"):
        planned("layout=auto", "machine=h100")


def test_layout_is_the_fastest_of_the_search():
    layout, reason = planned(*H100)
    machine = load_machine("h100-80g")
    config = load_config(SMALL)
    result = search_layouts(config, machine, 8)
    fastest = fastest_layout(result, config, machine, 8)
    assert layout == fastest.layout
    assert reason.startswith("layout auto: data 8 x tensor 1 x pipeline 1, micro-batch ")
    assert "on 8 x H100 80 GB: " in reason
    assert "; runner-up data " in reason
    assert reason.count("\n") == 0


@pytest.mark.parametrize(
    ("overrides", "environ", "devices"),
    [
        ([*H100, "devices=2"], {}, 2),
        (H100, {}, 8),
        (H100, {"WORLD_SIZE": "4"}, 4),
        (["layout=auto"], {}, 2),
    ],
    ids=["key", "machine", "torchrun", "local GPUs"],
)
def test_number_of_devices(gpus, overrides, environ, devices):
    gpus(*["NVIDIA H200, 143771"] * 2)
    layout, _ = planned(*overrides, environ=environ)
    assert layout.processes == devices


def test_run_keeps_its_layout_on_as_many_devices(gpus):
    gpus(*["NVIDIA H200, 143771"] * 8)
    before = load_config(SMALL, ["layout.data=4", "layout.pipeline=2"])
    assert planned("layout=auto", previous=before) == (before.layout, "layout auto: as before in this run")
    assert planned("layout=auto", "devices=4", previous=before)[0].processes == 4


def test_run_keeps_its_layout_where_no_machine_is_known(gpus):
    gpus()
    before = load_config(SMALL, ["layout.data=4", "layout.pipeline=2"])
    assert planned("layout=auto", previous=before)[0] == before.layout


def test_run_keeps_its_layout_on_as_many_processes_of_torchrun(gpus):
    gpus()
    before = load_config(SMALL, ["layout.data=4", "layout.pipeline=2"])
    assert planned("layout=auto", previous=before, environ={"WORLD_SIZE": "8"})[0] == before.layout


@pytest.mark.parametrize(("visible", "devices"), [("2,3", 2), ("GPU-1,GPU-2,GPU-3", 3), ("0", 1)])
def test_only_visible_gpus_count(gpus, monkeypatch, visible, devices):
    gpus(*["NVIDIA H200, 143771"] * 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert planned("layout=auto")[0].processes == devices


def test_traced_ranks_do_not_depend_on_the_layout():
    assert planned(*H100, "train.profile={steps: [1, 2], ranks: [0, 7]}")[0].processes == 8


def test_config_that_is_not_planned_is_refused():
    with pytest.raises(UserError, match=r"layout \(auto\) is chosen by `megaptm train`, `launch`, `check` and `plan`"):
        load_config(SMALL, H100)


def test_mistakes_are_reported_first():
    with pytest.raises(UserError, match="devices must be an integer, not 'many'"):
        planned(*H100, "devices=many")
    with pytest.raises(UserError, match=r"unknown key train\.stpes"):
        planned(*H100, "train.stpes=1")


def test_later_layout_replaces_auto():
    assert load_config(SMALL, [*H100, "layout={data: 8, microbatch: 4}"]).layout.microbatch == 4


PHASES = "phases=[{until: 100, optimizer.lr: 5e-4}, {data.sequence: 512, train.batch: 64, layouts: {8: {tensor: 2}}}]"


def phased(*overrides, previous=None):
    written, reason = plan_layout(
        UncheckedConfig.read(SMALL, [*H100, PHASES, "data.sequence=1024", *overrides]), previous, environ={}
    )
    return phase_configs(written.load()), reason


def test_each_phase_has_the_fastest_layout_of_its_own():
    phases, reason = phased()
    machine = load_machine("h100-80g")
    alone = [
        load_config(SMALL, words)
        for words in (["data.sequence=1024"], ["data.sequence=512", "train.batch=64", "layout.microbatch=8"])
    ]
    fastest = [fastest_layout(search_layouts(config, machine, 8), config, machine, 8).layout for config in alone]
    assert [phase.layout for phase in phases] == fastest
    assert phases[0].layout.microbatch != phases[1].layout.microbatch
    assert [phase.optimizer.lr for phase in phases] == [5e-4, 5e-4], "the first entry keeps its other keys"
    lines = reason.splitlines()
    assert lines[0].startswith("steps 1 to 100: layout auto: data 8 x")
    assert lines[1].startswith("steps 101 to ")


def test_started_run_keeps_the_layouts_of_its_phases():
    before = load_config(
        SMALL, ["layout.data=8", "phases=[{until: 100}, {data.sequence: 512, train.batch: 64, layout.microbatch: 2}]"]
    )
    phases, reason = phased(previous=before)
    assert reason == "layout auto: as before in this run"
    assert [phase.layout for phase in phases] == [phase.layout for phase in phase_configs(before)]


def test_phase_that_does_not_fit_is_named():
    with pytest.raises(UserError, match=r"^steps 101 to [0-9,]+: gpt2/small on 97 x H100 80 GB: no layout"):
        phased("phases=[{until: 100}, {train.batch: 96}]", "devices=97", "train.batch=97")
