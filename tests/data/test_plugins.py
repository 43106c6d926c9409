"""Samples that an objective of the user's does not make as it says: one sentence, with the sample's number."""

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


def leave(sample):
    raise SystemExit(3)


SPOILED = {
    "raises": (lambda sample: sample["nothing"], r"KeyError: 'nothing', \S+test_plugins\.py:\d+"),
    "leaves": (leave, r"SystemExit: 3, \S+"),
    "none": (lambda sample: None, "TypeError: spoiled returned a NoneType, not a dict of arrays"),
    "no field": (lambda sample: {"tokens": sample["tokens"]}, "TypeError: spoiled returned no document_ids, but .*"),
    "one more": (
        lambda sample: sample | {"odd": sample["tokens"]},
        "TypeError: .* returned odd, which its batch specification lacks",
    ),
    "no array": (lambda sample: sample | {"labels": [1]}, "TypeError: .* returned labels as a list, .*"),
    "shorter": (
        lambda sample: sample | {"labels": sample["labels"][1:]},
        r"TypeError: spoiled returned labels as int64 \[31\], but its batch specification has int64 \[32\]",
    ),
    "other numbers": (
        lambda sample: sample | {"labels": sample["labels"].astype(np.float64)},
        r"TypeError: spoiled returned labels as float64 \[32\], .*",
    ),
}


class Spoiled(CausalLM):
    """Its sample 3 is not what it says."""

    name = "spoiled"

    def __init__(self, how):
        self.how, self.made = how, 0

    def make(self, *given):
        self.made += 1
        sample = super().make(*given)
        return SPOILED[self.how][0](sample) if self.made == 4 else sample


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    tiny_corpus(folder)
    return str(folder)


def opened(corpus, objective):
    return open_mix({corpus: 1}, objective=objective, sequence=32, seed=0, special=tiny_special())


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("workers", [0, 1])
def test_any_sample_of_a_batch_is_looked_at(corpus, how, workers):
    said = rf"^sample 3, of \S+: objective spoiled failed \({SPOILED[how][1]}\): fix it\.$"
    with Loader(opened(corpus, Spoiled(how)), batch=8, microbatch=4, workers=workers) as loader:
        with pytest.raises(PluginError, match=said) as caught:
            next(loader)
        assert "Traceback" in caught.value.traceback


def test_of_several_tasks_each_is_held_to_what_it_says_itself(corpus):
    tasks = Composed((Task("short", Spoiled("no field"), CONSTANT_ONE),), {"lm": CONSTANT_ONE})
    with pytest.raises(
        PluginError, match=r"objective spoiled failed \(TypeError: spoiled returned no document_ids, but its batch"
    ):
        _ = [opened(corpus, tasks).sample(number) for number in (0, 0, 0, 0)]


def test_a_data_set_says_it_as_well(corpus):
    data = MixDataset(opened(corpus, Spoiled("none")))
    with pytest.raises(PluginError, match="sample 3, of"):
        _ = [data[number] for number in range(4)]


class SaysOnly(BaseObjective):
    """A user's that forgot whose class to be: it makes no samples."""

    name, losses = "says-only", CausalLM.losses
    raw_length, batch = CausalLM.raw_length, CausalLM.batch


class MakesOnly(SampleObjective):
    """A user's that reads the stream, and does not say how it is cut."""

    name, losses = "makes-only", CausalLM.losses
    raw_length, batch, make = CausalLM.raw_length, CausalLM.batch, CausalLM.make


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (SaysOnly, r"^objective says-only makes no samples: its class must be a `megaptm\.objectives\.Objective`"),
        (MakesOnly, "objective makes-only has unit stream but no method `cut`: its class must be a"),
    ],
)
def test_an_objective_of_too_small_a_class_is_told(corpus, kind, said):
    with pytest.raises(UserError, match=said):
        opened(corpus, kind())
