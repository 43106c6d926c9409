"""The plan of two parallel encoders is the sum of the plans of each."""

from dataclasses import replace

import pytest

from megaptm.config import Layout
from megaptm.plan.activations import stage_bytes as activations
from megaptm.plan.count import count_parameters
from megaptm.plan.machine import load_machine
from megaptm.plan.memory import estimate_memory
from megaptm.plan.stages import count_rank_parameters, stage_chunks
from megaptm.plan.step import estimate_step
from megaptm.plan.workload import Workload
from megaptm.spec import AttentionSpec, Block, Family, FFNSpec, ModelSpec, Size, TokenizerSpec

TEXT = Block()
IMAGE = Block(ffn=FFNSpec(activation="swiglu", bias=False), attention=AttentionSpec(bias=False))
SIZE = Size(layers=12, width=768, heads=12, ffn=3072)
MACHINE = load_machine("a100-80g")


def spec(**stacks: Block) -> ModelSpec:
    tokenizer = TokenizerSpec(kind="byte-bpe", vocabulary=49408)
    family = Family(name="towers", paper="", tokenizer=tokenizer, context=256, heads=(), stacks=stacks)
    return ModelSpec(family=family, size=SIZE, vocabulary=49408, context=256, dropout=0.0)


BOTH = Workload(
    spec=spec(text=TEXT, image=IMAGE),
    lengths={"text": 77, "image": 256},
    layout=Layout(data=8, microbatch=32),
    batch=256,
)
SINGLE = [
    replace(BOTH, spec=spec(encoder=block), lengths={"encoder": length}) for block, length in ((TEXT, 77), (IMAGE, 256))
]


def table(work: Workload) -> int:
    return work.spec.vocabulary * work.spec.size.width


def test_parameters():
    assert count_parameters(BOTH.spec) == sum(count_parameters(workload.spec) for workload in SINGLE) - table(BOTH)


def test_parameters_of_ranks():
    for number in (1, 2, 3, 4):
        work = replace(BOTH, layout=Layout(pipeline=number, microbatch=32))
        padded = (work.spec.padded_vocabulary - work.spec.vocabulary) * work.spec.size.width
        total = sum(count_rank_parameters(work, chunks).trained for chunks in stage_chunks(work))
        assert total == count_parameters(work.spec) + padded


def test_flops():
    assert BOTH.flops == sum(workload.flops for workload in SINGLE)


def test_activations():
    both, *lone = (activations(work, 0, stage_chunks(work)[0]) for work in (BOTH, *SINGLE))
    assert both == pytest.approx(sum(lone))


def test_weights_and_time():
    both, *lone = (estimate_memory(work)[0].weights for work in (BOTH, *SINGLE))
    assert both == pytest.approx(sum(lone) - 2 * table(BOTH), rel=1e-6)
    together, *alone = (estimate_step(MACHINE, work) for work in (BOTH, *SINGLE))
    for part in ("products", "attention"):
        assert getattr(together, part) == pytest.approx(sum(getattr(single_step, part) for single_step in alone))
