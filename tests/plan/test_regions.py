"""Planned FLOPs, activations and input memory of image regions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from megaptm.config import Layout, load_config
from megaptm.families.uniter.regions import ImageRegions
from megaptm.families.uniter.spec import RegionInput
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.plan import activations
from megaptm.plan.count import step_flops
from megaptm.plan.machine import load_machine
from megaptm.plan.memory import estimate_memory
from megaptm.plan.stages import stage_chunks
from megaptm.plan.step import estimate_step
from megaptm.plan.workload import Workload, make_workload
from megaptm.spec import ModelSpec, Size, change
from tests.models.regions import NUM_MASKED, REGIONS, TEXT, UNITER_ALL_HEADS, tiny_uniter, uniter_batch

CONFIGS = Path(__file__).parents[2] / "configs/uniter"


def test_flops_equal_torch():
    """Features get a gradient, for the vector of masked regions; boxes do not."""
    spec = replace(tiny_uniter(layers=2), family=change(UNITER_ALL_HEADS, heads=("mrfr",)))
    model, batch = Model(spec), uniter_batch(3, seed=1)
    init_weights(model, seed=1)
    # torch's counter does not know the fused kernel of the CPU.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(batch).losses["mrfr"][0].backward()
    lengths = {"encoder": TEXT + REGIONS}
    assert counter.get_total_flops() == step_flops(
        spec, rows=3, lengths=lengths, num_predicted=NUM_MASKED, appended=REGIONS
    )


def test_activations_of_regions_equal_autograd():
    """To 2%, because norms also save two values per position, and masked regions their mask."""
    size = Size(layers=1, width=256, heads=4, ffn=64, inputs={"detector": (512, 7)})
    spec = ModelSpec(family=UNITER_ALL_HEADS, size=size, vocabulary=150, context=14, dropout=0.0)
    regions, saved = ImageRegions(spec, RegionInput()), []
    rows, positions = 5, 6
    kinds, segments = torch.randint(2, (positions, rows)), torch.randn(positions, rows, 256)
    features, boxes = torch.randn(rows, positions, 512).half(), torch.rand(rows, positions, 7)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        regions(features, boxes, kinds, segments)
    weights = {parameter.untyped_storage().data_ptr() for parameter in regions.parameters()}
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    measured = sum(nbytes for pointer, nbytes in storages.items() if pointer not in weights)
    work = Workload(
        spec=spec,
        lengths={"encoder": 8 + positions},
        layout=Layout(microbatch=rows),
        batch=rows,
        precision="fp32",
        appended=positions,
    )
    [[chunk]] = stage_chunks(work)
    planned = activations.chunk_bytes(work, chunk) - activations.chunk_bytes(replace(work, appended=0), chunk)
    assert measured == pytest.approx(planned, rel=0.02)


def test_plan_counts_region_features():
    work = make_workload(load_config(CONFIGS / "base.yaml", ["layout.data=8", "layout.microbatch=32"]))
    assert work.appended == 100
    bare = replace(work, appended=0)
    [with_them], [without] = estimate_memory(work), estimate_memory(bare)
    boxes_and_features = 7 * 4 + 2048 * 2
    assert with_them.buffers - without.buffers == work.samples_per_rank * 100 * boxes_and_features
    norms = 3 * 768
    assert with_them.activations - without.activations == 32 * 100 * (2048 + 7 + norms) * work.element_bytes
    assert work.flops - bare.flops == work.batch * 100 * 768 * (6 * 2048 + 4 * 7)
    machine = load_machine("a100-80g")
    with_regions, without_regions = estimate_step(machine, work), estimate_step(machine, bare)
    min_seconds = (
        (work.flops - bare.flops) / work.layout.processes / (machine.peak_flops("bf16") * machine.efficiency.matmul)
    )
    # Products with the 7 numbers of a box fill no tile of a GPU's kernel.
    assert min_seconds < with_regions.seconds - without_regions.seconds < 3 * min_seconds


def test_plan_counts_pixels() -> None:
    """A data rank receives all pixels of a step before the first pass, for any micro-batch."""
    words = ["layout.data=8", "layout.microbatch=32"]
    config = CONFIGS.parent / "clip/b-32.yaml"
    few, many = (make_workload(load_config(config, [*words, f"train.batch={rows}"])) for rows in (2048, 4096))
    more = estimate_memory(many)[0].buffers - estimate_memory(few)[0].buffers
    assert more == 2048 / 8 * 224 * 224 * 3
