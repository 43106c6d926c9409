"""Suggestions for unknown names: config keys, values, commands and options all use the same tables."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Names of Megatron-LM, torchtitan, NeMo, Hugging Face, Composer and fairseq -> names of megaptm: keys of a config,
# options, values, commands.
EQUIVALENT_NAMES = {
    **dict.fromkeys(("learning_rate", "max_lr", "peak_lr"), "lr"),
    **dict.fromkeys(("warmup", "lr_warmup_steps", "lr_warmup_iters", "num_warmup_steps"), "warmup_steps"),
    **dict.fromkeys(("lr_decay_iters", "lr_decay_steps"), "decay_steps"),
    **dict.fromkeys(
        (
            *("lr_scheduler_type", "lr_decay_style", "lr_scheduler", "lr_schedule", "scheduler", "schedule"),
            "decay_type",
        ),
        "decay",
    ),
    **dict.fromkeys(("min_lr", "end_lr"), "min_lr_ratio"),
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
    **dict.fromkeys(("save_interval", "save_steps", "save_every", "interval"), "every"),
    **dict.fromkeys(("push_to_hub", "hub_model_id"), "push_to"),
    **dict.fromkeys(("save_total_limit",), "keep"),
    **dict.fromkeys(("tensor_model_parallel_size", "tensor_parallel_degree", "tensor_parallel", "tp"), "tensor"),
    **dict.fromkeys(
        ("pipeline_model_parallel_size", "pipeline_parallel_degree", "pipeline_parallel", "pp"), "pipeline"
    ),
    **dict.fromkeys(
        (
            "pipeline_model_parallel_layout",
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
            "decoder_first_pipeline_num_layers",
            "decoder_last_pipeline_num_layers",
            "pipeline_split",
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
        ),
        "layers_per_stage",
    ),
    **dict.fromkeys(("data_parallel_size", "data_parallel_degree", "dp"), "data"),
    **dict.fromkeys(("num_layers_per_virtual_pipeline_stage", "virtual_pipeline_model_parallel_size", "vp"), "virtual"),
    **dict.fromkeys(("recompute_granularity", "gradient_checkpointing", "activation_checkpointing"), "recompute"),
    **dict.fromkeys(("recompute_num_layers", "selective_ac_option"), "recompute_every"),
    **dict.fromkeys(("use_distributed_optimizer", "zero"), "distributed_optimizer"),
    **dict.fromkeys(
        ("fsdp", "use_fsdp", "use_torch_fsdp2", "use_megatron_fsdp", "zero3", "fully_shard"), "full_sharding"
    ),
    **dict.fromkeys(("num_workers", "dataloader_num_workers"), "workers"),
    **dict.fromkeys(("dtype", "mixed_precision", "bf16", "fp16"), "precision"),
    **dict.fromkeys(("mlm_probability", "mask_prob", "masked_lm_prob", "noise_density"), "rate"),
    **dict.fromkeys(("world_size", "nproc_per_node", "num_gpus", "gpus"), "devices"),
    **dict.fromkeys(("output_dir", "save", "save_dir", "save_folder", "run_name", "dump_folder"), "run"),
    **dict.fromkeys(
        ("attn_implementation", "use_flash_attn", "use_flash_attention", "attention_backend"), "attention_kernel"
    ),
    **dict.fromkeys(("torch_compile", "use_compile", "use_torch_compile", "compile_model"), "compile"),
    **dict.fromkeys(
        ("profile_step_start", "profile_step_end", "profile_ranks", "use_pytorch_profiler", "enable_profiling"),
        "profile",
    ),
    **dict.fromkeys(("optim", "optimizer_type"), "name"),
    **dict.fromkeys(("experiment_name", "wandb_project"), "experiment"),
    **dict.fromkeys(("max_new_tokens", "num_tokens"), "tokens"),
    **dict.fromkeys(("pretrain", "fit"), "train"),
    **dict.fromkeys(("delete", "remove", "rm"), "prune"),
    **dict.fromkeys(("tokenize", "preprocess", "preprocess_data", "prepare", "prepare_data"), "build"),
    **dict.fromkeys(("sample", "chat", "complete", "infer", "inference", "predict"), "generate"),
    **dict.fromkeys(("sbatch", "submit"), "slurm"),
    **dict.fromkeys(("huggingface", "hugging_face", "transformers"), "hf"),
    **dict.fromkeys(("flops", "estimate"), "plan"),
    **dict.fromkeys(("logs", "status", "summary"), "report"),
    **dict.fromkeys(("sentencepiece", "spm", "sentence_piece"), "unigram"),
    **dict.fromkeys(("byte_level_bpe", "bbpe", "tiktoken", "gpt2_bpe"), "byte-bpe"),
    "nsp": "next-sentence",
    "sop": "sentence-order",
    **dict.fromkeys(("inverse_sqrt", "inverse_square_root"), "rsqrt"),
    **dict.fromkeys(("one_minus_sqrt", "1_sqrt"), "1-sqrt"),
    **dict.fromkeys(("stableadamw", "stable_adamw", "decoupled_stableadamw"), "stable-adamw"),
}

# Names of the same projects without an equivalent, and what to do instead. A dotted key applies in that section.
_ADVICE = (
    (
        "gradient_accumulation gradient_accumulation_steps accumulate_grad_batches grad_accum_steps "
        "device_train_microbatch_size num_microbatches",
        "gradients are accumulated over train.batch / (layout.data * layout.microbatch) forward passes: set "
        "train.batch and layout.microbatch.",
    ),
    (
        "accumulate_train_batch_on_tokens average_tokens_across_devices",
        "a loss is always the mean over all labels of the global batch, whatever its micro-batches and ranks hold.",
    ),
    (
        "num_train_epochs num_epochs max_epochs max_epoch train.epochs max_duration train_samples",
        "the length of a run is train.steps; data.epochs only limits how often a corpus is read.",
    ),
    (
        "warmup_ratio lr_warmup_fraction lr_warmup_samples t_warmup warmup_epochs",
        "the warm-up is a number of steps: set optimizer.warmup_steps; optimizer.max_warmup_ratio limits it in "
        "short runs.",
    ),
    (
        "wsd warmup_stable_decay trapezoidal lr_wsd_decay_style lr_wsd_decay_iters decay_ratio",
        "for warm-up, stable, decay set optimizer.warmup_steps, optimizer.stable_steps (the step at which the "
        "decay starts) and optimizer.decay=linear.",
    ),
    (
        "resume resume_from_checkpoint autoresume auto_resume resume_from restart continue restore "
        "overwrite_output_dir",
        "the same command again, or `megaptm train RUN_FOLDER`, continues a run from its newest checkpoint.",
    ),
    (
        "finetune fine_tune finetuning sft pretrained pretrained_checkpoint load load_path load_weights_only "
        "initial_load_path model_name_or_path from_pretrained init_checkpoint",
        "to start from the weights of another run set train.init_from=RUN_FOLDER; import a Hugging Face model with "
        "`megaptm import hf MODEL RUN_FOLDER`.",
    ),
    (
        "dry_run dryrun validate_only test_run fast_dev_run",
        "`megaptm check CONFIG` finds faults before a run starts, `megaptm plan CONFIG` estimates its memory and "
        "time; neither trains.",
    ),
    (
        "fsdp_config hsdp zero_stage data_parallel_sharding_strategy deepspeed data_parallel_shard_degree "
        "data_parallel_replicate_degree ddp",
        "layout.data copies the model; layout.full_sharding=true shards it over the data ranks (ZeRO stage 3, FSDP), "
        "layout.distributed_optimizer=true only the optimizer state (ZeRO stage 1), layout.tensor and layout.pipeline "
        "shard layers.",
    ),
    (
        "context_parallel context_parallel_size context_parallel_degree cp cp_comm_type ulysses ring_attention "
        "sequence_parallel_size",
        "layout.context divides sequences over ranks that gather keys and values (context parallelism); "
        "layout.sequence_parallel=true splits norms and dropout along the sequence over the tensor ranks.",
    ),
    (
        "expert_parallel expert_model_parallel_size expert_parallel_degree ep num_experts moe",
        "there are no mixture-of-experts layers.",
    ),
    (
        "lora qlora peft adapter adapters",
        "there are no adapters: all weights are trained.",
    ),
    (
        "wandb use_wandb wandb_entity tensorboard tensorboard_dir enable_tensorboard report_to logger enable_wandb",
        "metrics go to metrics.jsonl in the run folder and to the programs of track.loggers: mlflow, tensorboard, "
        "wandb or csv.",
    ),
    (
        "early_stopping early_stopping_patience",
        "train.stop='{patience: 3}' ends a run when a validation loss no longer falls.",
    ),
    (
        "load_best_model_at_end exit_duration_in_mins",
        "a run ends at train.steps; train.stop_at saves and stops earlier.",
    ),
    (
        "data_path train_data train_data_path train_file dataset datasets dataset_name dataset_path train_dataset "
        "train_loader validation_file eval_dataset blend",
        "training reads corpora: build a corpus with `megaptm corpus build TEXT out=corpora/NAME`, then set "
        "data.mix='{corpora/NAME: 1}'.",
    ),
    (
        "tokenizer tokenizer_name tokenizer_model tokenizer_type tokenizer_path vocab_file merge_file merges_file",
        "a corpus contains its tokenizer: choose it with tokenizer.kind=... or tokenizer=FOLDER in `megaptm corpus "
        "build`.",
    ),
    (
        "fp8 fp8_format fp8_recipe float8 load_in_8bit load_in_4bit quantization",
        "number formats are fp32, bf16 and fp16: set train.precision.",
    ),
    (
        "rope_theta rotary_base rotary_emb_base",
        "the base of rotary positions is an option of attention: set model.attention.rope_base.",
    ),
    (
        "position_embedding_type rope rotary_percent normalization swiglu hidden_act "
        "activation_function tie_word_embeddings untie_embeddings_and_output_weights add_bias_linear "
        "disable_bias_linear layer_norm_eps norm_epsilon layernorm_epsilon",
        "the family defines it (`megaptm families`); a family of your own can differ (docs/add-a-family.md).",
    ),
    (
        "mixtral phi falcon opt bloom gpt_neox pythia deepseek mamba whisper",
        "docs/add-a-family.md shows how to add a family of your own.",
    ),
    (
        "convert convert_checkpoint hf",
        "use `megaptm import hf MODEL RUN_FOLDER` or `megaptm export hf RUN_FOLDER FOLDER`.",
    ),
    (
        "serve server deploy api",
        "there is no server: `megaptm generate` runs one prompt, `megaptm export hf` exports a model for a server.",
    ),
)
ADVICE = {word: sentence for words, sentence in _ADVICE for word in words.split()}


def suggest_name(name: object, known: Iterable[str]) -> str | None:
    """Suggest the known name that an unknown one was meant to be: an equivalent name, an abbreviation, or the nearest
    in spelling."""
    known, unknown = list(known), str(name)
    if (meant := equivalent_name(unknown)) in known:
        return meant
    same = [candidate for candidate in known if candidate.lower() == unknown.lower()]
    short = [
        candidate for candidate in known if _abbreviate_name(candidate) == unknown.lower()
    ]  # `mlm` means `masked-lm`
    return next(iter(same or short or get_close_matches(unknown, known, n=1)), None)


def equivalent_name(name: object) -> str | None:
    """Return megaptm's equivalent of a name that another project uses."""
    return EQUIVALENT_NAMES.get(_normalize_name(name))


def advice_on_foreign_name(*names: object) -> str | None:
    """Return the advice for the first of these names that another project has and megaptm has no equivalent of, such as
    `train.epochs`. None: there is no advice."""
    return next((ADVICE[word] for name in names if (word := _normalize_name(name)) in ADVICE), None)


def _normalize_name(name: object) -> str:
    return str(name).lower().lstrip("-").replace("-", "_")


def _abbreviate_name(name: str) -> str:
    return "".join(word if len(word) <= len("lm") else word[0] for word in name.split("-"))
