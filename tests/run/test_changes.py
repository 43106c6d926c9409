"""Config that continues a run: which keys may differ, and how corpora, files and the learning rate are compared."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from pydantic import BaseModel

from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.checkpoint.store import CheckpointStore
from megaptm.commands.train import train_command
from megaptm.config import load_config
from megaptm.config.changes import find_changes
from megaptm.config.learning_rate import learning_rate_at
from megaptm.config.on_resume import OnResume
from megaptm.config.rate_jump import overrides_to_extend, schedule_choices
from megaptm.config.reference import config_sections
from megaptm.config.schema import DeviceLayout
from megaptm.data import Corpus
from megaptm.errors import UserError
from megaptm.resilience.events import CheckpointEvent, Events, read_events
from megaptm.run.branch import find_returns
from megaptm.run.changes import compare_configs, recorded_changes
from megaptm.run.compatibility import objective_files, refuse_other_model
from megaptm.run.corpora import open_corpus
from megaptm.run.folder import absolute_paths, prepare_run_folder, read_config
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


def make_config(folder, *overrides, mix="{tales: 1}", change=False):
    own = [f"run={folder / 'run'}", f"data.mix={mix}", "model.vocabulary=300"]
    fixed = ["optimizer.warmup_steps=0", "optimizer.max_warmup_ratio=null"]
    return absolute_paths(load_config(TINY, [*own, *fixed, *overrides]), change=change)


READ = {"id of tales": [160, 70]}


def start_run(config, *, step=DONE, ids=None):
    """Create a run that has saved a checkpoint, as the trainer does."""
    run = prepare_run_folder(config)
    store = CheckpointStore(run, fence=lambda: True)
    store.prepare(step)
    store.write(step, 0, [])
    known = {path: Corpus.open(path).manifest.id for path in config.data.mix} if ids is None else ids
    samples = config.batch_schedule.first_sample(step)
    store.commit(step, {"corpora": known, "files": objective_files(config), "samples": samples, "read": READ}, 1)
    with Events(run) as events:
        events.write(CheckpointEvent(step=step, bytes=1, seconds=0.1))
    return run


def events_of_kind(run, kind):
    return [event for event in read_events(run) if event["kind"] == kind]


# Keys


def test_all_refused_keys_are_listed(tmp_path):
    start_run(make_config(tmp_path), ids={})
    with pytest.raises(UserError) as caught:
        prepare_run_folder(
            make_config(tmp_path, "optimizer.lr=1", "train.batch=32", "model.layers=3", "layout.microbatch=4")
        )
    head, *keys, allowed = caught.value.args
    assert "leave them out to continue the run (`megaptm train" in head
    assert "run=FOLDER" in head
    assert keys == [
        "model.layers is 3, was 4",
        "optimizer.lr is 1.0, was 0.002",
        "train.batch is 32, was 16",
    ]
    assert "run=FOLDER; --change accepts only optimizer.lr, train.batch:" in head
    assert "layout, communication, optimizer.offload, train.steps" in allowed


def test_change_is_refused_without_the_option(tmp_path):
    start_run(make_config(tmp_path), ids={})
    with pytest.raises(
        UserError, match=r"^optimizer\.lr is 1\.0 but the run .* 0\.002: add --change to continue with it"
    ):
        prepare_run_folder(make_config(tmp_path, "optimizer.lr=1"))


def test_change_does_not_accept_another_model(tmp_path):
    start_run(make_config(tmp_path), ids={})
    with pytest.raises(UserError, match=r"^model\.layers is 3 but the run in .* with 4: leave the key out"):
        prepare_run_folder(make_config(tmp_path, "optimizer.lr=1", "model.layers=3", change=True), change=True)


def test_accepted_changes_are_recorded_once(tmp_path, capsys):
    run = start_run(make_config(tmp_path, "train.steps=20"), ids={})
    more = ("train.steps=20", "optimizer.lr=0.001", "train.batch=32", "train.seed=5")
    prepare_run_folder(make_config(tmp_path, *more, change=True), change=True)
    [event] = events_of_kind(run, "change")
    assert event["step"] == DONE
    assert event["before"] == {"optimizer.lr": 0.002, "train.batch": 16, "train.seed": 1234}
    assert event["after"] == {"optimizer.lr": 0.001, "train.batch": 32, "train.seed": 5}
    assert f"from step {DONE + 1} on, train.batch is 32, was 16" in capsys.readouterr().err
    written = load_config(run / "config.yaml")
    assert written.train.ramp.steps == {0: 16, DONE: 32}
    assert written.train.phase_start == DONE
    assert written.data.cursors.model_dump() == {"step": DONE, "sample": 160, "read": {"id of tales": (160, 70)}}
    prepare_run_folder(make_config(tmp_path, *more))  # the same command again, without --change
    assert load_config(run / "config.yaml") == written
    assert len(events_of_kind(run, "change")) == 1


@pytest.mark.parametrize("key", ["optimizer.lr=0.001", "model.dropout=0.2", "train.batch=32"])
def test_changes_that_read_the_same_samples_keep_their_order(tmp_path, key):
    start_run(make_config(tmp_path, "train.steps=20"), ids={})
    assert make_config(tmp_path, "train.steps=20", key, change=True).data.cursors is None


def test_batch_may_change_to_sizes_that_the_layout_before_did_not_have(tmp_path):
    """The sizes of past steps need not fit the layout of later ones."""
    start_run(make_config(tmp_path, "train.steps=20"), ids={})
    more = ("train.batch=64", "layout.data=32", "layout.microbatch=2")
    prepare_run_folder(make_config(tmp_path, "train.steps=20", *more, change=True), change=True)
    assert load_config(tmp_path / "run/config.yaml").train.ramp.steps == {0: 16, DONE: 64}


def test_change_back_is_a_change(tmp_path):
    start_run(make_config(tmp_path, "train.steps=20"), ids={})
    prepare_run_folder(make_config(tmp_path, "train.steps=20", "train.batch=32", change=True), change=True)
    with pytest.raises(UserError, match=r"^train\.batch is 16 but the run in "):
        prepare_run_folder(make_config(tmp_path, "train.steps=20"))


def test_options_of_the_objective_change_and_the_data_continue(tmp_path):
    path, own = TINY.parents[1] / "bert/tiny.yaml", [f"run={tmp_path / 'run'}", "data.mix={tales: 1}"]
    start_run(absolute_paths(load_config(path, [*own, "model.vocabulary=300"])), ids={})
    rate = "objective={masked-lm: {rate: 0.3}, next-sentence: {}}"
    config = absolute_paths(load_config(path, [*own, "model.vocabulary=300", rate]), change=True)
    prepare_run_folder(config, change=True)
    assert [*events_of_kind(tmp_path / "run", "change")[0]["after"]] == ["objective"]
    assert config.data.cursors.step == DONE


def test_data_of_an_older_checkpoint_cannot_be_changed(tmp_path, monkeypatch):
    start_run(make_config(tmp_path, "train.steps=20"), ids={})
    monkeypatch.setattr("megaptm.run.continuation.read_newest_state", lambda run: {"samples": 160})
    with pytest.raises(UserError, match="does not record how much of each corpus was read"):
        make_config(tmp_path, "train.steps=20", "train.seed=5", change=True)


@pytest.mark.parametrize(
    ("family", "key", "reason"),
    [
        ("transformer-xl-bytes", "data.sequence=16", "the sequences of .* continue from step to step"),
        ("bert", "objective=masked-lm", "the losses must stay mlm, next-sentence, because the heads"),
    ],
)
def test_change_that_a_run_cannot_have_names_the_reason(tmp_path, family, key, reason):
    path = TINY.parents[1] / family / "tiny.yaml"
    own = [f"run={tmp_path / 'run'}", "data.mix={tales: 1}", "model.vocabulary=300"]
    start_run(absolute_paths(load_config(path, own)), ids={})
    with pytest.raises(UserError, match=reason):
        prepare_run_folder(absolute_paths(load_config(path, [*own, key]), change=True), change=True)


def test_all_differences_of_the_model_are_listed():
    expected = {"model": {"layers": 2, "width": 32, "heads": 2}, "tokenizer": "one"}
    state = {"model": {"layers": 4, "width": 64, "heads": 2}, "tokenizer": "one"}
    checkpoint = Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state=state, indexes=())
    with pytest.raises(
        UserError, match="its layers is 4, the config's is 2; its width is 64, the config's is 32; choose"
    ):
        refuse_other_model(checkpoint, expected)


def test_resume_needs_no_word_vectors_file(tmp_path):
    words = "model.word_vectors=" + str(tmp_path / "glove.txt")
    previous = make_config(tmp_path, words)
    assert compare_configs(previous, make_config(tmp_path)).faults == []


def with_other_value(section, path):
    """Return a section of a config with another value of a key, without validation. None for a key of an absent
    section."""
    name, _, below = path.partition(".")
    value = getattr(section, name)
    if below:
        other = with_other_value(value, below) if isinstance(value, BaseModel) else None
        return None if other is None else section.model_copy(update={name: other})
    match value:
        case bool():
            other = not value
        case int() | float():
            other = value + 1
        case str():
            other = value + "-2"
        case dict():
            other = {**value, "another": 1}
        case _:
            other = 1
    return section.model_copy(update={name: other})


EXPECTED = {OnResume.YES: set(), OnResume.CHANGE: {True}, OnResume.NEVER: {False}}
STARTED = load_config(TINY, ["data.mix={tales: 1}", "model.vocabulary=300", "train.ramp={steps: {0: 8, 9: 16}}"])
KEYS = {
    key: other
    for section in config_sections()
    for key in section.keys
    if key.on_resume in EXPECTED and not key.path.startswith(("model.stacks.", *DeviceLayout.model_fields))
    if (other := with_other_value(STARTED, key.path)) is not None
}
"""Config key -> config with another value of it."""


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_every_key_changes_as_the_reference_says(key):
    changes = {
        change.may_change for change in find_changes(STARTED, KEYS[key], DONE) if change.key.startswith(key.path)
    }
    assert changes == EXPECTED[key.on_resume]


def test_keys_are_compared():
    assert len(KEYS) > 100


# Corpora


def test_resume_with_a_moved_corpus(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    run = start_run(make_config(corpora))
    (corpora / "tales").rename(corpora / "moved")
    config = read_config(run, ["data.mix={moved: 1}"])
    prepare_run_folder(config)
    assert read_config(run).data.mix == {str(corpora / "moved"): 1.0}
    [event] = events_of_kind(run, "data-moved")
    assert (event["step"], event["before"], event["after"]) == (DONE, str(corpora / "tales"), str(corpora / "moved"))


@pytest.mark.parametrize("mix", ["{other: 1}", "{moved: 2}"])
def test_other_corpus_or_weight_at_a_new_path_is_refused(corpora, monkeypatch, mix):
    monkeypatch.chdir(corpora)
    run = start_run(make_config(corpora))
    (corpora / "tales").rename(corpora / "moved")
    with pytest.raises(UserError, match=r"^data\.mix is .* \(a moved corpus is recognized by the id"):
        prepare_run_folder(read_config(run, [f"data.mix={mix}"]))


def test_order_of_moved_corpora_must_not_change(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    run = start_run(make_config(corpora, mix="{tales: 1, other: 1}"))
    (corpora / "tales").rename(corpora / "moved")
    with pytest.raises(UserError, match=r"^data\.mix is "):
        prepare_run_folder(read_config(run, ["data.mix={other: 1, moved: 1}"]))
    prepare_run_folder(read_config(run, ["data.mix={moved: 1, other: 1}"]))


def test_tasks_and_limits_follow_a_moved_corpus(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    objective = "{a: {task: causal-lm, share: 1, corpora: [tales]}, b: {task: causal-lm, share: 1, corpora: [other]}}"
    more = [f"objective={objective}", "data.size_limits={tales: 5}", "data.size_exponent=0.5"]
    run = start_run(make_config(corpora, *more, mix="{tales: 1, other: 1}"))
    (corpora / "tales").rename(corpora / "moved")
    config = read_config(run, ["data.mix={moved: 1, other: 1}"])
    prepare_run_folder(config)
    assert config.objective["a"]["corpora"] == [str(corpora / "moved")]
    assert config.data.size_limits == {str(corpora / "moved"): 5}
    assert events_of_kind(run, "objective") == []


def test_missing_corpus_error_shows_the_key_for_a_new_path(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    config = make_config(corpora)
    start_run(config)
    (corpora / "tales").rename(corpora / "moved")
    with pytest.raises(UserError, match=r"tales is no longer a corpus .* set its new path, data\.mix='\{NEW: 1\}'"):
        open_corpus(next(iter(config.data.mix)), config)


def test_missing_corpus_of_an_override_was_not_trained_on(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    config = read_config(start_run(make_config(corpora)), ["data.mix={absent: 1}"])
    with pytest.raises(UserError, match=r"absent/manifest.json does not exist, so .*absent is not a finished corpus"):
        open_corpus(next(iter(config.data.mix)), config)


def test_task_file_may_move_but_not_change(tmp_path):
    def config(path):
        task = f"{{masked-lm: {{hide: ngrams, show: similar-words, similar: {path}}}}}"
        return make_config(tmp_path, "model.family=bert", f"objective={task}", "data.document_mask=true")

    table = tmp_path / "similar.npz"
    table.write_bytes(b"one")
    run = start_run(config(table), ids={})
    moved = table.rename(tmp_path / "moved.npz")
    prepare_run_folder(config(moved))
    assert [event["after"] for event in events_of_kind(run, "data-moved")] == [str(moved)]
    assert events_of_kind(run, "objective") == []
    other = tmp_path / "other.npz"
    other.write_bytes(b"two")
    with pytest.raises(UserError, match=r"^objective is "):
        prepare_run_folder(config(other))


# Learning rate


def test_jump_of_the_learning_rate_is_refused_with_choices(tmp_path):
    start_run(make_config(tmp_path, "train.steps=10"), ids={})
    with pytest.raises(UserError) as caught:
        prepare_run_folder(make_config(tmp_path, "train.steps=20"))
    head, keep, stretch, again = caught.value.args
    assert head.startswith("train.steps from 10 to 20 changes the learning rate of the run in")
    assert "at step 11: 0.0011 instead of 0.0002 (5.5 times)" in head
    assert keep == "optimizer.decay_steps=10: decay as before, then stay at 0.0002 until the end;"
    assert stretch.startswith("optimizer.decay_steps=20: spread the decay over all 20 steps")
    assert again.startswith("optimizer.restarts=[10]: rise to 0.002 and decay again")


def test_unit_of_decay_steps_is_named_after_a_change_of_the_batch(tmp_path):
    ramp = "train.ramp={steps: {0: 8, 4: 16}}"
    start_run(make_config(tmp_path, "train.steps=10", ramp), ids={})
    with pytest.raises(UserError, match=r"choose the schedule \(optimizer.decay_steps counts batches of 16\):"):
        prepare_run_folder(make_config(tmp_path, "train.steps=20", ramp))


@pytest.mark.parametrize(
    ("choice", "rate"),
    [("optimizer.decay_steps=10", 0.0002), ("optimizer.decay_steps=20", 0.0011), ("optimizer.restarts=[10]", 0.002)],
)
def test_schedule_choice_resumes_and_is_recorded(tmp_path, choice, rate):
    run = start_run(make_config(tmp_path, "train.steps=10"), ids={})
    longer = make_config(tmp_path, "train.steps=20", choice)
    prepare_run_folder(longer)
    assert learning_rate_at(longer, 10) == pytest.approx(rate)
    [event] = events_of_kind(run, "schedule")
    assert (event["step"], event["before"]["train.steps"], event["after"]["train.steps"]) == (10, 10, 20)
    assert (event["rate_before"], event["rate_after"]) == (pytest.approx(0.0002), pytest.approx(rate))
    prepare_run_folder(longer)
    assert len(events_of_kind(run, "schedule")) == 1


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
def test_longer_run_without_a_rate_jump_needs_no_choice(tmp_path, schedule):
    run = start_run(make_config(tmp_path, "train.steps=20", "optimizer.warmup_steps=2", *schedule), ids={})
    prepare_run_folder(make_config(tmp_path, "train.steps=40", "optimizer.warmup_steps=2", *schedule))
    assert events_of_kind(run, "schedule") == []


def test_example_in_train_help_continues_at_the_last_rate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = [shlex.split(line)[3:] for line in train_command.help.splitlines() if " megaptm train " in line][:2]
    run = start_run(absolute_paths(load_config(TINY, first)), step=200, ids={})
    config = read_config(run, second)
    prepare_run_folder(config)
    assert config.train.steps == 400
    assert {learning_rate_at(config, step) for step in range(200, 400)} == {
        config.optimizer.min_lr_ratio * config.optimizer.lr
    }


def test_omitted_schedule_choice_is_requested_again(tmp_path):
    run = start_run(make_config(tmp_path, "train.steps=10"), ids={})
    prepare_run_folder(make_config(tmp_path, "train.steps=20", "optimizer.decay_steps=10"))
    with pytest.raises(UserError, match=r"^optimizer\.decay_steps from 10 to absent changes the learning rate"):
        prepare_run_folder(make_config(tmp_path, "train.steps=20"))
    prepare_run_folder(
        make_config(tmp_path, "train.steps=20", "optimizer.decay_steps=20")
    )  # no step was made with the first one
    assert [event["after"]["optimizer.decay_steps"] for event in events_of_kind(run, "schedule")] == [10, 20]


def test_decay_steps_of_the_same_run_length_must_not_change(tmp_path):
    start_run(make_config(tmp_path, "train.steps=20"), ids={})
    with pytest.raises(UserError, match=r"^optimizer\.decay_steps from absent to 15 changes the learning rate"):
        prepare_run_folder(make_config(tmp_path, "train.steps=20", "optimizer.decay_steps=15"))


def test_decay_steps_of_inverse_decay_must_not_change(tmp_path):
    inverse = "optimizer.decay=inverse"
    start_run(make_config(tmp_path, "train.steps=20", inverse, "optimizer.decay_steps=5"), ids={})
    with pytest.raises(UserError, match=r"^optimizer\.decay_steps is 9 but the run in "):
        prepare_run_folder(make_config(tmp_path, "train.steps=40", inverse, "optimizer.decay_steps=9"))


def test_past_restart_must_not_change(tmp_path):
    start_run(make_config(tmp_path, "train.steps=20", "optimizer.restarts=[5]"), ids={})
    with pytest.raises(UserError, match=r"^optimizer\.restarts is .* \(steps from 10 on may change\)"):
        prepare_run_folder(make_config(tmp_path, "train.steps=20", "optimizer.restarts=[6]"))


def test_shortened_warmup_stays_in_a_longer_run(tmp_path):
    cut = ["optimizer.warmup_steps=20", "optimizer.max_warmup_ratio=0.35"]
    run = start_run(make_config(tmp_path, "train.steps=10", *cut), ids={})
    prepare_run_folder(make_config(tmp_path, "train.steps=25", "optimizer.decay_steps=10", *cut))
    assert load_config(run / "config.yaml").optimizer.warmup_steps == 3


def test_zero_final_rate_is_not_offered(tmp_path):
    config = make_config(tmp_path, "train.steps=10", "optimizer.min_lr_ratio=0")
    assert overrides_to_extend(config, 20) == ["train.steps=20", "optimizer.decay_steps=20"]


def test_forbidden_restart_is_not_offered(tmp_path):
    """A warm-up of 9 steps would not fit before the restart at step 5."""
    config = make_config(tmp_path, "train.steps=10", "optimizer.warmup_steps=4", "optimizer.restarts=[5]")
    longer = make_config(tmp_path, "train.steps=20", "optimizer.warmup_steps=4", "optimizer.restarts=[5]")
    offered = [choice.key for choice in schedule_choices(config, longer, 9)]
    assert offered == ["optimizer.decay_steps", "optimizer.decay_steps"]


def test_offered_key_keeps_the_rate_with_a_batch_ramp(tmp_path):
    ramp = "train.ramp={steps: {0: 8, 6: 16}}"
    config = make_config(tmp_path, "train.steps=10", ramp)
    longer = make_config(tmp_path, *overrides_to_extend(config, 20), ramp)
    assert longer.optimizer.decay_steps == 7  # 6 steps of 8 rows and 4 of 16 are 7 whole batches
    assert [learning_rate_at(longer, step) for step in range(10)] == [
        learning_rate_at(config, step) for step in range(10)
    ]


def test_finished_run_needs_no_choice(tmp_path):
    run = start_run(make_config(tmp_path, "train.steps=20"), ids={})
    prepare_run_folder(make_config(tmp_path, f"train.steps={DONE}"))
    assert json.dumps(events_of_kind(run, "schedule")) == "[]"


def test_events_without_a_step_are_no_changes():
    back = {"time": 1.0, "kind": "back", "from_step": 20}
    assert recorded_changes([back]) == {}
    assert find_returns([back]) == []
