"""Reading configs: `extends`, overrides, and error messages."""

from pathlib import Path

import pytest

from megaptm.config import UncheckedConfig, config_to_yaml, load_config
from megaptm.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"
TINY = CONFIGS / "gpt2/tiny.yaml"
MINIMAL = """\
run: runs/a
model: {family: gpt2, size: small}
data: {mix: {corpus: 1}, sequence: 64}
optimizer:
  lr: 1e-3
train: {steps: 10, batch: 4}
"""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL)
    return path


def error_message(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_absent_values_are_the_published_values(minimal):
    config = load_config(minimal)
    assert (config.model.vocabulary, config.model.context, config.model.layers) == (50257, 1024, 12)
    assert config.objective == "causal-lm"
    assert config.optimizer.lr == 1e-3


@pytest.mark.parametrize("kind", ["3", "[causal-lm]", "{1: {task: causal-lm}}"])
def test_invalid_objective_type_is_one_error(minimal, kind):
    assert "objective must be a name, or a mapping of tasks to their options" in error_message(
        minimal, f"objective={kind}"
    )


def test_saved_objective_has_numeric_steps(minimal, tmp_path):
    tasks = (
        "{'5': {task: causal-lm, share: {0: 1, 10: 2, 1000000000000000000000000: 3}}, '²': {task: causal-lm, share: 1}}"
    )
    config = load_config(minimal, [f"objective={tasks}"])
    (tmp_path / "written.yaml").write_text(config_to_yaml(config))
    again = load_config(tmp_path / "written.yaml")
    assert (again, again.built_objective.name) == (config, "5+²")
    assert again.built_objective.tasks[0].share.at(10) == 2


def test_extends_merges_sections(minimal, tmp_path):
    child = tmp_path / "sub" / "child.yaml"
    child.parent.mkdir()
    child.write_text("extends: ../minimal.yaml\ntrain: {steps: 20}\n")
    grandchild = tmp_path / "grandchild.yaml"
    grandchild.write_text("extends: sub/child.yaml\ntrain: {seed: 7}\n")
    train = load_config(grandchild).train
    assert (train.steps, train.batch, train.seed) == (20, 4, 7)


def test_extends_a_shipped_config_by_name(tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text("extends: gpt2/tiny\ntrain: {steps: 20}\n")
    assert load_config(child) == load_config(TINY, ["train.steps=20"])
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2/tiny").write_text(MINIMAL)  # a file beside it takes precedence
    assert load_config(child).model.size == "small"
    child.write_text("extends: gtp2/tiny\n")
    assert "did you mean gpt2/tiny" in error_message(child)


def test_mix_replaces_the_inherited_mix(minimal, tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text("extends: minimal.yaml\ndata: {mix: {books: 2, web: 1.5}}\n")
    assert load_config(child).data.mix == {"books": 2.0, "web": 1.5}


def test_override_inside_objective_mix_or_layouts_changes_one_key():
    changed = load_config("macbert/tiny", ["objective.masked-lm.rate=0.2", "objective.sentence-order.weight=2"])
    original = load_config("macbert/tiny").objective
    assert changed.objective == {
        "masked-lm": {**original["masked-lm"], "rate": 0.2},
        "sentence-order": {"weight": 2},
    }
    assert load_config(CONFIGS / "macbert/tiny.yaml", ["objective={masked-lm: {}}"]).objective == {"masked-lm": {}}
    assert load_config(CONFIGS / "gpt2/small.yaml", ["devices=64", "layouts.64.microbatch=4"]).layout.microbatch == 4
    mix = load_config(CONFIGS / "gpt2/tiny.yaml", ["data.mix={a: 1, b: 1}", "data.mix.b=2"]).data.mix
    assert mix == {"a": 1.0, "b": 2.0}


def test_overrides_are_yaml_and_take_precedence(minimal):
    config = load_config(minimal, ["train.steps=30", "optimizer.betas=[0.8, 0.9]", "data.mix={a/b.c: 1e-1}", "run=x=y"])
    assert config.train.steps == 30
    assert config.optimizer.betas == (0.8, 0.9)
    assert config.data.mix == {"a/b.c": 0.1}
    assert config.run == "x=y"


def test_null_removes_an_inherited_value(minimal):
    assert load_config(minimal, ["optimizer.clip=2.0"]).optimizer.clip == 2.0
    assert load_config(minimal, ["optimizer.clip=2.0", "optimizer.clip=null"]).optimizer.clip is None


LAYOUTS = """\
extends: minimal.yaml
layout: {distributed_optimizer: true}
layouts:
  8: {microbatch: 2}
  64: {tensor: 2, sequence_parallel: true, microbatch: 1}
train: {batch: 192}
"""


@pytest.fixture
def layouts(minimal, tmp_path: Path) -> Path:
    (tmp_path / "layouts.yaml").write_text(LAYOUTS)
    return tmp_path / "layouts.yaml"


@pytest.mark.parametrize(
    ("typed", "data", "tensor", "microbatch"),
    [
        ([], 8, 1, 2),
        (["devices=64"], 32, 2, 1),
        (["devices=16"], 16, 1, 2),
        (["devices=4"], 4, 1, 2),
        (["devices=128"], 64, 2, 1),
        (["devices=64", "layout.tensor=4"], 16, 4, 1),
        (["layout.microbatch=1", "devices=64", "layout.data=32"], 32, 2, 1),
        (["layout.data=3"], 3, 1, 2),
        (["devices=64", "devices=null"], 8, 1, 2),
    ],
)
def test_devices_select_the_layout(layouts, typed, data, tensor, microbatch):
    layout = load_config(layouts, typed).layout
    assert (layout.data, layout.tensor, layout.microbatch) == (data, tensor, microbatch)
    assert layout.sequence_parallel == (tensor > 1)
    assert layout.distributed_optimizer


def test_later_of_devices_and_data_ranks_takes_precedence(layouts, tmp_path):
    (tmp_path / "child.yaml").write_text("extends: layouts.yaml\ndevices: 64\n")
    (tmp_path / "grandchild.yaml").write_text("extends: child.yaml\nlayout: {data: 16}\n")
    assert load_config(tmp_path / "child.yaml").layout.processes == 64
    assert load_config(tmp_path / "grandchild.yaml").layout.processes == 32
    assert load_config(tmp_path / "grandchild.yaml", ["devices=128"]).layout.processes == 128


def test_layouts_replace_inherited_layouts(layouts, tmp_path):
    (tmp_path / "child.yaml").write_text("extends: layouts.yaml\nlayouts: {32: {pipeline: 2}}\n")
    layout = load_config(tmp_path / "child.yaml").layout
    assert (layout.data, layout.tensor, layout.pipeline) == (16, 1, 2)


def test_devices_set_data_ranks_without_layouts(minimal, tmp_path):
    config = load_config(minimal, ["devices=4", "layout.pipeline=2"])
    assert (config.layout.data, config.layout.pipeline) == (2, 2)
    (tmp_path / "dumped.yaml").write_text(config_to_yaml(config))
    assert load_config(tmp_path / "dumped.yaml", ["devices=8"]).layout.data == 4


def test_dumped_config_has_one_layout(layouts, tmp_path):
    config = load_config(layouts, ["devices=64"])
    assert "devices" not in config_to_yaml(config)
    (tmp_path / "dumped.yaml").write_text(config_to_yaml(config))
    assert load_config(tmp_path / "dumped.yaml") == config


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["devices=0"], "override 'devices=0': devices must be at least 1, not 0."),
        (["device=8"], "override 'device=8': unknown key device; did you mean devices?"),
        (["devices=65"], "devices (65) must be a multiple of layout.tensor x layout.pipeline (2 x 1); use another"),
        (
            ["devices=64", "layout.data=64"],
            "devices (64) must be layout.data x layout.tensor x layout.pipeline (64 x 2 x 1)",
        ),
        (["train.step=4"], "override 'train.step=4': unknown key train.step; did you mean train.steps?"),
        (["train.microbatch=4"], "unknown key train.microbatch; did you mean layout.microbatch?"),
        (["data.mix=corpora/mine"], "data.mix is a mapping of corpora to weights: write 'data.mix={corpora/mine: 1}'."),
        (["data.mix=[a, b]"], "data.mix is a mapping of corpora to weights: write 'data.mix={a: 1, b: 1}'."),
        (["layouts.8.tensr=1"], "unknown key layouts.8.tensr; did you mean layouts.8.tensor?"),
        (["layouts.8.tensor=x"], "layouts.8.tensor must be an integer, not 'x'."),
        (["layouts.big.tensor=1"], "layouts.big must be an integer, not 'big'."),
        (["layouts.8.tensor=3"], "layouts.8: tensor x pipeline (3 x 1) must divide the 8 devices."),
        (
            ["layouts.8.data=8"],
            "layouts.8.data: the number of data ranks follows from the number of devices; remove it.",
        ),
        (["layouts=8"], "layouts must be a mapping, not 8."),
        (["layout=8"], "layout must be auto, or a section (a mapping), not 8."),
    ],
)
def test_invalid_devices_or_layouts(layouts, overrides, expected):
    assert expected in error_message(layouts, *overrides)


def test_dump_and_load_are_inverse(minimal, tmp_path):
    config = load_config(minimal, ["layout.tensor=2", "layout.sequence_parallel=true", "train.stop_at=5"])
    (tmp_path / "dumped.yaml").write_text(config_to_yaml(config))
    assert load_config(tmp_path / "dumped.yaml") == config


def test_circular_extends_is_rejected(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    assert "extends itself" in error_message(tmp_path / "a.yaml")
    (tmp_path / "c.yaml").write_text("extends: d.yaml\n")
    (tmp_path / "d.yaml").symlink_to("d.yaml")
    assert "d.yaml: no such config file" in error_message(tmp_path / "d.yaml")
    assert "d.yaml" in error_message(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("optimizer.lrr=1", ["override 'optimizer.lrr=1'", "unknown key optimizer.lrr", "did you mean optimizer.lr?"]),
        ("optimizer.learning_rate=1", ["unknown key optimizer.learning_rate", "did you mean optimizer.lr?"]),
        ("model.hidden_size=1", ["unknown key model.hidden_size", "did you mean model.width?"]),
        ("layout.tensor_model_parallel_size=2", ["did you mean layout.tensor?"]),
        ("tensor_parallel=2", ["did you mean layout.tensor?"]),
        ("model.rope=true", ["unknown key model.rope; the family defines it"]),
        ("train.seq_length=2", ["unknown key train.seq_length", "did you mean data.sequence?"]),
        ("layout.batch=1", ["unknown key layout.batch", "did you mean train.batch?"]),
        ("batch=1", ["unknown key batch", "did you mean train.batch?"]),
        ("optimiser={}", ["unknown key optimiser", "did you mean optimizer?"]),
        ("train.zzzz=1", ["unknown key train.zzzz", "train has steps, phase_start, batch"]),
        ("train.steps.more=1", ["train.steps must be an integer"]),
        ("train.steps=many", ["override 'train.steps=many'", "train.steps must be an integer, not 'many'"]),
        ("train.steps=1.5", ["train.steps must be an integer, not 1.5"]),
        ("train.steps=true", ["train.steps must be an integer, not True"]),
        ("train.steps=0", ["train.steps must be at least 1, not 0"]),
        ("train.steps=", ["train.steps must be an integer, not empty"]),
        ("layout.sequence_parallel=no", ["layout.sequence_parallel must be true or false, not 'no'"]),
        ("train.precision=fp8", ["train.precision must be 'fp32', 'bf16' or 'fp16', not 'fp8'"]),
        ("data.mix={}", ["data.mix must be 1 or more entries"]),
        ("data.mix={a: -1}", ["data.mix.a must be more than 0"]),
        ("data=corpus", ["data must be a section (a mapping), not 'corpus'"]),
        ("optimizer.betas=[0.9]", ["optimizer.betas"]),
        ("train.steps", ["override 'train.steps'", "key=value"]),
        ("train..steps=1", ["key=value"]),
        ("train.steps=[1", ["override 'train.steps=[1'", "not valid YAML"]),
        ("data.mix={corpora/books:", ["not valid YAML", "the shell split", "'data.mix={corpora/books: ...}'"]),
    ],
)
def test_error_names_the_key(minimal, override, parts):
    message = error_message(minimal, override)
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (MINIMAL.replace("steps: 10", "stpes: 10"), ["wrong.yaml:6", "unknown key train.stpes", "train.steps?"]),
        (MINIMAL.replace("lr: 1e-3", "lr: fast"), ["wrong.yaml:5", "optimizer.lr must be a number, not 'fast'"]),
        (MINIMAL.replace("steps: 10, ", ""), ["wrong.yaml:6", "train.steps is missing (Number of optimizer steps"]),
        (MINIMAL.replace("steps: 10", "steps: [10"), ["wrong.yaml:6", "not valid YAML"]),
        (MINIMAL + "run: runs/b\n", ["wrong.yaml:7", "run is set twice"]),
        ("train:\n\tsteps: 10\n", ["wrong.yaml:2", "a tab; indent with spaces"]),
        (
            MINIMAL.replace("model: {f", "# {f"),
            ["model is missing: set it, or extend another config, as `extends: gpt2/"],
        ),
        (MINIMAL + "? [a]\n: 1\n", ["wrong.yaml"]),
        ("- a\n- b\n", ["wrong.yaml", "a config is a mapping"]),
        ("extends: [a]\n", ["wrong.yaml:1", "extends takes one path"]),
        ("extends: nowhere.yaml\n", ["nowhere.yaml", "no such config file"]),
    ],
)
def test_error_names_file_and_line(tmp_path, text, parts):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    message = error_message(path)
    assert [part for part in parts if part not in message] == []


def test_all_errors_are_listed(tmp_path):
    """A missing key is reported for the file, even if the file that it extends starts the section."""
    (tmp_path / "defaults.yaml").write_text("optimizer: {warmup_steps: 10}\ntrain: {batch: many}\n")
    path = tmp_path / "mine.yaml"
    path.write_text("extends: defaults.yaml\nrun: runs/a\nmodel: {family: gpt2, size: small}\ntrain: {stpes: 3}\n")
    with pytest.raises(UserError) as caught:
        load_config(path, ["data.mix={corpus: 1}"])
    assert str(caught.value).splitlines() == [
        "4 mistakes in the config:",
        f"  {path}:4: unknown key train.stpes; did you mean train.steps?",
        f"  {path}: data.sequence is missing (Number of tokens of one sequence (T5: of the encoder's sequence)).",
        f"  {path}: optimizer.lr is missing (Peak learning rate).",
        f"  {tmp_path / 'defaults.yaml'}:2: train.batch must be an integer, not 'many'.",
    ]
    with pytest.raises(UserError, match=r"^2 mistakes in the config:\n  layout.tensor .* heads .*\n  train.batch"):
        load_config(TINY, ["layout.tensor=3", "train.batch=7", "model.ffn=510"])


def test_long_list_of_errors_is_truncated():
    with pytest.raises(UserError) as caught:
        load_config(TINY, [f"train.x{number}=1" for number in range(100)])
    first, *_, last = lines = str(caught.value).splitlines()
    assert (first, last, len(lines)) == ("100 mistakes in the config:", "  and 80 more.", 22)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.mix={a:1}", "data.mix.a:1 has no space after the colon: write a: 1"),
        ("data.mix={s3://bucket/a:0.5}", "write s3://bucket/a: 0.5"),
        ("layout={data:2}", "layout.data:2 has no space after the colon: write data: 2"),
    ],
)
def test_colon_without_a_space(minimal, override, expected):
    assert expected in error_message(minimal, override)


def test_sets_finds_keys_of_all_layers(minimal, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: minimal.yaml\nmodel: {vocabulary: 300}\n")
    assert UncheckedConfig.read(path, []).sets_key("model.vocabulary")
    assert not UncheckedConfig.read(path, ["model.vocabulary=null"]).sets_key("model.vocabulary")
    assert not UncheckedConfig.read(minimal, []).sets_key("model.vocabulary")
    assert UncheckedConfig.read(minimal, ["model={vocabulary: 5}"]).sets_key("model.vocabulary")
    assert UncheckedConfig.read("demo/gpt2", []).sets_key("model.vocabulary")


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_tiny_config_does_not_set_the_vocabulary(family):
    assert not UncheckedConfig.read(f"{family}/tiny", []).sets_key("model.vocabulary")


def test_files_that_are_not_utf8_and_folders_are_rejected(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"run: caf\xe9\n")
    assert "not UTF-8" in error_message(tmp_path / "latin.yaml")
    assert "is a folder" in error_message(tmp_path)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer.lr=.inf", "optimizer.lr must be a finite number, not inf."),
        ("optimizer.lr=.nan", "optimizer.lr must be a finite number, not nan."),
        ("optimizer.lr=1e999", "optimizer.lr must be a finite number, not inf."),
        ("optimizer.weight_decay=.inf", "optimizer.weight_decay must be a finite number, not inf."),
        ("optimizer.betas=[.nan, 0.9]", "optimizer.betas.0 must be a finite number, not nan."),
        ("data.mix={books: .inf}", "data.mix.books must be a finite number, not inf."),
        ("data.timeout_seconds=.nan", "data.timeout_seconds must be a finite number, not nan."),
        ("train.steps=010", "train.steps must be an integer, not 010 (octal in one version of YAML and decimal"),
        ("optimizer.lr=010", "optimizer.lr must be a number, not 010 (octal in one version"),
        ("train.steps=1:30", "train.steps must be an integer, not '1:30'."),
        ("track.enabled=no", "track.enabled must be true or false, not 'no'."),
    ],
)
def test_nan_infinite_and_ambiguous_numbers_are_rejected(minimal, override, expected):
    assert expected in error_message(minimal, override)


@pytest.mark.parametrize("word", ["010", "1e5", "1:30", "no", "2026-01-01", "0o17", ".inf", "12", "true", "~"])
def test_string_that_looks_like_another_type_stays_a_string(minimal, tmp_path, word):
    config = load_config(minimal, [f"track.experiment='{word}'"])
    (tmp_path / "dumped.yaml").write_text(config_to_yaml(config))
    assert load_config(tmp_path / "dumped.yaml") == config


def test_numbers_of_yaml_1_2(minimal):
    written = ["train.steps=1_000", "train.batch=0x10", "train.seed=0o17", "optimizer.lr=1e-4", "run=2026-01-01"]
    config = load_config(minimal, written)
    assert (config.train.steps, config.train.batch, config.train.seed) == (1000, 16, 15)
    assert (config.optimizer.lr, config.run) == (1e-4, "2026-01-01")


def test_with_override_adds_an_override_without_reading_again(minimal):
    expected = load_config(minimal, ["train.steps=7", "model.vocabulary=300"])
    written = UncheckedConfig.read(minimal, ["train.steps=7"])
    minimal.unlink()
    assert written.with_override("model.vocabulary=300").load() == expected
    assert not written.sets_key("model.vocabulary")


FIVE_STAGES = ["layout.pipeline=5", "devices=5", "train.batch=60", "layout.microbatch=1"]


def test_indivisible_layers_are_cut_by_flops():
    assert load_config("gpt2/small", FIVE_STAGES).layout.layers_per_stage == (3, 3, 3, 3, 0)
    assert load_config("palm/540b", ["devices=768", "layout.pipeline=12"]).layout.layers_per_stage == (*[10] * 11, 8)


def test_equal_stages_are_the_default():
    assert load_config("gpt2/small", ["layout.pipeline=4"]).layout.layers_per_stage is None
    by_flops = load_config("gpt2/small", ["layout.pipeline=4", "layout.layers_per_stage=auto"])
    assert by_flops.layout.layers_per_stage == (4, 4, 4, 0)
    assert load_config("gpt2/small", ["layout.layers_per_stage=auto"]).layout.layers_per_stage is None


def test_saved_config_keeps_its_cut(tmp_path):
    config = load_config("gpt2/small", ["layout.pipeline=4", "layout.layers_per_stage=[5,4,2,1]"])
    saved = tmp_path / "config.yaml"
    saved.write_text(config_to_yaml(config))
    assert load_config(saved) == config
    assert load_config(saved, ["layout.pipeline=4"]).layout.layers_per_stage == (5, 4, 2, 1)


@pytest.mark.parametrize(("pipeline", "expected"), [(1, None), (2, None), (8, (1, 1, 2, 2, 2, 2, 2, 0))])
def test_another_number_of_stages_has_another_cut(tmp_path, pipeline, expected):
    saved = tmp_path / "config.yaml"
    saved.write_text(config_to_yaml(load_config("gpt2/small", FIVE_STAGES)))
    assert load_config(saved, [f"layout.pipeline={pipeline}", "train.batch=64"]).layout.layers_per_stage == expected


def test_cut_of_a_table_of_layouts_follows_its_stages(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("extends: gpt2/small\nlayouts: {8: {pipeline: 2, layers_per_stage: [7, 5], microbatch: 1}}\n")
    assert load_config(path).layout.layers_per_stage == (7, 5)
    assert load_config(path, ["layout.pipeline=4"]).layout.layers_per_stage is None


@pytest.mark.parametrize("override", ["layout.pipeline=two", "layout.virtual=null"])
def test_number_of_stages_of_a_cut_must_be_an_integer(tmp_path, override):
    path = tmp_path / "config.yaml"
    path.write_text("extends: gpt2/small\nlayout: {pipeline: 2, layers_per_stage: [7, 5]}\n")
    with pytest.raises(UserError, match=f"{override.partition('=')[0]} must be an integer"):
        load_config(path, [override])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "{weight: 1, qualty: [0, 1]}",
            "data.mix.a ({'weight': 1, 'qualty': [0, 1]}): has an unknown key qualty: use weight",
        ),
        ("{quality: [0, 1]}", "must have a weight, a number above 0"),
        ("text", "data.mix.a must be a number, not 'text'"),
    ],
)
def test_parts_of_a_mix_are_checked(minimal, value, message):
    with pytest.raises(UserError) as error:
        load_config(minimal, [f"data.mix={{a: {value}}}"])
    assert message in str(error.value)


def test_parts_of_a_mix_stay_as_written(minimal):
    value = {"weight": 2, "quality": [0.5, 1.0], "max_epochs": 4}
    config = load_config(minimal, ["data.mix={a: {weight: 2, quality: [0.5, 1.0], max_epochs: 4}, b: [{weight: 1}]}"])
    assert config.data.mix == {"a": value, "b": [{"weight": 1}]}
    assert load_config(minimal, ["data.mix={a: {weight: 2}}", "data.mix.a=3"]).data.mix == {"a": 3.0}
