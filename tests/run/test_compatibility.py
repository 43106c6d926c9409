"""Conditions under which a checkpoint can be continued."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import load_config, resolve_model, resolve_spec
from megaptm.distillation.run import LOGITS_SEPARATOR, refuse_other_teacher
from megaptm.errors import UserError
from megaptm.families import FAMILIES
from megaptm.run.compatibility import (
    compatibility_record,
    find_abandoned,
    objective_files,
    refuse_other_files,
    refuse_other_model,
    refuse_other_text,
)
from tests import ROOT


def make_checkpoint(state, step=5):
    return Checkpoint(step=step, folder=Path("run/checkpoints/step-00000005"), state=state, indexes=())


def test_parameter_sharing_must_not_change():
    albert, apart = (resolve_model(load_config("bert/tiny", [f"model.share={share}"])) for share in ("[ffn]", "[]"))
    state = compatibility_record(albert, "words")
    checkpoint = make_checkpoint(state)
    refuse_other_model(checkpoint, compatibility_record(albert, "words"))
    with pytest.raises(UserError, match="has another model: its sharing is"):
        refuse_other_model(checkpoint, compatibility_record(apart, "words"))
    plain = replace(checkpoint, state=compatibility_record(apart, "words"))
    del plain.state["model"]["sharing"]  # an older checkpoint has no such key
    refuse_other_model(plain, compatibility_record(apart, "words"))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_model_description_survives_json(family):
    """JSON has no tuples, and ELMo's filters are nested tuples."""
    if not (ROOT / f"configs/{family}/tiny.yaml").is_file():
        pytest.skip("no tiny config")
    expected = compatibility_record(resolve_spec(load_config(f"{family}/tiny")), "words")
    read = json.loads(json.dumps(expected))
    refuse_other_model(make_checkpoint(read), expected)


def test_pixel_normalization_must_not_change():
    """The family's own values, written out, are no difference."""
    own, other = (
        resolve_model(load_config("vit/tiny", [f"model.pixel_std=[{std}, {std}, {std}]"])) for std in (0.5, 0.25)
    )
    assert own == resolve_model(load_config("vit/tiny"))
    assert load_config("vit/tiny", ["model.pixel_std=[0.25, 0.25, 0.25]"]).model.pixel_mean == (0.5,) * 3
    of_own, of_other = (json.loads(json.dumps(compatibility_record(spec, "words"))) for spec in (own, other))
    refuse_other_model(make_checkpoint(of_own), of_own)
    refuse_other_model(make_checkpoint(of_other), of_other)
    with pytest.raises(UserError, match="its pixel_std is "):
        refuse_other_model(make_checkpoint(of_other), of_own)


def test_num_task_embeddings_must_not_change():
    specs = [resolve_model(load_config("ernie-2/tiny", [f"model.tasks={tasks}"])) for tasks in (4, 7)]
    four, seven = (compatibility_record(spec, "words") for spec in specs)
    checkpoint = make_checkpoint(seven)
    with pytest.raises(UserError, match="has another model: its tasks is 7, the config's is 4"):
        refuse_other_model(checkpoint, four)


@pytest.mark.parametrize(
    "train",
    [
        *(None, 3, {}, {"skip_batches": None}, {"skip_batches": [3]}, {"skip_batches": {"soon": 3}}),
        *({"skip_batches": {"3": [3]}}, {"skip_batches": {"3" * 5000: 3}}),
    ],
)
def test_invalid_skip_batches_in_a_checkpoint_count_as_none(train, tmp_path):
    store = CheckpointStore(tmp_path, fence=lambda: True)
    store.prepare(5)
    store.write(5, 0, [])
    store.commit(5, {"config": {"train": train}}, 1)
    assert find_abandoned(store, {}) == find_abandoned(store, {5: 1}) == {}
    with pytest.raises(UserError, match=r"^train\.skip_batches\.4: the run would have to return to a checkpoint"):
        find_abandoned(store, {4: 1})


def test_same_corpora_resume():
    refuse_other_text(make_checkpoint({"corpora": {"books": "1", "news": "2"}}), {"books": "1", "news": "2"})


def test_moved_corpora_resume():
    refuse_other_text(make_checkpoint({"corpora": {"books": "1", "news": "2"}}), {"books": "1", "elsewhere": "2"})


@pytest.mark.parametrize(
    "now",
    [
        {"books": "1", "news": "3"},
        {"books": "1"},
        {"books": "1", "elsewhere": "3"},
        {"books": "1", "news": "3", "x": "2"},
    ],
)
def test_rebuilt_corpus_is_refused(now):
    with pytest.raises(UserError, match=r"^news in data\.mix was rebuilt after run/checkpoints/step-00000005"):
        refuse_other_text(make_checkpoint({"corpora": {"books": "1", "news": "2"}}), now)


def test_corpora_of_the_wrong_type_are_refused():
    with pytest.raises(UserError, match=r"^books in data\.mix was rebuilt"):
        refuse_other_text(make_checkpoint({"corpora": {"books": ["1"]}}), {"books": "1"})


def test_imported_model_accepts_any_corpus():
    imported = make_checkpoint({}, step=0)
    refuse_other_text(imported, {"books": "1"})


def test_task_file_must_not_change(tmp_path):
    """Files of similar words and meanings determine the samples, as corpora do."""
    table = tmp_path / "similar.npz"
    table.write_bytes(b"one")
    task = f"objective={{masked-lm: {{hide: ngrams, show: similar-words, similar: {table}}}}}"
    config = load_config("bert/tiny", [task, "model.vocabulary=300"])
    hashes = objective_files(config)
    assert [*hashes] == ["masked-lm.similar"]
    checkpoint = make_checkpoint({"files": hashes})
    refuse_other_files(checkpoint, objective_files(config))
    table.write_bytes(b"two")
    with pytest.raises(UserError, match=r"^objective\.masked-lm\.similar is not the file that run/checkpoints"):
        refuse_other_files(checkpoint, objective_files(config))
    older = make_checkpoint({})
    refuse_other_files(older, objective_files(config))  # without hashes


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ("one", "one", None),
        ("one", "two", r"distill\.teacher is not the checkpoint that run/checkpoints/step-00000005 was trained with"),
        ("one", f"one{LOGITS_SEPARATOR}--top 8", None),  # an older checkpoint without settings
        (
            f"one{LOGITS_SEPARATOR}--top 8",
            f"two{LOGITS_SEPARATOR}--top 8",
            r"distill\.cached_logits does not come from the checkpoint that",
        ),
        (
            f"one{LOGITS_SEPARATOR}--top 8",
            f"one{LOGITS_SEPARATOR}--top 4",
            "with --top 4, and .* with logits written with --top 8: restore",
        ),
    ],
)
def test_teacher_must_not_change(before, now, message):
    """Cached logits with another `top` change the loss."""
    checkpoint = make_checkpoint({"teacher": before})
    with nullcontext() if message is None else pytest.raises(UserError, match=message):
        refuse_other_teacher(checkpoint, now)
