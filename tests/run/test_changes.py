"""Config that continues a run: which keys may differ, and how corpora, files and the learning rate are compared."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from megaptm.checkpoint.store import Checkpoint, Store
from megaptm.commands.train import train
from megaptm.config import load
from megaptm.config.extension import extended_by, schedule_choices
from megaptm.config.learning_rate import learning_rate_at
from megaptm.data import Corpus
from megaptm.errors import UserError
from megaptm.resilience.events import CheckpointEvent, Events, read_events
from megaptm.run.changes import compare_configs
from megaptm.run.compatibility import objective_files, refuse_other_model
from megaptm.run.corpora import open_corpus
from megaptm.run.folder import absolute_paths, prepare, read_config
from tests.train.runs import build, write_text

TINY = Path(__file__).parents[2] / "configs/gpt2/tiny.yaml"
DONE = 10


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Two corpora."""
    folder = tmp_path_factory.mktemp("built")
    for seed, name in enumerate(("tales", "other")):
        build(write_text(folder / f"text-{name}", seed=seed), folder / name, "gpt2")
    return folder


@pytest.fixture
def corpora(built, tmp_path):
    """Copies of the corpora, which a test may move."""
    for name in ("tales", "other"):
        shutil.copytree(built / name, tmp_path / name)
    return tmp_path


def config_of(folder, *overrides, mix="{tales: 1}"):
    own = [f"run={folder / 'run'}", f"data.mix={mix}", "model.vocabulary=300"]
    return absolute_paths(load(TINY, [*own, "optimizer.warmup_steps=0", "optimizer.max_warmup_ratio=null", *overrides]))


def begin(config, *, step=DONE, ids=None):
    """A run that has saved a checkpoint, as the trainer does."""
    run = prepare(config)
    store = Store(run, fence=lambda: True)
    store.prepare(step)
    store.write(step, 0, [])
    known = {place: Corpus.open(place).manifest.id for place in config.data.mix} if ids is None else ids
    store.commit(step, {"corpora": known, "files": objective_files(config)}, 1)
    with Events(run) as events:
        events.write(CheckpointEvent(step=step, bytes=1, seconds=0.1))
    return run


def told(run, kind):
    return [event for event in read_events(run) if event["kind"] == kind]


# Keys


def test_all_keys_that_may_not_change_are_told_at_once(tmp_path):
    begin(config_of(tmp_path), ids={})
    with pytest.raises(UserError) as caught:
        prepare(config_of(tmp_path, "optimizer.lr=1", "train.batch=32", "model.layers=3", "layout.microbatch=4"))
    head, *keys, allowed = caught.value.args
    assert "leave them out to continue the run (`megaptm train" in head
    assert "run=FOLDER" in head
    assert keys == [
        "model.layers is 3, was 4",
        "optimizer.lr is 1.0, was 0.002",
        "train.batch is 32, was 16",
    ]
    assert "layout, communication, train.steps" in allowed


def test_all_numbers_of_another_model_are_told_at_once():
    wanted = {"model": {"layers": 2, "width": 32, "heads": 2}, "tokenizer": "one"}
    state = {"model": {"layers": 4, "width": 64, "heads": 2}, "tokenizer": "one"}
    begun = Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state=state, files=())
    with pytest.raises(
        UserError, match="its layers is 4, the config's is 2; its width is 64, the config's is 32; choose"
    ):
        refuse_other_model(begun, wanted)


def test_vectors_that_a_run_began_with_are_not_needed_to_continue_it(tmp_path):
    words = "model.word_vectors=" + str(tmp_path / "glove.txt")
    begun = config_of(tmp_path, words)
    assert compare_configs(begun, config_of(tmp_path)).faults == []


# Corpora


def test_a_run_continues_with_a_corpus_that_was_moved(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    run = begin(config_of(corpora))
    (corpora / "tales").rename(corpora / "moved")
    wanted = read_config(run, ["data.mix={moved: 1}"])
    prepare(wanted)
    assert read_config(run).data.mix == {str(corpora / "moved"): 1.0}
    [event] = told(run, "data-moved")
    assert (event["step"], event["before"], event["after"]) == (DONE, str(corpora / "tales"), str(corpora / "moved"))


@pytest.mark.parametrize("mix", ["{other: 1}", "{moved: 2}"])
def test_another_corpus_or_weight_at_a_new_path_is_refused(corpora, monkeypatch, mix):
    monkeypatch.chdir(corpora)
    run = begin(config_of(corpora))
    (corpora / "tales").rename(corpora / "moved")
    with pytest.raises(UserError, match=r"^data\.mix is .* \(a moved corpus is recognized by the id"):
        prepare(read_config(run, [f"data.mix={mix}"]))


def test_the_order_of_moved_corpora_may_not_change(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    run = begin(config_of(corpora, mix="{tales: 1, other: 1}"))
    (corpora / "tales").rename(corpora / "moved")
    with pytest.raises(UserError, match=r"^data\.mix is "):
        prepare(read_config(run, ["data.mix={other: 1, moved: 1}"]))
    prepare(read_config(run, ["data.mix={moved: 1, other: 1}"]))


def test_tasks_and_limits_follow_a_corpus_that_was_moved(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    objective = "{a: {task: causal-lm, share: 1, corpora: [tales]}, b: {task: causal-lm, share: 1, corpora: [other]}}"
    more = [f"objective={objective}", "data.size_limits={tales: 5}", "data.size_exponent=0.5"]
    run = begin(config_of(corpora, *more, mix="{tales: 1, other: 1}"))
    (corpora / "tales").rename(corpora / "moved")
    wanted = read_config(run, ["data.mix={moved: 1, other: 1}"])
    prepare(wanted)
    assert wanted.objective["a"]["corpora"] == [str(corpora / "moved")]
    assert wanted.data.size_limits == {str(corpora / "moved"): 5}
    assert told(run, "objective") == []


def test_a_corpus_that_is_gone_is_asked_for_by_the_key_that_names_its_new_path(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    config = config_of(corpora)
    begin(config)
    (corpora / "tales").rename(corpora / "moved")
    with pytest.raises(UserError, match=r"tales is no longer a corpus .* set its new path, data\.mix='\{NEW: 1\}'"):
        open_corpus(next(iter(config.data.mix)), config)


def test_a_file_of_a_task_may_be_moved_and_not_changed(tmp_path):
    def config(path):
        task = f"{{masked-lm: {{hide: ngrams, show: similar-words, similar: {path}}}}}"
        return config_of(tmp_path, "model.family=bert", f"objective={task}", "data.document_mask=true")

    table = tmp_path / "similar.npz"
    table.write_bytes(b"one")
    run = begin(config(table), ids={})
    moved = table.rename(tmp_path / "moved.npz")
    prepare(config(moved))
    assert [event["after"] for event in told(run, "data-moved")] == [str(moved)]
    assert told(run, "objective") == []
    other = tmp_path / "other.npz"
    other.write_bytes(b"two")
    with pytest.raises(UserError, match=r"^objective is "):
        prepare(config(other))


# Learning rate


def test_a_longer_run_whose_rate_would_jump_is_refused_with_both_rates_and_the_choices(tmp_path):
    begin(config_of(tmp_path, "train.steps=10"), ids={})
    with pytest.raises(UserError) as caught:
        prepare(config_of(tmp_path, "train.steps=20"))
    head, keep, stretch, again = caught.value.args
    assert head.startswith("train.steps from 10 to 20 changes the learning rate of the run in")
    assert "at step 11: 0.0011 instead of 0.0002 (5.5 times)" in head
    assert keep == "optimizer.decay_steps=10: decay as before, then stay at 0.0002 until the end;"
    assert stretch.startswith("optimizer.decay_steps=20: spread the decay over all 20 steps")
    assert again.startswith("optimizer.restarts=[10]: rise to 0.002 and decay again")


@pytest.mark.parametrize(
    ("choice", "rate"),
    [("optimizer.decay_steps=10", 0.0002), ("optimizer.decay_steps=20", 0.0011), ("optimizer.restarts=[10]", 0.002)],
)
def test_a_choice_continues_the_run_and_is_in_its_journal(tmp_path, choice, rate):
    run = begin(config_of(tmp_path, "train.steps=10"), ids={})
    longer = config_of(tmp_path, "train.steps=20", choice)
    prepare(longer)
    assert learning_rate_at(longer, 10) == pytest.approx(rate)
    [event] = told(run, "schedule")
    assert (event["step"], event["before"]["train.steps"], event["after"]["train.steps"]) == (10, 10, 20)
    assert (event["rate_before"], event["rate_after"]) == (pytest.approx(0.0002), pytest.approx(rate))
    prepare(longer)
    assert len(told(run, "schedule")) == 1


@pytest.mark.parametrize(
    "schedule",
    [
        ["optimizer.decay=constant"],
        ["optimizer.decay=rsqrt"],
        ["optimizer.decay=inverse", "optimizer.decay_steps=5"],
        ["optimizer.decay_steps=8"],
        ["optimizer.decay_steps=100"],
        ["optimizer.warmup_steps=15"],
        ["optimizer.stable_steps=12"],
    ],
    ids=" ".join,
)
def test_a_longer_run_whose_rate_does_not_depend_on_its_length_is_not_asked(tmp_path, schedule):
    run = begin(config_of(tmp_path, "train.steps=20", "optimizer.warmup_steps=2", *schedule), ids={})
    prepare(config_of(tmp_path, "train.steps=40", "optimizer.warmup_steps=2", *schedule))
    assert told(run, "schedule") == []


def test_the_first_example_of_train_help_continues_at_the_last_rate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = [shlex.split(line)[3:] for line in train.help.splitlines() if " megaptm train " in line][:2]
    run = begin(absolute_paths(load(TINY, first)), step=200, ids={})
    config = read_config(run, second)
    prepare(config)
    assert config.train.steps == 400
    assert {learning_rate_at(config, step) for step in range(200, 400)} == {
        config.optimizer.min_lr_ratio * config.optimizer.lr
    }


def test_a_choice_that_is_left_out_in_the_next_command_is_asked_for_again(tmp_path):
    run = begin(config_of(tmp_path, "train.steps=10"), ids={})
    prepare(config_of(tmp_path, "train.steps=20", "optimizer.decay_steps=10"))
    with pytest.raises(UserError, match=r"^optimizer\.decay_steps from 10 to absent changes the learning rate"):
        prepare(config_of(tmp_path, "train.steps=20"))
    prepare(config_of(tmp_path, "train.steps=20", "optimizer.decay_steps=20"))  # no step was made with the first one
    assert [event["after"]["optimizer.decay_steps"] for event in told(run, "schedule")] == [10, 20]


def test_the_schedule_of_a_run_of_the_same_length_may_not_change(tmp_path):
    begin(config_of(tmp_path, "train.steps=20"), ids={})
    with pytest.raises(UserError, match=r"^optimizer\.decay_steps from absent to 15 changes the learning rate"):
        prepare(config_of(tmp_path, "train.steps=20", "optimizer.decay_steps=15"))


def test_the_pace_of_a_fall_without_an_end_may_not_change(tmp_path):
    inverse = "optimizer.decay=inverse"
    begin(config_of(tmp_path, "train.steps=20", inverse, "optimizer.decay_steps=5"), ids={})
    with pytest.raises(UserError, match=r"^optimizer\.decay_steps is 9 but the run in "):
        prepare(config_of(tmp_path, "train.steps=40", inverse, "optimizer.decay_steps=9"))


def test_a_restart_that_is_past_may_not_change(tmp_path):
    begin(config_of(tmp_path, "train.steps=20", "optimizer.restarts=[5]"), ids={})
    with pytest.raises(UserError, match=r"^optimizer\.restarts is .* \(steps from 10 on may change\)"):
        prepare(config_of(tmp_path, "train.steps=20", "optimizer.restarts=[6]"))


def test_a_warm_up_that_was_cut_stays_when_the_run_becomes_longer(tmp_path):
    cut = ["optimizer.warmup_steps=20", "optimizer.max_warmup_ratio=0.35"]
    run = begin(config_of(tmp_path, "train.steps=10", *cut), ids={})
    prepare(config_of(tmp_path, "train.steps=25", "optimizer.decay_steps=10", *cut))
    assert load(run / "config.yaml").optimizer.warmup_steps == 3


def test_a_tail_at_a_rate_of_zero_is_not_offered(tmp_path):
    begun = config_of(tmp_path, "train.steps=10", "optimizer.min_lr_ratio=0")
    assert extended_by(begun, 20) == ["train.steps=20", "optimizer.decay_steps=20"]


def test_a_restart_that_the_config_forbids_is_not_offered(tmp_path):
    """After a rise of 9 steps a restart at step 5 would come too early."""
    begun = config_of(tmp_path, "train.steps=10", "optimizer.warmup_steps=4", "optimizer.restarts=[5]")
    longer = config_of(tmp_path, "train.steps=20", "optimizer.warmup_steps=4", "optimizer.restarts=[5]")
    offered = [choice.key for choice in schedule_choices(begun, longer, 9)]
    assert offered == ["optimizer.decay_steps", "optimizer.decay_steps"]


def test_a_growing_batch_keeps_its_rate_by_the_offered_key(tmp_path):
    ramp = "train.ramp={steps: {0: 8, 6: 16}}"
    begun = config_of(tmp_path, "train.steps=10", ramp)
    longer = config_of(tmp_path, *extended_by(begun, 20), ramp)
    assert longer.optimizer.decay_steps == 7  # 6 steps of 8 rows and 4 of 16 are 7 whole batches
    assert [learning_rate_at(longer, step) for step in range(10)] == [
        learning_rate_at(begun, step) for step in range(10)
    ]


def test_a_run_that_has_all_its_steps_needs_no_choice(tmp_path):
    run = begin(config_of(tmp_path, "train.steps=20"), ids={})
    prepare(config_of(tmp_path, f"train.steps={DONE}"))
    assert json.dumps(told(run, "schedule")) == "[]"
