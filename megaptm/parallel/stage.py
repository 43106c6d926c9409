"""Pipeline chunk with this tensor rank's slice of every weight, in the form that megatron-core's schedules expect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from megatron.core.enums import ModelType
from megatron.core.tensor_parallel import checkpoint as recompute_in_backward
from megatron.core.tensor_parallel import random
from megatron.core.transformer import MegatronModule, TransformerConfig
from torch import Tensor, nn

from megaptm.config import CommunicationConfig, Layout
from megaptm.layers.attention import AttentionModule, PatternAttend
from megaptm.layers.kernel_choice import AUTO
from megaptm.layers.layer import Layer
from megaptm.layers.rng import RngReplay
from megaptm.layers.stack import Stack
from megaptm.models.chunk import ModelChunk, model_chunks
from megaptm.models.model import Model, even_chunks
from megaptm.models.output import ModelOutput
from megaptm.parallel.context import divide_sequences
from megaptm.parallel.full_sharding import FullySharded
from megaptm.parallel.groups import DTYPES, Ranks, rank_device
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.split import Placement, mark_parameters, split_model
from megaptm.spec import ModelSpec


class Stage(MegatronModule):
    """Wrapper of a pipeline chunk with the attributes that megatron-core needs, and the input that a schedule sets."""

    model_type = ModelType.encoder_or_decoder
    # `TiedParameters` sums all copies of one parameter on several stages. megatron's own rule only handles the token
    # table of the first and last stage.
    share_embeddings_and_output_weights = False

    def __init__(
        self,
        model: Model,
        config: TransformerConfig,
        placements: dict[str, Placement],
        chunk: int,
        sharded: FullySharded | None = None,
    ) -> None:
        super().__init__(config)
        self.model, self.sharded = model, sharded
        self.placements = placements
        self.vp_stage = chunk
        self.hooks: Sequence[EngineHook] = ()
        self._input: Tensor | None = None

    def set_input_tensor(self, tensors: list[Tensor | None]) -> None:
        self._input = tensors[0]

    def forward(self, batch: dict[str, Tensor], *, features: bool = False) -> Tensor | ModelOutput:
        """Return the hidden states for the next pipeline chunk; on the last chunk, the output of the model."""
        arguments: dict[str, Any] = {}
        for hook in self.hooks:
            arguments |= hook.forward_arguments(self.vp_stage, batch)
        output = self.model(batch, self._input, features=features, **arguments)
        if output.losses:
            for hook in self.hooks:
                output.losses.update(hook.extra_losses(self.model, batch, output))
        for hook in self.hooks:
            hook.after_forward(self.vp_stage)
        return output if output.stream is None else output.stream

    def placed_parameters(self) -> Iterator[tuple[Placement, nn.Parameter]]:
        """Yield the parameters of a pipeline chunk with their position in the full parameters."""
        for name, parameter in self.model.named_parameters():
            yield self.placements[name], parameter


def transformer_config(
    spec: ModelSpec, layout: Layout, communication: CommunicationConfig, precision: str
) -> TransformerConfig:
    """Return megatron-core's configuration of the same model and layout."""
    dtype = DTYPES[precision]
    return TransformerConfig(
        num_layers=spec.layers,
        hidden_size=spec.width,
        num_attention_heads=spec.size.heads,
        kv_channels=spec.size.key_width,
        ffn_hidden_size=spec.size.ffn,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
        sequence_parallel=layout.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu_initialization=True,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        # Losses are already divided by the counts of the global batch, so gradients are summed, never averaged.
        calculate_per_token_loss=True,
        batch_p2p_comm=communication.batch_p2p_comm,
        # Workaround for a bug of torch before 2.0; the host would wait for the device after every message.
        batch_p2p_sync=False,
        overlap_p2p_comm=communication.overlap_p2p_comm,
        # Tensors in flight must not be freed: with gloo, freed outputs arrived with wrong values.
        deallocate_pipeline_outputs=layout.pipeline > 1 and not communication.overlap_p2p_comm,
    )


def build_stages(
    spec: ModelSpec,
    layout: Layout,
    ranks: Ranks,
    config: TransformerConfig,
    *,
    losses: Iterable[str],
    global_tokens: bool,
    kernel: str = AUTO,
    hooks: Sequence[EngineHook] = (),
) -> list[Stage]:
    """Build the pipeline chunks of this rank in pipeline order, with uninitialized weights.

    Chunk c of stage p is chunk c * pipeline + p of the model; with one chunk per stage, chunk p.
    """
    stages = []
    for index, chunk in enumerate(rank_chunks(spec, layout, ranks)):
        with torch.device("meta"):
            model = Model(spec, chunk)
            for hook in hooks:
                hook.extend_model(model)
            placements = split_model(model, config, ranks=ranks.tensor_size, rank=ranks.tensor)
            divide_sequences(model, ranks)
            model.to(config.params_dtype)
            for module in model.modules():
                for name in getattr(module, "in_float32", ()):
                    parameter = getattr(module, name)
                    parameter.data = parameter.data.float()
        for loss, head in model.head.items() if model.head is not None else ():
            head.requires_grad_(loss in losses)
        for module in model.modules():
            if isinstance(module, AttentionModule):
                module.train_global_projections(global_tokens)
        sharded = FullySharded(model) if layout.full_sharding else None
        if sharded is None:
            model.to_empty(device=rank_device())
        mark_parameters(model, config, placements)
        for module in model.modules():
            if isinstance(module, (Stack, PatternAttend)):
                module.kernel = kernel
        _recompute_activations(model, layout)
        stages.append(Stage(model, config, placements, index, sharded))
    return stages


def rank_chunks(spec: ModelSpec, layout: Layout, ranks: Ranks) -> list[ModelChunk]:
    """Return the chunks of the model that this pipeline rank holds. Raises `UserError` if the layout has no cut and its
    chunks do not divide the layers."""
    number, layers = layout.pipeline * layout.virtual, layout.layers_by_chunk
    cut = even_chunks(spec, number) if layers is None else model_chunks(spec, number, layers)
    return cut[ranks.pipeline :: layout.pipeline]


def _recompute_activations(model: Model, layout: Layout) -> None:
    """Let the layers that `layout.recompute` selects recompute their activations in the backward pass."""
    for module in model.modules():
        if isinstance(module, Stack):
            module.save_rng_state = save_rng_state
            for number in layout.recomputed(module.layer_numbers):
                layer = cast(Layer, module[str(number)])
                # Layers that save no activations are recomputed anyway.
                if layout.recompute == "attention":
                    layer.run_attention = recompute
                elif layout.recompute == "full":
                    layer.run = recompute


def recompute(module: Callable[..., Tensor], *arguments: Tensor | None) -> Tensor:
    """Run a module and keep only its inputs: activation recomputation. The backward pass computes its activations
    again, with the same dropout."""
    return recompute_in_backward(module, False, *arguments)


def save_rng_state() -> RngReplay:
    """Save the state of all random streams of this rank; return a context that repeats their random numbers from
    here."""
    states = random._get_all_rng_states()

    @contextmanager
    def repeat_random_numbers() -> Iterator[None]:
        with random._fork_rng():
            random._set_all_rng_states(*states)
            yield

    return repeat_random_numbers
