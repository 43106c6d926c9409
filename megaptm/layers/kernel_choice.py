"""Choice of the attention kernel: what each kernel supports, and where it runs. No torch.

The same choice is made for a config before a run, and in each layer for its tensors.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from megaptm.batch import BatchSpec
from megaptm.errors import UserError
from megaptm.layers.layer_costs import sublayers
from megaptm.layers.pattern import Pattern, SlidingWindow
from megaptm.spec import Block, FFNSpec, ModelSpec, NormSpec, Size

AUTO, FUSED, VARLEN, FLEX = "auto", "fused", "varlen", "flex"
MODULES = {"flex": "triton", "flash-attn": "flash_attn"}
"""Packages that attention kernels need besides torch, by kernel."""
WIDEST_HEAD = 256
"""Maximum head width of FlashAttention."""
NARROWEST_HEAD = 16
"""Minimum head width of FlexAttention's compiled kernels."""


@dataclass(frozen=True, kw_only=True)
class AttentionWork:
    """Properties of one attention computation on which the choice of a kernel depends."""

    name: str = "attention"
    """Name of the attention computation in messages."""
    queries: int
    """Number of queries per sequence."""
    key_width: int
    precision: str = "fp32"
    causal: bool = False
    pattern: Pattern | None = None
    """Attention pattern of the computation; None: all pairs."""
    documents: bool = False
    """Whether sequences may hold several documents, or padding."""
    offsets: bool = False
    """Whether the document offsets of a batch are known (`layers.varlen`): not if padding may interrupt a document."""
    ordered: bool = False
    """Whether the batch has an attention order: a prefix, a permutation."""
    marked: bool = False
    """Whether the batch marks global tokens."""
    scored: bool = False
    """Whether terms, such as position biases, are added to the attention scores."""
    capped: bool = False
    """Whether attention scores have a soft cap."""
    reads_memory: bool = False
    """Whether attention keys come from another stack."""
    hashed: bool = False
    """Whether hashes choose the query-key pairs (LSH attention)."""
    dropout: float = 0.0

    @property
    def is_sparse(self) -> bool:
        """Whether the attention pattern is sparse enough that other pairs are not computed."""
        return self.pattern is not None and not self.pattern.is_dense(self.queries)


@cache
def installed_packages() -> frozenset[str]:
    """Return the packages of attention kernels (`MODULES`) that are installed here, without importing them."""
    return frozenset(name for name in MODULES.values() if importlib.util.find_spec(name) is not None)


@dataclass(frozen=True)
class ComputeDevice:
    """Device that computes attention."""

    kind: str
    """Type of the device that computes attention, such as `cuda`."""
    packages: frozenset[str] = field(default_factory=installed_packages)
    """Installed packages of attention kernels."""
    flash: bool = True
    """Whether torch's FlashAttention kernels run on the device, if it is a GPU."""
    any_length: bool = False
    """Whether sequence lengths of attention vary freely, as in inference."""


@dataclass(frozen=True)
class KernelChoice:
    """Attention kernel that was chosen, and the reason."""

    kernel: str
    why: str


def _needs_gpu(kernel: str, device: ComputeDevice) -> str:
    if device.kind != "cuda":
        return "it trains on GPUs only"
    return "" if MODULES[kernel] in device.packages else f"{MODULES[kernel]} is not installed"


def _fused_refusal(work: AttentionWork, device: ComputeDevice) -> str:
    return ""  # a mask of all pairs expresses everything


def _tiles_refusal(work: AttentionWork, device: ComputeDevice) -> str:
    return "it does not support keys from another stack" if work.reads_memory else ""


def _flex_refusal(work: AttentionWork, device: ComputeDevice) -> str:
    if why := _needs_gpu("flex", device):
        return why
    if work.reads_memory:
        return "it does not support keys from another stack"
    if work.key_width < NARROWEST_HEAD:
        return f"the width of heads must be at least {NARROWEST_HEAD}, not {work.key_width}"
    if device.any_length:
        return "it is compiled for each sequence length"
    return "it has no dropout (model.attention.dropout=false removes it)" if work.dropout else ""


def _flash_attn_refusal(work: AttentionWork, device: ComputeDevice) -> str:
    if why := _needs_gpu("flash-attn", device):
        return why
    if why := _unfit_shape(work):
        return why
    cannot = {
        "it does not support document masks (data.document_mask)": work.documents,
        "it does not support an attention order other than causal": work.ordered,
        "it does not support global tokens": work.marked,
        "it does not support keys from another stack": work.reads_memory,
        "it does not support dilated windows": isinstance(work.pattern, SlidingWindow) and work.pattern.dilation > 1,
        "it supports only window patterns": not isinstance(work.pattern, SlidingWindow | None),
        "it has no dropout with a soft cap": work.capped and work.dropout > 0,
    }
    return next((why for why, needed in cannot.items() if needed), "")


def _varlen_refusal(work: AttentionWork, device: ComputeDevice) -> str:
    if device.kind != "cuda":
        return "it trains on GPUs only"
    if not device.flash:
        return "this GPU, or this build of torch, has no FlashAttention"
    if why := _unfit_shape(work):
        return why
    cannot = {
        "a sequence is one document without padding": not work.documents,
        "the offsets of documents are not known": not work.offsets,
        "it does not support an attention order other than causal": work.ordered,
        "it does not support global tokens": work.marked,
        "it supports only window patterns": not isinstance(work.pattern, SlidingWindow | None),
        "it does not support dilated windows": isinstance(work.pattern, SlidingWindow) and work.pattern.dilation > 1,
    }
    return next((why for why, needed in cannot.items() if needed), "")


def _unfit_shape(work: AttentionWork) -> str:
    """Return why FlashAttention's kernels cannot compute with this precision and head width; empty if they can."""
    if work.precision not in ("bf16", "fp16"):
        return f"train.precision is {work.precision}, and it supports only bf16 and fp16"
    if work.key_width > WIDEST_HEAD or work.key_width % 8:
        return f"the width of heads must be a multiple of 8 up to {WIDEST_HEAD}, not {work.key_width}"
    return ""


KERNELS: dict[str, Callable[[AttentionWork, ComputeDevice], str]] = {
    FUSED: _fused_refusal,
    VARLEN: _varlen_refusal,
    "tiles": _tiles_refusal,
    "flex": _flex_refusal,
    "flash-attn": _flash_attn_refusal,
}
"""Attention kernel -> function that returns why it cannot be used; empty if it can.

- `fused`: torch's kernel, with a mask of all pairs if needed
- `varlen`: torch's FlashAttention with offsets of documents (`layers.varlen`)
- `tiles`: the kernel of `layers.sparse`
"""
OF_SPARSE = (VARLEN, "flash-attn", "flex", "tiles")
"""Attention kernels for sparse patterns, in order of preference; the first usable one is chosen."""

OF_CAPPED = ("flash-attn", FLEX)
"""Attention kernels for soft caps, in order of preference. Without them all scores are in memory (`fused`)."""


@lru_cache(maxsize=1024)  # each layer calls this in each step
def choose_kernel(work: AttentionWork, device: ComputeDevice, configured: str = AUTO) -> KernelChoice:
    """Choose the kernel of an attention computation. Raise UserError if the configured kernel cannot compute it."""
    if configured != AUTO:
        if why := _kernel_refusal(configured, work, device):
            raise UserError(
                f"train.attention_kernel ({configured}) cannot compute the {work.name}: {why}; use another, or auto."
            )
        return KernelChoice(configured, "set by train.attention_kernel")
    if work.hashed:
        return KernelChoice("chunks", "positions are sorted by hash and attend to nearby ones")
    if work.capped:
        kernel = next((name for name in OF_CAPPED if not _kernel_refusal(name, work, device)), FUSED)
        return KernelChoice(kernel, "scores have a soft cap")
    if not work.is_sparse and not _kernel_refusal(VARLEN, work, device):
        return KernelChoice(VARLEN, "attention is restricted to the documents of packed sequences")
    if not work.is_sparse:
        return KernelChoice(FUSED, _why_fused(work))
    refused = {}
    for name in OF_SPARSE:
        if why := _kernel_refusal(name, work, device):
            refused[name] = why
            continue
        assert work.pattern is not None
        share = f"{work.pattern.pairs(work.queries) / work.queries**2:.2g} of all query-key pairs are computed"
        named = refused if device.kind == "cuda" else {}
        return KernelChoice(name, "; ".join([share, *(f"not {kernel}: {why}" for kernel, why in named.items())]))
    raise AssertionError("tiles support every pattern")


def _kernel_refusal(kernel: str, work: AttentionWork, device: ComputeDevice) -> str:
    if work.hashed:
        return "it does not support pairs defined by hashes, which only the kernel chunks computes"
    if work.scored and kernel != FUSED:
        return "it does not support terms added to attention scores"
    if work.capped and kernel not in (*OF_CAPPED, FUSED):
        return "it does not support a soft cap of attention scores"
    return KERNELS[kernel](work, device)


def _why_fused(work: AttentionWork) -> str:
    if work.scored:
        return "terms are added to the attention scores of all pairs"
    if work.documents or work.ordered:
        return "a mask of all pairs defines the attention"
    return "the pattern masks too few pairs to skip" if work.pattern else "there is no pattern of masked pairs"


def _blocks_by_attention(block: Block, size: Size) -> Counter[Block]:
    """Return the distinct kinds of attention of a stack, as blocks that differ in nothing else, and the number of
    layers of each."""
    layers = (block.at(layer) for layer in range(size.layers))
    return Counter(replace(layer, norm=NormSpec(), ffn=FFNSpec()) for layer in layers)


def attention_works(spec: ModelSpec, batch: BatchSpec, precision: str, *, context: int = 1) -> Iterator[AttentionWork]:
    """Yield the attention computations of a model, for sequences of such batches. Layers without attention have none.
    `context`: number of ranks that divide the sequences."""
    lengths = batch.lengths(spec.family.prefixes)
    for stack, block in spec.family.stacks.items():
        size, prefix = spec.size_of(stack), spec.family.prefixes[stack]
        for kind, number in _blocks_by_attention(block, size).items() if block.layer is None else ():
            for sub in sublayers(kind, size):
                if sub.name == "ffn":
                    continue
                word = "cross" if sub.name == "cross" else sub.costs.attention.kind
                own, costs = sub.name == "attention", sub.costs
                yield AttentionWork(
                    name=f"{word} attention of {number} layer{'s' if number > 1 else ''} of the {stack}",
                    queries=lengths[stack] // context,
                    key_width=size.key_width,
                    precision=precision,
                    causal=own and kind.causal,
                    pattern=costs.pattern,
                    # Context ranks treat a sequence without documents as one (`parallel.document_offsets`).
                    documents=context > 1 or f"{prefix}document_ids" in batch.fields,
                    # Positions after a text follow its padding.
                    offsets=not batch.num_appended,
                    ordered=own and kind.ordered,
                    marked=own and f"{prefix}global_tokens" in batch.fields,
                    scored=own and (costs.scored or kind.score_bias),
                    capped=kind.attentions[0].score_cap is not None,
                    reads_memory=not own,
                    hashed=costs.defines_mask and costs.pattern is None,
                    dropout=kind.attentions[0].dropout_rate(spec.dropout),
                )
