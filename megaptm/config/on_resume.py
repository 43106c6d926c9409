"""Rules for changing keys when a run is continued: the one source of the check and of docs/config.md."""

from __future__ import annotations

from enum import StrEnum

from megaptm.config.sections.extensions import extension_sections


class OnResume(StrEnum):
    """Rule for changing a key of a run that has saved a checkpoint."""

    NEVER = "never"
    YES = "yes"
    CHANGE = "with --change"
    """Rule for a key whose change alters the meaning of the run from the next step on."""
    LATER = "later steps"
    """Rule for a value that may change for later steps, and with `--change` in any way."""
    ADDED = "more entries"
    MOVED = "moved"
    """Rule for a path that may change, if the content does not."""


RULE_MEANINGS = {
    OnResume.YES: "any value.",
    OnResume.CHANGE: (
        "another value from the next step on, with `megaptm train RUN --change` or a yes on a terminal "
        "([another recipe](configs.md#another-recipe)). A moved corpus needs neither: it has the same id."
    ),
    OnResume.LATER: (
        "a value that does not affect the finished steps: other future phases, other shares and weights of an "
        "`objective` from a later step on, another schedule for a run of another length "
        "([longer runs](configs.md#a-longer-run)). Any other value with `--change`."
    ),
    OnResume.ADDED: "more entries; the run returns to a checkpoint before the first of them.",
    OnResume.MOVED: "another path of the same content, which is compared by a hash.",
    OnResume.NEVER: "the value at the start of the run. Another value needs another run folder (`run=FOLDER`).",
}
"""Explanation of each rule for changing a key."""

RESUME_RULES = {
    "run": OnResume.MOVED,
    "machine": OnResume.YES,
    "devices": OnResume.YES,
    "layouts": OnResume.YES,
    "objective": OnResume.LATER,
    "model.dropout": OnResume.CHANGE,
    "model.z_loss": OnResume.CHANGE,
    "model.label_smoothing": OnResume.CHANGE,
    "model.attention": OnResume.CHANGE,
    "model.word_vectors": OnResume.YES,  # like train.init_from, it is read before the first step only
    "data": OnResume.CHANGE,
    "data.cursors": OnResume.YES,
    "data.max_cache_bytes": OnResume.YES,
    "data.epochs": OnResume.YES,
    "data.workers": OnResume.YES,
    "data.verify": OnResume.YES,
    "data.validation": OnResume.YES,
    "data.validate_each": OnResume.YES,
    "data.cache_dir": OnResume.YES,
    "data.timeout_seconds": OnResume.YES,
    "layout": OnResume.YES,
    "communication": OnResume.YES,
    "optimizer": OnResume.CHANGE,
    "optimizer.name": OnResume.NEVER,
    "optimizer.options": OnResume.CHANGE,
    "optimizer.offload": OnResume.YES,
    "optimizer.momentum": OnResume.NEVER,  # its state exists only if it is not zero
    "optimizer.initial_accumulator": OnResume.NEVER,
    "optimizer.adafactor.min_dim_size_to_factor": OnResume.NEVER,
    "optimizer.decay_steps": OnResume.LATER,
    "optimizer.restarts": OnResume.LATER,
    "train.steps": OnResume.YES,
    "train.phase_start": OnResume.CHANGE,
    "train.batch": OnResume.CHANGE,
    "train.ramp": OnResume.CHANGE,
    "train.seed": OnResume.CHANGE,
    "train.precision": OnResume.CHANGE,
    "train.skip_batches": OnResume.ADDED,
    "train.init_from": OnResume.YES,
    "train.init_step": OnResume.YES,
    "train.loss_scale": OnResume.YES,
    "train.spikes": OnResume.YES,
    "train.stragglers": OnResume.YES,
    "train.stop": OnResume.YES,
    "train.deterministic": OnResume.YES,
    "train.attention_kernel": OnResume.YES,
    "train.compile": OnResume.YES,
    "train.stop_at": OnResume.YES,
    "train.log_every": OnResume.YES,
    "train.norms_every": OnResume.YES,
    "train.attention_logits_every": OnResume.YES,
    "train.validate_every": OnResume.YES,
    "train.validate_batches": OnResume.YES,
    "train.check_replicas_every": OnResume.YES,
    "train.profile": OnResume.YES,
    "train.threads": OnResume.YES,
    "train.restarts": OnResume.YES,
    "train.node_fault_hours": OnResume.YES,
    "train.hang_seconds": OnResume.YES,
    "checkpoint": OnResume.YES,
    "hub": OnResume.YES,
    "track": OnResume.YES,
    "callbacks": OnResume.YES,
    "phases": OnResume.LATER,
    **{f"{key}.{name}": OnResume.MOVED for key, section in extension_sections().items() for name in section.moved},
}
"""Rules for changing config keys and sections on resume. Unlisted keys have `OnResume.NEVER`."""


def resume_rule(key: str) -> OnResume:
    """Return the rule for changing a config key on resume (`train.skip_batches.1180`): its own, or that of the nearest
    key or section above it."""
    while key not in RESUME_RULES and "." in key:
        key = key.rpartition(".")[0]
    return RESUME_RULES.get(key, OnResume.NEVER)


def keys_with_rule(rule: OnResume) -> list[str]:
    """Return the config keys and sections that have a rule for changes on resume."""
    return [key for key, own in RESUME_RULES.items() if own is rule]
