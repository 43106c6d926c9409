"""What a checkpoint must agree with before it is continued."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from megaptm.checkpoint.store import Checkpoint, Store
from megaptm.config import load, resolve, resolve_model
from megaptm.errors import UserError
from megaptm.families import FAMILIES
from megaptm.run.compatibility import (
    LOGITS_SEPARATOR,
    compatibility,
    find_abandoned,
    objective_files,
    refuse_other_files,
    refuse_other_model,
    refuse_other_teacher,
    refuse_other_text,
)
from tests import ROOT


def saved(**corpora):
    return Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state={"corpora": corpora}, files=())


def test_layers_that_share_are_not_continued_as_layers_that_do_not():
    albert, apart = (resolve_model(load("bert/tiny", [f"model.share={share}"])) for share in ("[ffn]", "[]"))
    state = compatibility(albert, "words")
    begun = Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state=state, files=())
    refuse_other_model(begun, compatibility(albert, "words"))
    with pytest.raises(UserError, match="has another model: its sharing is"):
        refuse_other_model(begun, compatibility(apart, "words"))
    plain = replace(begun, state=compatibility(apart, "words"))
    del plain.state["model"]["sharing"]  # as checkpoints were before it was said
    refuse_other_model(plain, compatibility(apart, "words"))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_what_a_checkpoint_says_of_its_model_comes_back_from_its_file(family):
    """JSON has no tuples, and ELMo's filters are some in one."""
    if not (ROOT / f"configs/{family}/tiny.yaml").is_file():
        pytest.skip("no tiny config")
    wanted = compatibility(resolve(load(f"{family}/tiny")), "words")
    read = json.loads(json.dumps(wanted))
    refuse_other_model(Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state=read, files=()), wanted)


def test_pixels_of_other_statistics_are_another_model():
    """Those of a family said by hand are its own; and what is written out is what is read again."""
    own, other = (load("vit/tiny", [f"model.pixel_std=[{std}, {std}, {std}]"]) for std in (0.5, 0.25))
    assert resolve_model(own) == resolve_model(load("vit/tiny"))
    assert (other.model.pixel_mean, other.model.pixel_std) == ((0.5,) * 3, (0.25,) * 3)
    folder = Path("run/checkpoints/step-00000005")
    said = [json.loads(json.dumps(compatibility(resolve_model(one), "words"))) for one in (own, other)]
    del said[0]["model"]["pixel_std"]  # as checkpoints were before it was said
    for begun, wanted, refused in ((0, own, None), (1, other, None), (0, other, "None, the config's is"), (1, own, "")):
        checkpoint = Checkpoint(step=5, folder=folder, state=said[begun], files=())
        with nullcontext() if refused is None else pytest.raises(UserError, match=f"its pixel_std is .*{refused}"):
            refuse_other_model(checkpoint, compatibility(resolve_model(wanted), "words"))


def test_a_table_of_more_tasks_is_another_model():
    told = [resolve_model(load("ernie-2/tiny", [f"model.tasks={tasks}"])) for tasks in (4, 7)]
    four, seven = (compatibility(spec, "words") for spec in told)
    begun = Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state=seven, files=())
    with pytest.raises(UserError, match="has another model: its tasks is 7, the config's is 4"):
        refuse_other_model(begun, four)


def test_weights_of_places_are_another_model():
    """They would be rows that were padding: nothing else tells them apart."""
    told = [
        resolve(load("fasttext/tiny", [f"objective={{cbow: {{position_weights: {said}}}}}"]))
        for said in ("false", "true")
    ]
    without, with_them = (compatibility(spec, "words") for spec in told)
    begun = Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state=without, files=())
    with pytest.raises(UserError, match="has another model: its positions is None, the config's is 10"):
        refuse_other_model(begun, with_them)
    del without["model"]["positions"]  # as checkpoints were before there could be some
    refuse_other_model(begun, compatibility(told[0], "words"))


@pytest.mark.parametrize(
    "train", [None, 3, {}, {"skip_batches": None}, {"skip_batches": [3]}, {"skip_batches": {"soon": 3}}]
)
def test_a_checkpoint_that_tells_of_no_text_it_passed_over_has_read_all(train, tmp_path):
    store = Store(tmp_path, fence=lambda: True)
    store.prepare(5)
    store.write(5, 0, [])
    store.commit(5, {"config": {"train": train}}, 1)
    assert find_abandoned(store, {}) == find_abandoned(store, {5: 1}) == {}
    with pytest.raises(UserError, match=r"^train\.skip_batches\.4: the run would have to return to a checkpoint"):
        find_abandoned(store, {4: 1})


def test_the_same_corpora_are_continued():
    refuse_other_text(saved(books="1", news="2"), {"books": "1", "news": "2"})


def test_corpora_that_were_moved_are_continued():
    refuse_other_text(saved(books="1", news="2"), {"books": "1", "elsewhere": "2"})


@pytest.mark.parametrize(
    "now",
    [
        {"books": "1", "news": "3"},
        {"books": "1"},
        {"books": "1", "elsewhere": "3"},
        {"books": "1", "news": "3", "x": "2"},
    ],
)
def test_a_corpus_that_was_built_again_is_refused(now):
    with pytest.raises(UserError, match=r"^news in data\.mix was rebuilt after run/checkpoints/step-00000005"):
        refuse_other_text(saved(books="1", news="2"), now)


def test_an_imported_model_has_read_nothing_yet():
    imported = Checkpoint(step=0, folder=Path("run/checkpoints/step-00000000"), state={}, files=())
    refuse_other_text(imported, {"books": "1"})


def test_a_file_that_a_task_reads_is_the_one_that_was_read(tmp_path):
    """Similar words and meanings decide what samples say, as corpora do."""
    table = tmp_path / "similar.npz"
    table.write_bytes(b"one")
    task = f"objective={{masked-lm: {{hide: ngrams, show: similar-words, similar: {table}}}}}"
    config = load("bert/tiny", [task, "model.vocabulary=300"])
    begun = objective_files(config)
    assert [*begun] == ["masked-lm.similar"]
    checkpoint = Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state={"files": begun}, files=())
    refuse_other_files(checkpoint, objective_files(config))
    table.write_bytes(b"two")
    with pytest.raises(UserError, match=r"^objective\.masked-lm\.similar is not the file that run/checkpoints"):
        refuse_other_files(checkpoint, objective_files(config))
    older = Checkpoint(step=5, folder=Path("run/checkpoints/step-00000005"), state={}, files=())
    refuse_other_files(older, objective_files(config))  # which does not say


@pytest.mark.parametrize(
    ("begun", "now", "said"),
    [
        ("one", "one", None),
        ("one", "two", r"distill\.teacher is not the checkpoint that run/checkpoints/step-00000005 was trained with"),
        ("one", f"one{LOGITS_SEPARATOR}--top 8", None),  # as checkpoints were before it was said
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
def test_a_student_goes_on_with_what_it_has_learned_from(begun, now, said):
    """Also where the logits of its teacher were written again, fewer of them: their loss is another."""
    checkpoint = Checkpoint(5, Path("run/checkpoints/step-00000005"), state={"teacher": begun}, files=())
    with nullcontext() if said is None else pytest.raises(UserError, match=said):
        refuse_other_teacher(checkpoint, now)
