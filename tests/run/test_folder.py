"""Run folder: its files, and the keys that may change when a run is continued."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from megaptm.config import config_to_yaml, load_config
from megaptm.errors import UserError
from megaptm.resilience.events import BranchEvent, ChangeEvent, CheckpointEvent, Events, read_events
from megaptm.resilience.lock import RunLock
from megaptm.run.changes import ConfigComparison
from megaptm.run.folder import (
    _record_changes,
    absolute_paths,
    config_variables,
    discard_unused_run,
    exclusive_start,
    prepare_run_folder,
    read_config,
    read_draft,
    refuse_other_config,
    wait_until_prepared,
)
from tests.train.runs import build, write_text

TINY = Path(__file__).parents[2] / "configs/gpt2/tiny.yaml"


@pytest.fixture
def config(tmp_path):
    def build(*overrides):
        mix = f"data.mix={{{tmp_path / 'corpus'}: 1}}"
        return absolute_paths(load_config(TINY, [f"run={tmp_path / 'run'}", mix, *overrides]))

    return build


@pytest.fixture(scope="module")
def corpus_of_300(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    return build(write_text(folder / "text"), folder / "tales", "gpt2")


def record_checkpoint(run):
    """Record a checkpoint, so that the run cannot be discarded."""
    with Events(run) as events:
        events.write(CheckpointEvent(step=10, bytes=1, seconds=0.1))


def test_resolved_config_is_written(config):
    run = prepare_run_folder(config())
    assert load_config(run / "config.yaml") == config()
    assert not list(run.glob("*.tmp"))


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints", "thesis.tex"])
@pytest.mark.parametrize("start", [prepare_run_folder, lambda config: exclusive_start(config).__enter__()])
def test_folder_of_the_user_is_refused(config, tmp_path, name, start):
    own = tmp_path / "run" / name
    own.parent.mkdir()
    own.write_text(config_to_yaml(config()))
    with pytest.raises(UserError, match=f"not the folder of a run, and has other files, such as {name}: choose"):
        start(config())
    assert [path.name for path in own.parent.iterdir()] == [name]
    assert own.read_text() == config_to_yaml(config())


def test_folder_with_only_logs_is_no_other(config, tmp_path):
    """An earlier start may have been killed before its first write, and the shell creates the file of its output."""
    for name in ("logs/1.0", ".nfs0001"):
        (tmp_path / "run" / name).mkdir(parents=True)
    for name in ("lock", "launch.lock", "train.log"):
        (tmp_path / "run" / name).touch()
    with exclusive_start(config()):
        assert (prepare_run_folder(config()) / "events.jsonl").exists()


def test_corpora_and_their_cache_may_be_in_a_new_folder(config, tmp_path):
    run = tmp_path / "run"
    for name in ("corpora/web", "cache/web-1"):
        (run / name).mkdir(parents=True)
    mix = f"data.mix={{{run}/corpora/web: 1, 's3://bucket/news': 1}}"
    assert (prepare_run_folder(config(mix, f"data.cache_dir={run}/cache")) / "events.jsonl").exists()


def test_checkpoints_may_be_a_link_to_a_larger_disk(config, tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "run/lost+found").mkdir(parents=True)
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "large")
    assert (prepare_run_folder(config()) / "events.jsonl").exists()


def test_config_of_a_run_without_checkpoints_is_replaced(config):
    prepare_run_folder(config())
    assert load_config(prepare_run_folder(config("train.steps=7")) / "config.yaml").train.steps == 7


def test_vocabulary_defaults_to_the_corpus(tmp_path, corpus_of_300):
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {TINY}\n")
    words = [f"run={tmp_path / 'run'}", f"data.mix={{{corpus_of_300}: 1}}"]
    run_config = read_config(path, words)
    assert run_config.model.vocabulary == 300
    assert load_config(prepare_run_folder(run_config) / "config.yaml").model.vocabulary == 300
    assert read_config(tmp_path / "run").model.vocabulary == 300
    assert read_config(path, [*words, "model.vocabulary=512"]).model.vocabulary == 512
    assert read_draft(path, words).config.model.vocabulary == 300
    absent = [words[0], "data.mix={nowhere: 1}"]
    assert read_config(path, absent).model.vocabulary == load_config(path, absent).model.vocabulary == 50257


def test_unreachable_corpus_times_out_as_configured(tmp_path, faults):
    faults.down()
    with pytest.raises(UserError, match=r"^s3://corpora/tiny/manifest.json could not be reached for \d s "):
        read_config(TINY, [f"run={tmp_path / 'run'}", "data.mix={s3://corpora/tiny: 1}", "data.timeout_seconds=1"])


@pytest.mark.parametrize("name", ["emoji 😀", "it's #1", 'say "x"', "100%", "back\\slash", "a=b: {c}", "010"])
def test_run_folder_may_have_any_name(config, tmp_path, name):
    run_config = config().model_copy(update={"run": str(tmp_path / name)})
    prepare_run_folder(run_config)
    assert read_config(tmp_path / name) == run_config


def test_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settled = absolute_paths(load_config(TINY, ["run=a", "data.mix={b: 1, 's3://bucket/c': 2}"]))
    assert settled.run == str(tmp_path / "a")
    assert settled.data.mix == {str(tmp_path / "b"): 1.0, "s3://bucket/c": 2.0}
    cove = load_config(TINY.parents[1] / "cove/tiny.yaml", ["model.word_vectors=glove.txt"])
    assert absolute_paths(cove).model.word_vectors == str(tmp_path / "glove.txt")
    masks = {"hide": "ngrams", "show": "similar-words"}
    for value, expected in (("words.npz", str(tmp_path / "words.npz")), ("my.words:like", "my.words:like")):
        objective = {"masked-lm": {**masks, "similar": value}, "sentence-order": {}}
        mac = load_config(TINY, ["model.family=bert", "data.mix={b: 1}"]).model_copy(update={"objective": objective})
        assert absolute_paths(mac).objective == {"masked-lm": {**masks, "similar": expected}, "sentence-order": {}}


@pytest.mark.parametrize(
    "override",
    [
        "layout.data=2",
        "layout.microbatch=4",
        "train.stop_at=7",
        "train.log_every=1",
        "checkpoint.keep=5",
        "track.enabled=false",
        "data.workers=0",
    ],
)
def test_resume_with_another_layout(config, override):
    record_checkpoint(prepare_run_folder(config()))
    assert load_config(prepare_run_folder(config(override)) / "config.yaml") == config(override)


def test_planned_layout_is_written_and_reused(tmp_path, capsys):
    run = tmp_path / "run"
    overrides = [f"run={run}", f"data.mix={{{tmp_path / 'corpus'}: 1}}", "layout=auto", "machine=h100-80g", "devices=2"]
    planned = read_config(TINY, overrides)
    assert planned.layout.processes == 2
    assert capsys.readouterr().err.startswith("layout auto: data ")
    changed = planned.model_copy(update={"layout": planned.layout.model_copy(update={"microbatch": 1})})
    record_checkpoint(prepare_run_folder(changed))
    assert read_config(TINY, overrides).layout == changed.layout
    assert read_config(run).layout == changed.layout
    assert capsys.readouterr().err == "layout auto: as before in this run\n"


def test_draft_reports_a_machine_that_is_not_known(tmp_path):
    overrides = [f"run={tmp_path / 'run'}", "layout=auto", "machine=h100"]
    assert read_draft(TINY, overrides).mistakes == ("machine h100: no such machine; did you mean h100-80g?",)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=0.5", "optimizer.lr is 0.5 but the run in"),
        ("model.layers=2", "model.layers is 2"),
        ("train.batch=32", "train.batch is 32"),
        ("train.seed=1", "started with 1234"),
        ("train.precision=bf16", "train.precision is bf16"),
    ],
)
def test_changed_key_is_refused_on_resume(config, override, message):
    run = prepare_run_folder(config())
    record_checkpoint(run)
    before = (run / "config.yaml").read_bytes()
    with pytest.raises(UserError) as caught:
        prepare_run_folder(config(override))
    assert message in str(caught.value)
    assert (run / "config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("causal-lm", "{causal-lm: {weight: {0: 1, 10: 2}}}"),
        ("{causal-lm: {weight: 2}}", "{causal-lm: {weight: {0: 2, 10: 0.5, 300: 3}}}"),
        ("{causal-lm: {weight: {0: 2, 5: 1, 12: 3}}}", "{causal-lm: {weight: {0: 2, 5: 1}}}"),
        (
            "{a: {task: causal-lm, share: {0: 1, 20: 0}}, b: {task: causal-lm, share: 1}}",
            "{a: {task: causal-lm, share: {0: 1, 10: 0.5}}, b: {task: causal-lm, share: {0: 1, 15: 0}}}",
        ),
    ],
)
def test_shares_and_weights_of_future_steps_may_change(config, before, after):
    run = prepare_run_folder(config(f"objective={before}"))
    record_checkpoint(run)
    assert load_config(prepare_run_folder(config(f"objective={after}")) / "config.yaml") == config(f"objective={after}")
    event = read_events(run)[-1]
    assert (event["kind"], event["step"]) == ("objective", 10)
    assert event["before"] != event["after"]
    prepare_run_folder(config(f"objective={after}"))
    assert len(read_events(run)) == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{causal-lm: {weight: 2}}", "{causal-lm: {weight: {0: 2, 9: 0.5}}}"),
        ("{causal-lm: {weight: {0: 2, 5: 1}}}", "{causal-lm: {weight: {0: 2, 6: 1}}}"),
        ("causal-lm", "{causal-lm: {weight: 2}}"),
        (
            "{a: {task: causal-lm, share: 1}, b: {task: causal-lm, share: 1}}",
            "{a: {task: causal-lm, share: {0: 1, 9: 1}}, b: {task: causal-lm, share: 1}}",
        ),
        (
            "{a: {task: causal-lm, share: 1}, b: {task: causal-lm, share: 1}}",
            "{b: {task: causal-lm, share: 1}, a: {task: causal-lm, share: 1}}",
        ),
        ("{causal-lm: {weight: 2}}", "{a: {task: causal-lm, weight: 2}}"),
    ],
)
def test_objective_of_past_steps_must_not_change(config, before, after):
    run = prepare_run_folder(config(f"objective={before}"))
    record_checkpoint(run)
    with pytest.raises(UserError, match=r"objective is .* \(shares and weights from step 10 on may change\)"):
        prepare_run_folder(config(f"objective={after}"))
    assert len(read_events(run)) == 1


def test_other_corpus_is_refused_on_resume(config, tmp_path):
    record_checkpoint(prepare_run_folder(config()))
    with pytest.raises(UserError, match=r"data\.mix is .*other.* but the run in .* was started with .*corpus"):
        prepare_run_folder(config(f"data.mix={{{tmp_path / 'other'}: 1}}"))


def test_other_order_of_corpora_is_refused_on_resume(config):
    record_checkpoint(prepare_run_folder(config("data.mix={a: 1, b: 1}")))
    with pytest.raises(UserError, match=r"data\.mix is {.*b.*a.*} but the run in .* was started with {.*a.*b.*}"):
        prepare_run_folder(config("data.mix={b: 1, a: 1}"))


def test_all_keys_may_change_before_the_first_checkpoint(config):
    prepare_run_folder(config())
    assert load_config(prepare_run_folder(config("model.layers=2")) / "config.yaml").model.layers == 2


def test_run_in_use_is_not_changed(config):
    run = prepare_run_folder(config())
    before = (run / "config.yaml").read_bytes()
    with RunLock(run), pytest.raises(UserError, match="is in use"):
        prepare_run_folder(config("train.steps=400"))
    assert (run / "config.yaml").read_bytes() == before


def test_ranks_refuse_the_config_of_a_concurrent_command(config, monkeypatch):
    run = prepare_run_folder(config())
    for name, value in config_variables(run).items():
        monkeypatch.setenv(name, value)
    refuse_other_config(run)
    prepare_run_folder(config("train.steps=400"))
    with pytest.raises(UserError, match="another command"):
        refuse_other_config(run)


def test_file_instead_of_run_folder_is_refused(config, tmp_path):
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(UserError, match="cannot be a folder"):
        prepare_run_folder(config())


def test_run_folder_below_a_broken_link_is_refused(config, tmp_path):
    """The system's error would be "File exists"."""
    (tmp_path / "scratch").symlink_to(tmp_path / "gone")
    with pytest.raises(
        UserError, match=r"cannot be a folder \(.*/scratch is a link to .*/gone, which does not exist\)"
    ):
        prepare_run_folder(config(f"run={tmp_path / 'scratch/run'}"))


def test_read_only_run_folder_is_refused(config, monkeypatch):
    prepare_run_folder(config())

    def read_only(path, content):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("megaptm.run.folder.write_atomically", read_only)
    message = r"/run\) cannot be written to \(Read-only file system\): fix this, or choose another"
    with pytest.raises(UserError, match=message):
        prepare_run_folder(config("train.steps=400"))


def test_config_is_written_after_a_short_failure_of_the_disk(faulty_files, tmp_path):
    code = (
        "import sys; from pathlib import Path; from megaptm.run.branch import write_recipe\n"
        "write_recipe(Path(sys.argv[1]), {'run': 'a'})"
    )
    environment = {**os.environ, **faulty_files(("rename", ".config.yaml", errno.EIO, 2))}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True)
    assert (tmp_path / "config.yaml").read_text() == "run: a\n"


def test_only_an_untrained_run_is_discarded(config):
    run = prepare_run_folder(config())
    record_checkpoint(run)
    discard_unused_run(run)
    assert (run / "config.yaml").exists()
    (run / "events.jsonl").unlink()
    with RunLock(run):
        discard_unused_run(run)
    assert (run / "config.yaml").exists()
    checkpoint = run / "checkpoints/step-00000010"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").touch()
    discard_unused_run(run)
    assert (run / "config.yaml").exists()
    with Events(run) as events:
        events.write(BranchEvent(step=10, run="runs/first", weights_only=False))
    discard_unused_run(run)
    assert not run.exists()


def test_changes_of_a_received_config_are_printed_escaped(tmp_path, capsys):
    change = ChangeEvent(step=10, before={"train.init_from": "runs/\x1b[2J"}, after={"train.init_from": None})
    with Events(tmp_path) as events:
        _record_changes(ConfigComparison(str(tmp_path), events=(change,)), events)
    assert capsys.readouterr().err == "from step 11 on, train.init_from is None, was runs/\\x1b[2J\n"


def test_ranks_wait_for_the_config_of_their_command(config):
    prepare_run_folder(config())
    assert wait_until_prepared(config(), seconds=5) == Path(config().run)
    with pytest.raises(UserError, match="a disk that all nodes share"):
        wait_until_prepared(config("train.steps=400"), seconds=0.2)


def test_waiting_ranks_poll_less_often_with_jitter(config, monkeypatch):
    pauses = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr("megaptm.run.folder.time", clock)
    with pytest.raises(UserError, match=r"within 600 s: see rank 0's log"):
        wait_until_prepared(config())
    assert len(pauses) < 600
    assert max(pauses[:10]) < 2.0 >= max(pauses)
    assert len({*pauses[-100:]}) > 50
