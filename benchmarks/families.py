"""Training step of each family, compared with its Hugging Face model.

    python benchmarks/families.py [--families bert t5] [--layers 4] [--rounds 3] [--threads 2]
        [--cpu-time] [--packed] [--peer-keeps-memory]

Both models have the family's layers at width 768 and its vocabulary. They train on the same ids and labels with the
losses of the Hugging Face model, fused AdamW and gradient clipping, without dropout. megaptm runs its complete engine.
The two libraries train in alternating rounds; a ratio compares the median times of their steps.

- bf16: megaptm has fp32 master weights. The peer is measured with fp32 weights under autocast, which uses as much
  memory, and completely in bf16. The first counts, unless it fails (DeBERTa).
- `--packed`: megaptm's sequences contain two documents each. The peer's contain one document of half the length and
  padding, as without a packing collator. Padding does not count as tokens.
- Images have 224 pixels in patches of 16, and a batch has four for each text. The peer gets normalized images. Patches
  count as tokens.
- Families without a Hugging Face class are compared with one that does the same work: UniLM with BERT and a given
  mask; banded GPT-3 with GPT-Neo, which does not scale scores and has fewer biases; ELECTRA and DeBERTa-v3 with two
  models that `common/replaced.py` trains together.

The peer runs in a process of its own, because megaptm's engine changes the allocator of its process
(`megaptm.train.cpu_tuning.keep_freed_memory`), which would make the peer faster, too. `--peer-keeps-memory` changes the
peer's allocator as well.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from common.alone import join_alone
from common.batches import (
    Fields,
    TokenSampler,
    family_size_options,
    make_input_fields,
    make_label_fields,
    sample_classes,
)
from common.image_batches import image_batch, image_inputs, image_spec
from common.options import Options
from common.peer import training_step
from common.peer_process import PeerProcess
from common.replaced import ReplacedTokenModels, proportions
from common.rounds import median_seconds
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.families import FAMILIES as ALL
from megaptm.families.bert import BERT
from megaptm.hub.counterparts import find_counterpart, hugging_face_models
from megaptm.models.head_costs import HEADS, HeadCosts, RowClassHeadCosts
from megaptm.spec import BAND, Family, ModelSpec, Size, change, with_attention_options

FAMILIES = {name: table for name, table in ALL.items() if isinstance(table, Family) and table.layer is None}
MASKED_SHARE = 0.15
"""Share of the positions that a masked language model predicts."""
IMAGES_PER_TEXT = 4
"""Images per text, because they are shorter."""
SUBSTITUTES = {"gpt3-banded": "GPTNeoForCausalLM", "unilm": "BertForPreTraining"}
"""Family without a Hugging Face class -> class that does the same work."""
NO_METRIC_CHARACTER = re.compile("[^a-z0-9]")
"""Characters that the name of a metric cannot have."""
DECODER_FRACTION = 4
"""Ratio of the encoder's to the decoder's sequence length, as for T5."""


def make_spec(name: str, *, layers: int, width: int, length: int) -> ModelSpec:
    """Return a spec of the family, without a mask decoder, which Hugging Face models lack."""
    table = FAMILIES[name]
    if not table.reads_text:
        return image_spec(table, layers=layers, width=width, length=length)
    stacks = {stack: block.for_encoding for stack, block in table.stacks.items()}
    # Hugging Face pads sequences to a multiple of the window, even beyond the maximum length.
    stacks = {
        stack: with_attention_options(block, {"window": min(length, window)})
        if isinstance(window := getattr(block.attention, "window", None), int)
        else block
        for stack, block in stacks.items()
    }
    depth = layers // len(table.stacks)
    options = family_size_options(table, embedding=width // 6, band=BAND)  # ALBERT base: 128 of 768
    size = Size(layers=depth, width=width, heads=max(1, width // 64), ffn=4 * width, **options)
    if table.sampled:
        size = change(size, stacks=proportions(table.sizes["base"], size))
    return ModelSpec(
        family=change(table, stacks=stacks),
        size=size,
        vocabulary=table.tokenizer.vocabulary,
        context=length,
        dropout=0.0,
    )


def compared_heads(family: Family, model: str) -> tuple[str, ...]:
    """Return the heads whose losses the Hugging Face `model` has: of tokens, and of samples in pre-training classes."""

    def is_in_model(head: type[HeadCosts]) -> bool:
        classifies_samples = issubclass(head, RowClassHeadCosts) and model.endswith("ForPreTraining")
        return classifies_samples or head.label_field == HeadCosts.label_field

    if not family.reads_text or family.sampled:
        return family.heads
    return tuple(head for head in family.heads if is_in_model(HEADS[head]))


def make_batch(spec: ModelSpec, heads: tuple[str, ...], rows: int, length: int, *, documents: int = 1) -> Fields:
    """Return megaptm's batch. Sequences have this number of documents; document ids are left out for a single one."""
    family = change(spec.family, heads=heads)
    sampler = TokenSampler(torch.Generator().manual_seed(0), spec.vocabulary, min_id=5)
    lengths = dict(zip(dict.fromkeys(family.prefixes.values()), (length, length // DECODER_FRACTION), strict=False))

    def sample_targets() -> tuple[Tensor, Tensor]:
        order = torch.rand(rows, length, generator=sampler.generator).argsort(1)
        targets = order[:, : max(1, int(MASKED_SHARE * length))].sort(1)[0]
        return targets, torch.ones_like(targets, dtype=torch.bool)

    def repeat(values: Tensor) -> Tensor:
        return values.expand(rows, -1).contiguous()

    document_ids = {prefix: repeat(1 + torch.arange(s) // (s // documents)) for prefix, s in lengths.items()}
    batch = make_input_fields(family, document_ids, sampler)
    batch |= {f"{prefix}positions": repeat(torch.arange(s) % (s // documents)) for prefix, s in lengths.items()}
    if family.segments:
        batch["segments"] = torch.zeros(rows, length, dtype=torch.int64)
    batch |= {name: torch.zeros(rows, dtype=torch.int64) for name in sample_classes(family)}
    batch |= make_label_fields(
        family, batch, sampler, positions=sample_targets, row_labels=lambda head: torch.arange(rows) % head.classes
    )
    # Pre-training has no global tokens.
    omitted = ("global_tokens", *(("document_ids",) if documents == 1 else ()))
    return {name: field for name, field in batch.items() if not name.endswith(omitted)}


def make_peer_inputs(heads: tuple[str, ...], model: str, batch: Fields, *, documents: int = 1) -> Fields:
    """Return the batch for the Hugging Face `model`. Packed documents become one padded sequence each."""
    names = {"tokens": "input_ids", "segments": "token_type_ids", "decoder_tokens": "decoder_input_ids"}
    inputs = {hf_name: batch[name] for name, hf_name in names.items() if name in batch}
    if "masked_positions" in batch:
        inputs["labels"] = torch.full_like(batch["tokens"], IGNORED)
        inputs["labels"].scatter_(1, batch["masked_positions"], batch["labels"])
    elif "decoder_tokens" in batch:
        inputs["labels"] = batch["labels"]
    else:  # transformers shifts the labels of causal models
        inputs["labels"] = batch["labels"].roll(1, 1)
    for head in (HEADS[name] for name in heads):
        if issubclass(head, RowClassHeadCosts):
            name = "sentence_order_label" if model.startswith("Albert") else "next_sentence_label"
            inputs[name] = batch[head.label_field]
    if "order" in batch:
        inputs["attention_mask"] = (batch["order"][:, None, :] <= batch["order"][:, :, None])[:, None]
    if documents == 1:
        return inputs
    padded = {
        name: _unpack_documents(value, documents, IGNORED if name == "labels" else 0) for name, value in inputs.items()
    }
    for name, mask in {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}.items():
        if name in inputs:
            padded[mask] = _unpack_documents(torch.ones_like(inputs[name]), documents, 0)
    return padded


def _unpack_documents(rows: Tensor, documents: int, fill: int) -> Tensor:
    """Convert packed sequences [B, S] to padded ones [B x documents, S] of one document each. Labels of samples [B] are
    repeated."""
    if rows.dim() == 1:
        return rows.repeat_interleave(documents)
    unpacked = rows.unflatten(1, (documents, -1)).flatten(0, 1)
    return torch.nn.functional.pad(unpacked, (0, rows.shape[1] - unpacked.shape[1]), value=fill)


def megaptm_step(
    spec: ModelSpec, heads: tuple[str, ...], precision: str, batch: Fields, *, compiles: bool = False
) -> Callable[[], object]:
    from megaptm.config import Layout, OptimizerConfig
    from megaptm.parallel.build import build_engine

    layout = Layout(microbatch=len(batch["tokens"]))
    optimizer = OptimizerConfig(lr=1e-4, clip=1.0, weight_decay=0.1)
    losses = dict.fromkeys(heads, 1.0)
    engine = build_engine(spec, layout, optimizer, losses=losses, seed=0, precision=precision, compiles=compiles)
    engine.init_weights()
    steps = iter(range(10**9))
    return lambda: engine.train_step([dict(batch)], step=next(steps), lr=1e-4)


def make_peer_config(spec: ModelSpec) -> Any:
    import transformers

    from megaptm.hub.huggingface import hugging_face_config

    if spec.name == "unilm":
        config = hugging_face_config(replace(spec, family=BERT))
        config.type_vocab_size = spec.family.segments
        return config
    if spec.name == "gpt3-banded":
        return transformers.GPTNeoConfig(
            vocab_size=spec.vocabulary,
            hidden_size=spec.width,
            intermediate_size=spec.size.ffn,
            num_layers=spec.layers,
            num_heads=spec.size.heads,
            max_position_embeddings=spec.context,
            window_size=spec.size.band,
            attention_types=[[["global", "local"], spec.layers // 2]],
            **dict.fromkeys(("resid_dropout", "embed_dropout", "attention_dropout"), 0.0),
        )
    return hugging_face_config(spec)


def peer_step(spec: ModelSpec, model: str, precision: str, inputs: Mapping[str, Any]) -> Callable[[], object]:
    import transformers

    if spec.family.sampled:
        return training_step(ReplacedTokenModels(spec), precision, **inputs)
    config = make_peer_config(spec)
    config.use_cache = False
    if (getattr(config, "pad_token_id", None) or 0) >= spec.vocabulary:  # Marian's default
        config.pad_token_id = 0
    return training_step(getattr(transformers, model)._from_config(config), precision, **inputs)


def can_run(step: Callable[[], object]) -> bool:
    """Whether a step succeeds. Some steps of Hugging Face models fail."""
    try:
        step()
    except RuntimeError:
        return False
    return True


def find_comparable(length: int) -> dict[str, str]:
    """Return family -> Hugging Face class that computes the same or does the same work."""
    classes = {}
    for name, table in FAMILIES.items():
        if name in SUBSTITUTES:
            classes[name] = SUBSTITUTES[name]
        elif table.sampled and (models := hugging_face_models(table)):
            classes[name] = " and ".join(models)
        if name in classes or any(block.ordered for block in table.stacks.values()):
            continue
        try:
            spec = make_spec(name, layers=2 * len(table.stacks), width=64, length=length)
            classes[name] = find_counterpart(spec).model
        except UserError:
            continue
    return classes


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--layers", default=4, short=2, help="number of layers of all stacks together")
    arguments.add("--width", default=768, short=64)
    arguments.add("--length", default=512, short=32)
    arguments.add("--batch", default=2, short=2, help="sequences per step")
    arguments.add("--rounds", default=3, short=1)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add(
        "--families", default=[], short=["bert", "t5", "vit", "clip"], nargs="+", type=str, help="default: all"
    )
    arguments.add_argument(
        "--cpu-time", action="store_true", help="measure CPU time instead of wall time, for a machine with other load"
    )
    arguments.add_argument("--packed", action="store_true", help="compare packed sequences with padded ones")
    arguments.add_argument(
        "--peer-keeps-memory", action="store_true", help="keep freed memory in the peer's process, as megaptm does"
    )
    options = arguments.read()
    torch.set_num_threads(options.threads)
    documents = 2 if options.packed else 1
    clock = time.process_time if options.cpu_time else time.perf_counter

    join_alone()
    peer = PeerProcess(threads=options.threads, keeps_memory=options.peer_keeps_memory)
    classes, metrics = find_comparable(options.length), []
    if options.packed:
        texts = [name for name in classes if FAMILIES[name].reads_text and name != "unilm"]
        classes = {name: classes[name] for name in texts}
    if unknown := set(options.families) - set(classes):
        arguments.error(f"--families: cannot compare {', '.join(sorted(unknown))}; expected {', '.join(classes)}")
    print(f"{'tokens/s':<16}{'':<8}{'megaptm':>10}{'autocast':>10}{'all bf16':>10}{'ratio':>8}")
    for name in options.families or classes:
        spec = make_spec(name, layers=options.layers, width=options.width, length=options.length)
        heads = compared_heads(spec.family, classes[name])
        inputs: Mapping[str, Any]
        if not spec.family.reads_text:
            batch = image_batch(spec, IMAGES_PER_TEXT * options.batch)
            inputs = image_inputs(spec, batch)
        else:
            batch = make_batch(spec, heads, options.batch, options.length, documents=documents)
            inputs = make_peer_inputs(heads, classes[name], batch, documents=documents)
        tokens = sum(value.numel() for field, value in batch.items() if field.endswith("tokens"))
        for precision, peers in {"fp32": ["fp32"], "bf16": ["bf16 autocast", "all bf16"]}.items():
            contenders = {"megaptm": megaptm_step(spec, heads, precision, batch)}
            contenders |= {mode: peer.build(peer_step, spec, classes[name], mode, inputs) for mode in peers}
            working = {contender: step for contender, step in contenders.items() if can_run(step)}
            seconds = median_seconds(working, options.rounds, clock)
            ratio = next(seconds[mode] for mode in peers if mode in seconds) / seconds["megaptm"]
            cells = "".join(
                f"{tokens / seconds[contender]:>10,.0f}" if contender in seconds else f"{'-':>10}"
                for contender in contenders
            )
            print(f"{name:<16}{precision:<8}{cells:<30}{ratio:>8.2f}", flush=True)
            kind = "packed_over_padded" if options.packed else "over_transformers"
            metric = f"family_{NO_METRIC_CHARACTER.sub('_', name)}_{precision}_{kind}"
            metrics.append(f"METRIC {metric} {ratio:.3f} ratio goal >=1.2")
            # Free memory before the next models are built: with large vocabularies it does not suffice for two.
            peer.clear()
            contenders.clear()
            working.clear()
            gc.collect()
    print("\n".join(metrics))


if __name__ == "__main__":
    main()
