"""Rules for changing keys when a run is continued, used by the check and printed in docs/config.md."""

from __future__ import annotations

from enum import StrEnum

from megaptm.config.sections.extensions import extension_sections


class OnResume(StrEnum):
    """Rule for changing a key of a run that has saved a checkpoint."""

    NO = "no"
    YES = "yes"
    MOVED = "moved"
    """Rule for a path that may change, if the content does not."""
    LATER = "later steps"
    """Rule for a value that must agree with the old one for all steps that are done."""
    NEXT_PHASE = "next phase"
    """Rule for a key that may change in a config whose `train.phase_start` is the `train.steps` of the phase before."""


RULE_MEANINGS = {
    OnResume.YES: "any value.",
    OnResume.NO: "the value at the start of the run. Another value needs another run folder (`run=FOLDER`).",
    OnResume.MOVED: "another path of the same content, which is compared by a hash.",
    OnResume.LATER: (
        "a value that does not affect the steps that are done: other shares and weights of an `objective` from a "
        "later step on, more entries of `train.skip_batches` (the run returns to a checkpoint before them), another "
        "schedule for a run of another length ([longer runs](configs.md#a-longer-run))."
    ),
    OnResume.NEXT_PHASE: (
        "another value in a config whose `train.phase_start` is the `train.steps` of the phase before."
    ),
}
"""Explanation of each rule for changing a key."""

RESUME_RULES = {
    "run": OnResume.MOVED,
    "machine": OnResume.YES,
    "devices": OnResume.YES,
    "layouts": OnResume.YES,
    "objective": OnResume.LATER,
    "model.attention": OnResume.NEXT_PHASE,
    "model.dropout": OnResume.NEXT_PHASE,
    "model.word_vectors": OnResume.YES,  # like train.init_from, it is read before the first step only
    "data.mix": OnResume.MOVED,
    "data.size_limits": OnResume.MOVED,
    "data.sequence": OnResume.NEXT_PHASE,
    "data.epochs": OnResume.YES,
    "data.workers": OnResume.YES,
    "data.verify": OnResume.YES,
    "data.cache_dir": OnResume.YES,
    "data.timeout_seconds": OnResume.YES,
    "layout": OnResume.YES,
    "communication": OnResume.YES,
    "optimizer.decay_steps": OnResume.LATER,
    "optimizer.restarts": OnResume.LATER,
    "train.steps": OnResume.YES,
    "train.phase_start": OnResume.NEXT_PHASE,
    "train.skip_batches": OnResume.LATER,
    "train.init_from": OnResume.YES,
    "train.init_step": OnResume.YES,
    "train.loss_scale": OnResume.YES,
    "train.deterministic": OnResume.YES,
    "train.attention_kernel": OnResume.YES,
    "train.compile": OnResume.YES,
    "train.stop_at": OnResume.YES,
    "train.log_every": OnResume.YES,
    "train.validate_every": OnResume.YES,
    "train.validate_batches": OnResume.YES,
    "train.check_replicas_every": OnResume.YES,
    "train.profile": OnResume.YES,
    "train.threads": OnResume.YES,
    "train.hang_seconds": OnResume.YES,
    "checkpoint": OnResume.YES,
    "track": OnResume.YES,
    "callbacks": OnResume.YES,
    **{f"{key}.{name}": OnResume.MOVED for key, section in extension_sections().items() for name in section.moved},
}
"""Config key or section -> rule for changing it on resume. Unlisted keys have `OnResume.NO`."""


def resume_rule(key: str) -> OnResume:
    """Return the rule for changing a config key on resume (`train.skip_batches.1180`): its own, or that of the nearest
    key or section above it."""
    while key not in RESUME_RULES and "." in key:
        key = key.rpartition(".")[0]
    return RESUME_RULES.get(key, OnResume.NO)


def keys_with_rule(rule: OnResume) -> list[str]:
    """Return the config keys and sections that have a rule for changes on resume."""
    return [key for key, own in RESUME_RULES.items() if own is rule]
