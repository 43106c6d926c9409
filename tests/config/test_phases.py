"""Planned phases: their configs, layouts and plans; every invalid one is one sentence."""

import io
import re

import pytest

from megaptm.check.api import CHECKS
from megaptm.check.finding import CheckInput, run_checks
from megaptm.config import config_to_yaml, load_config, load_run_config, read_config_draft
from megaptm.config.read import UncheckedConfig, phase_configs
from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.plan.machine import load_machine
from megaptm.plan.plan import make_plan, make_plans, summed_json
from megaptm.plan.show import show_phase_plans
from tests import ROOT

TINY = ROOT / "configs/gpt2/tiny.yaml"
LENGTH = ("train.steps=8", "train.batch=16", "optimizer.max_warmup_ratio=null")


def phased(*entries, more=()):
    return phase_configs(load_config(TINY, [*LENGTH, *more, f"phases=[{', '.join(entries)}]"]))


def test_values_hold_until_a_later_phase_changes_them():
    configs = phased(
        "{until: 3, optimizer.lr: 1e-3}",
        "{until: 6, data: {sequence: 32}, optimizer: {lr: 1e-4}}",
        "{train.batch: 8, objective: {causal-lm: {}}}",
    )
    values = [(each.optimizer.lr, each.data.sequence, each.train.batch, each.train.phase_start) for each in configs]
    assert values == [(1e-3, 128, 16, 0), (1e-4, 32, 16, 3), (1e-4, 32, 8, 6)]
    assert configs[-1].batch_schedule.changes == {0: 16, 6: 8}


def test_written_config_has_the_same_phases(tmp_path):
    [config, *_] = configs = phased("{until: 3, optimizer.lr: 1e-3}", "{train.ramp: null, data.mix: {a.b: 1, c: 2}}")
    path = tmp_path / "config.yaml"
    path.write_text(config_to_yaml(config))
    assert phase_configs(load_config(path)) == configs


def test_layout_of_a_phase_fits_the_devices():
    layouts = "layouts={2: {recompute: full}, 4: {recompute: attention}}"
    first, second = phased(
        "{until: 3}",
        "{layouts: {2: {tensor: 2}, 4: {tensor: 2, pipeline: 2}}}",
        more=(layouts, "devices=4", "layout.distributed_optimizer=true", "train.batch=32"),
    )
    assert (first.layout.axes_text, first.layout.recompute) == ("data 4 x tensor 1 x pipeline 1", "attention")
    assert (second.layout.axes_text, second.layout.recompute) == ("data 1 x tensor 2 x pipeline 2", "none")
    assert second.layout.distributed_optimizer


def test_plans_add_up():
    machine = load_machine("a100-80g")
    config = load_config(TINY, [*LENGTH, "phases=[{until: 3}, {data.sequence: 32}]"])
    plans = make_plans(config, machine)
    assert [plan.steps for plan in plans] == [3, 5]
    assert [plan.tokens for plan in plans] == [3 * 16 * 128, 5 * 16 * 32]
    alone = make_plan(load_config(TINY, [*LENGTH, "data.sequence=32"]), machine)
    assert plans[1].step.seconds == alone.step.seconds
    assert summed_json(plans)["run"]["days"] == sum(plan.days for plan in plans)


def test_plan_shows_what_phases_share_once():
    """Three phases, of which the second has another layout, in fewer lines than 80 columns hold of one plan each."""
    config = load_config(TINY, [*LENGTH, "phases=[{until: 3}, {until: 5, layout.microbatch: 1}, {data.sequence: 32}]"])
    screen = io.StringIO()
    show_phase_plans(make_plans(config, load_machine("a100-80g")), Console(file=screen, width=80))
    lines = screen.getvalue().splitlines()
    assert len(lines) < 40
    rows = [line.split()[:4] for line in lines if line.startswith(("1-3 ", "4-5 ", "6-8 "))]
    assert rows == [["1-3", "16", "128", "6.14e+03"], ["4-5", "16", "128", "4.1e+03"], ["6-8", "16", "32", "1.54e+03"]]
    assert len([line for line in lines if "micro-batch 1" in line]) == 2
    assert len([line for line in lines if "on 1 x 8 A100 80 GB" in line]) == 1
    assert not [line for line in lines if line.endswith("…")]


@pytest.mark.parametrize("key", ["objective=unwanted:Task #", "objective.unwanted:Task"])
@pytest.mark.parametrize("phases", ['[{{"{}": {{}}}}]', '[{{until: 3}}, {{"{}": {{}}}}]'])
def test_key_of_a_phase_names_no_code(tmp_path, monkeypatch, key, phases):
    """A received run may not import code that nobody allowed."""
    (tmp_path / "unwanted.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "config.yaml"
    text = config_to_yaml(load_config(TINY, LENGTH))
    assert "\nphases: []\n" in text
    path.write_text(text.replace("\nphases: []\n", f"\nphases: {phases.format(key)}\n"))
    with pytest.raises(UserError, match="must be a list of phases"):
        load_run_config(path)
    assert not (tmp_path / "imported").exists()


def test_memory_of_each_phase_is_checked():
    config = load_config(TINY, [*LENGTH, "model.context=65536", "phases=[{until: 3}, {data.sequence: 65536}]"])
    case = CheckInput(config=config, machine=load_machine("a100-80g"))
    faults = [finding.message for finding in run_checks(CHECKS[:3], case) if finding.state == "fault"]
    assert [fault.partition(":")[0] for fault in faults] == ["steps 4 to 8"]


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ("{until: 3}, {until: 9}", "a phase lasts until step 9, and train.steps is 8"),
        ("{until: 8}, {}", "a phase lasts until step 8, and train.steps is 8"),
        ("{until: 5}, {until: 5}, {}", "`until` must rise from phase to phase, and 5 follows 5"),
        ("{until: 3}, {until: 6}", "the last phase lasts until step 6, and train.steps is 8"),
        ("{}, {until: 8}", "only the last phase may leave out `until`"),
        ("{until: 3}, 5", "phases must be a list of phases"),
        ("{until: x}", "phases must be a list of phases"),
        ("{until: 3}, {train.steps: 9}", "phases: train.steps is the same in all phases"),
        ("{until: 3}, {model.layers: 2}", "phases, after step 3: model.layers is 2, was 4, and cannot change"),
        ("{until: 3}, {optimizer.name: lamb}", "phases, after step 3: optimizer.name is lamb, was adamw, and cannot"),
        (
            "{until: 3}, {optimizer.lrr: 1}",
            "phases, after step 3: unknown key optimizer.lrr; did you mean optimizer.lr?",
        ),
        ("{until: 3}, {data.mix.books: 4}", "phases: data.mix.books is a part of data.mix: give all of it"),
        ("{until: 3}, {data.sequence: 999}", "phases, after step 3: data.sequence (999) must not exceed"),
        ("{until: 3}, {layout.tensor: 2}", "phases, after step 3: devices (1) must be a multiple of"),
    ],
)
def test_invalid_phase_is_one_sentence(entries, sentence):
    [mistake] = read_config_draft(TINY, [*LENGTH, f"phases=[{entries}]"]).mistakes
    assert sentence in mistake


def test_mistakes_of_all_phases_are_reported():
    entries = (
        "{until: 2, optimizer.lrr: 1}, {until: 4, data: {sequenc: 32, mx: 1}}, {until: 5, optimizer.lr: high}, "
        "{until: 6, data.sequence: 999, optimizer.bta: 1}, {train.logevery: 1}"
    )
    mistakes = read_config_draft(TINY, [*LENGTH, "train.tim=1", f"phases=[{entries}]"]).mistakes
    keys = [re.search(r"(data|optimizer|train)\.\w+", mistake)[0] for mistake in mistakes]
    assert sorted(keys[:2]) == ["optimizer.lrr", "train.tim"]
    assert keys[2:] == ["data.sequenc", "data.mx", "optimizer.lr", "optimizer.bta", "data.sequence", "train.logevery"]


def test_planned_layout_excludes_layouts_of_phases():
    written = UncheckedConfig.read(TINY, [*LENGTH, "layout=auto", "phases=[{until: 3}, {layout.tensor: 2}]"])
    assert written.draft().mistakes[0].startswith("layout (auto) is planned for each phase: leave `layout` out")
