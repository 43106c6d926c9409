"""Invalid samples of a user's objective: the error names the sample."""

import numpy as np
import pytest

from megaptm.data import Loader, open_mix
from megaptm.data.dataset import MixDataset
from megaptm.errors import UserError
from megaptm.objectives import BaseObjective, Composed, SampleObjective, Task
from megaptm.objectives.causal import CausalLM
from megaptm.objectives.composed import CONSTANT_ONE
from megaptm.plugins import PluginError
from tests.data.corpora import tiny_corpus, tiny_special


def exit_process(sample):
    raise SystemExit(3)


FAILURES = {
    "raises": (lambda sample: sample["nothing"], r"KeyError: 'nothing', \S+test_plugins\.py:\d+"),
    "exits": (exit_process, r"SystemExit: 3, \S+"),
    "returns None": (lambda sample: None, "TypeError: failing returned a NoneType, not a dict of arrays"),
    "missing field": (
        lambda sample: {"tokens": sample["tokens"]},
        "TypeError: failing returned no document_ids, but .*",
    ),
    "additional field": (
        lambda sample: sample | {"odd": sample["tokens"]},
        "TypeError: .* returned odd, which its batch specification lacks",
    ),
    "list": (lambda sample: sample | {"labels": [1]}, "TypeError: .* returned labels as a list, .*"),
    "wrong shape": (
        lambda sample: sample | {"labels": sample["labels"][1:]},
        r"TypeError: failing returned labels as int64 \[31\], but its batch specification has int64 \[32\]",
    ),
    "wrong dtype": (
        lambda sample: sample | {"labels": sample["labels"].astype(np.float64)},
        r"TypeError: failing returned labels as float64 \[32\], .*",
    ),
}


class FailingObjective(CausalLM):
    """Objective whose sample 3 is invalid."""

    name = "failing"

    def __init__(self, failure):
        self.failure, self.num_made = failure, 0

    def make_sample(self, *arguments):
        self.num_made += 1
        sample = super().make_sample(*arguments)
        return FAILURES[self.failure][0](sample) if self.num_made == 4 else sample


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    tiny_corpus(folder)
    return str(folder)


def opened(corpus, objective):
    return open_mix({corpus: 1}, objective=objective, sequence=32, seed=0, special=tiny_special())


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("workers", [0, 1])
def test_invalid_sample_is_named(corpus, failure, workers):
    message = rf"^sample 3, of \S+: objective failing failed \({FAILURES[failure][1]}\): fix it\.$"
    with Loader(opened(corpus, FailingObjective(failure)), batch=8, microbatch=4, workers=workers) as loader:
        with pytest.raises(PluginError, match=message) as caught:
            next(loader)
        assert "Traceback" in caught.value.traceback


def test_each_task_is_checked_against_its_own_batch_spec(corpus):
    tasks = Composed((Task("short", FailingObjective("missing field"), CONSTANT_ONE),), {"lm": CONSTANT_ONE})
    with pytest.raises(
        PluginError, match=r"objective failing failed \(TypeError: failing returned no document_ids, but its batch"
    ):
        _ = [opened(corpus, tasks).sample(index) for index in (0, 0, 0, 0)]


def test_dataset_names_invalid_sample(corpus):
    dataset = MixDataset(opened(corpus, FailingObjective("returns None")))
    with pytest.raises(PluginError, match="sample 3, of"):
        _ = [dataset[index] for index in range(4)]


class NoSamples(BaseObjective):
    """Objective of a base class that makes no samples."""

    name, losses = "no-samples", CausalLM.losses
    raw_length, batch_spec = CausalLM.raw_length, CausalLM.batch_spec


class NoCut(SampleObjective):
    """Objective that reads the stream but has no method `sequence_window`."""

    name, losses = "no-cut", CausalLM.losses
    raw_length, batch_spec = CausalLM.raw_length, CausalLM.batch_spec
    make_sample = CausalLM.make_sample


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (NoSamples, r"^objective no-samples makes no samples: its class must be a `megaptm\.objectives\.Objective`"),
        (NoCut, "objective no-cut has unit stream but no method `sequence_window`: its class must be a"),
    ],
)
def test_objective_of_wrong_base_class_is_rejected(corpus, objective, message):
    with pytest.raises(UserError, match=message):
        opened(corpus, objective())
