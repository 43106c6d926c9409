"""Norms of gradients, weights and updates by group of layers, on several layouts."""

import math

import pytest

from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.models.weight_groups import group_weights
from megaptm.parallel.norms import KINDS
from megaptm.plan.memory import estimate_memory
from megaptm.plan.workload import make_workload
from megaptm.track import read_metrics
from tests.drills.program import arguments
from tests.forked import megaptm
from tests.train.runs import CONFIGS

EVERY = 2
SHAPE = ("model.layers=6", "train.steps=4", f"train.norms_every={EVERY}", "checkpoint.every=1", "checkpoint.keep=9")
LAYOUTS = {
    "tensor": ("layout.tensor=2",),
    "pipeline": ("layout.pipeline=2",),
    "data": ("layout.data=2",),
    "context": ("layout.context=2",),
    "distributed optimizer": ("layout.data=2", "layout.distributed_optimizer=true"),
    "full sharding": ("layout.data=2", "layout.full_sharding=true"),
}


def train(run, corpus, *more):
    """Train a run with a tied token table; return step -> its metrics."""
    megaptm("train", *arguments("gpt2", run, corpus, *SHAPE, *more))
    records = read_metrics(run)
    steps = {record["step"]: {} for record in records}
    for record in records:
        steps[record["step"]] |= record
    return steps


def weights(run, step):
    reader = CheckpointStore(run).load(step).reader
    return {name: reader.read(name) for name in reader.names() if name.startswith("weight/")}


@pytest.fixture(scope="module")
def corpus(real_corpus):
    return real_corpus("byte-bpe")


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("norms") / "run"
    return run, train(run, corpus)


def test_groups_of_layers():
    names = [*(f"decoder.{layer}.ffn.up.weight" for layer in range(10)), "decoder.final.weight", "embed.token.weight"]
    groups = group_weights(names)
    assert list(dict.fromkeys(groups.values())) == [
        "decoder",
        "decoder.0-2",
        "decoder.3-5",
        "decoder.6-8",
        "decoder.9",
        "embed",
    ]
    assert groups["decoder.9.ffn.up.weight"] == "decoder.9"


def test_norms_are_measured_every_few_steps(run):
    _, steps = run
    measured = [
        step for step, metrics in steps.items() if any("/" in key and key.split("/")[0] in KINDS for key in metrics)
    ]
    assert measured == [2, 4]


def test_gradient_norms_add_up(run):
    _, steps = run
    squares = [value**2 for key, value in steps[2].items() if key.startswith("gradient_norm/")]
    assert len(squares) >= 5
    assert math.sqrt(sum(squares)) == pytest.approx(steps[2]["gradient_norm"], rel=1e-5)


def test_weight_and_update_norms_are_those_of_checkpoints(run):
    folder, steps = run
    before, after = weights(folder, 1), weights(folder, 2)
    groups = group_weights([name.removeprefix("weight/") for name in before])
    expected = {}
    for name, group in groups.items():
        old, new = before[f"weight/{name}"].double(), after[f"weight/{name}"].double()
        for kind, tensor in (("weight_norm", old), ("update_norm", new - old)):
            key = f"{kind}/{group}"
            expected[key] = expected.get(key, 0.0) + tensor.square().sum().item()
    measured = {key: value**2 for key, value in steps[2].items() if key.startswith(("weight_norm/", "update_norm/"))}
    assert measured == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_are_equal_on_all_layouts(run, corpus, tmp_path, layout):
    """Each element is counted once: parts of tensor and data ranks add up, copies do not."""
    _, expected = run
    steps = train(tmp_path / "run", corpus, *LAYOUTS[layout])
    names = [key for key in expected[4] if key.startswith(tuple(f"{kind}/" for kind in KINDS))]
    assert {key: steps[4][key] for key in names} == pytest.approx({key: expected[4][key] for key in names}, rel=2e-4)


def test_losses_are_those_without_norms(run, corpus, tmp_path):
    _, expected = run
    steps = train(tmp_path / "run", corpus, "train.norms_every=null")
    assert [steps[step]["loss"] for step in range(1, 5)] == [expected[step]["loss"] for step in range(1, 5)]
    assert not any(key.startswith("weight_norm") for key in steps[2])


def test_plan_counts_the_copy_of_the_weights():
    """The copy is made when the activations are free, so only the excess counts."""
    shape = ["model.vocabulary=300", "train.norms_every=2"]
    large = ["model.width=2048", "model.heads=16", "model.ffn=8192", "data.sequence=16"]
    [small_memory] = estimate_memory(make_workload(load_config(CONFIGS / "gpt2/tiny.yaml", shape)))
    [memory] = estimate_memory(make_workload(load_config(CONFIGS / "gpt2/tiny.yaml", [*shape, *large])))
    passes = memory.activations + memory.logits + memory.workspace
    assert small_memory.update == 0.0
    assert memory.update == memory.optimizer / 2 - passes > 0


def test_word_vectors_have_no_groups():
    with pytest.raises(UserError, match=r"norms_every is not used by .*, which has no layers"):
        load_config(CONFIGS / "word2vec/tiny.yaml", ["train.norms_every=2", "model.vocabulary=300"])
