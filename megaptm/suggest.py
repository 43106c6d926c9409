"""What was meant by a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# What Hugging Face, Megatron-LM, torchtitan and fairseq call what a config says: their name -> ours.
ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "max_lr", "peak_lr"), "lr"),
    **dict.fromkeys(("warmup", "lr_warmup_steps", "lr_warmup_iters", "num_warmup_steps"), "warmup_steps"),
    **dict.fromkeys(("lr_decay_iters", "lr_decay_steps"), "decay_steps"),
    **dict.fromkeys(("lr_scheduler_type", "lr_decay_style", "scheduler"), "decay"),
    **dict.fromkeys(("min_lr", "end_lr"), "final"),
    **dict.fromkeys(("max_grad_norm", "clip_grad", "clip_norm", "gradient_clipping"), "clip"),
    **dict.fromkeys(("adam_betas", "adam_beta1", "adam_beta2", "beta1", "beta2"), "betas"),
    **dict.fromkeys(("adam_eps", "adam_epsilon", "epsilon"), "eps"),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "encoder_embed_dim"), "width"),
    **dict.fromkeys(("num_layers", "num_hidden_layers", "n_layer", "n_layers", "depth"), "layers"),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), "heads"),
    **dict.fromkeys(("num_query_groups", "num_key_value_heads", "n_kv_heads"), "kv_heads"),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "d_ff", "n_inner"), "ffn"),
    **dict.fromkeys(("kv_channels", "head_dim", "d_kv"), "head_width"),
    **dict.fromkeys(("embedding_size", "embed_dim"), "embedding"),
    **dict.fromkeys(("task_type_vocab_size",), "tasks"),
    **dict.fromkeys(("vocab_size", "padded_vocab_size"), "vocabulary"),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), "context"),
    **dict.fromkeys(("hidden_dropout", "hidden_dropout_prob", "dropout_rate"), "dropout"),
    **dict.fromkeys(
        ("seq_length", "seq_len", "sequence_length", "max_seq_len", "max_seq_length", "block_size"), "sequence"
    ),
    **dict.fromkeys(("train_iters", "max_steps", "num_train_steps", "total_steps", "iterations"), "steps"),
    **dict.fromkeys(("global_batch_size", "batch_size", "train_batch_size"), "batch"),
    **dict.fromkeys(("micro_batch_size", "per_device_train_batch_size", "local_batch_size"), "microbatch"),
    **dict.fromkeys(("eval_interval", "eval_steps", "eval_every"), "validate_every"),
    **dict.fromkeys(("eval_iters", "eval_batches"), "validate_batches"),
    **dict.fromkeys(("log_interval", "logging_steps"), "log_every"),
    **dict.fromkeys(("save_interval", "save_steps", "save_every"), "every"),
    **dict.fromkeys(("save_total_limit",), "keep"),
    **dict.fromkeys(("tensor_model_parallel_size", "tensor_parallel_degree", "tp"), "tensor"),
    **dict.fromkeys(("pipeline_model_parallel_size", "pipeline_parallel_degree", "pp"), "pipeline"),
    **dict.fromkeys(("data_parallel_size", "data_parallel_degree", "dp"), "data"),
    **dict.fromkeys(("num_layers_per_virtual_pipeline_stage", "virtual_pipeline_model_parallel_size", "vp"), "virtual"),
    **dict.fromkeys(("recompute_granularity", "gradient_checkpointing", "activation_checkpointing"), "recompute"),
    **dict.fromkeys(("use_distributed_optimizer", "zero"), "distributed_optimizer"),
    **dict.fromkeys(("num_workers", "dataloader_num_workers"), "workers"),
    **dict.fromkeys(("dtype", "mixed_precision", "bf16", "fp16"), "precision"),
    **dict.fromkeys(("mlm_probability", "mask_prob", "masked_lm_prob", "noise_density"), "rate"),
    **dict.fromkeys(("world_size", "nproc_per_node", "num_gpus", "gpus"), "devices"),
    **dict.fromkeys(("output_dir", "save", "save_dir"), "run"),
    "nsp": "next-sentence",
    "sop": "sentence-order",
    **dict.fromkeys(("inverse_sqrt", "inverse_square_root"), "rsqrt"),
}


def suggest(name: object, known: Iterable[str]) -> str | None:
    """The one of the known names that was meant: what another library calls so, what is short so, or the nearest."""
    known, asked = list(known), str(name)
    if (meant := ELSEWHERE.get(asked.lower().replace("-", "_"))) in known:
        return meant
    same = [one for one in known if one.lower() == asked.lower()]
    short = [one for one in known if _abbreviated(one) == asked.lower()]  # `mlm` is meant for `masked-lm`
    return next(iter(same or short or get_close_matches(asked, known, n=1)), None)


def _abbreviated(name: str) -> str:
    return "".join(word if len(word) <= len("lm") else word[0] for word in name.split("-"))
