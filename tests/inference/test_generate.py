"""What a model says: the same tokens as by whole passes, drawn as asked."""

import re
from itertools import islice

import pytest
import torch
from click.testing import CliRunner

from megaptm.commands.generate import generate as command
from megaptm.errors import UserError, printable
from megaptm.inference.generate import (
    Draw,
    Sampling,
    answer_ids,
    continue_ids,
    continue_text,
    filled,
    guess_masks,
    with_cache,
)
from megaptm.inference.loaded_model import open_run
from megaptm.inference.prompt import read_prompt
from megaptm.tokenizers import load as tokenizer_at
from tests.models.tiny import tiny_batch, tiny_model
from tests.train.runs import build, save_untrained, sharpen, write_text

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """family -> the folder of a run; `sharp` makes its model opinionated."""
    folder = tmp_path_factory.mktemp("runs")
    text = write_text(folder / "tales")
    return {
        family: save_untrained(family, folder / f"{family}-run", build(text, folder / family, family))[0]
        for family in ("gpt2", "bert", "electra", "t5", "bart", "transformer")
    }


@pytest.fixture(scope="module")
def trained_for(runs, tmp_path_factory):
    """Opens a run of T5 that was trained with an objective, in its words."""
    opened_runs = {}

    def of(objective):
        if objective not in opened_runs:
            folder, corpus = tmp_path_factory.mktemp("t5") / "run", (runs["t5"] / "tokenizer").resolve().parent
            opened_runs[objective] = opened(save_untrained("t5", folder, corpus, f"objective={objective}")[0])
        return opened_runs[objective]

    return of


@pytest.fixture
def gpt(runs):
    return opened(runs["gpt2"])


def opened(run):
    trained = open_run(run)
    sharpen(trained.model)
    return trained


def whole_pass(trained, ids):
    """Logits [S, V] of the model over everything, as in training."""
    tokens = torch.tensor([ids], device=trained.device)
    return trained.model.logits({"tokens": tokens})["lm"][0]


def test_remembering_gives_the_logits_of_a_whole_pass(gpt):
    ids = gpt.tokenizer.encode("The cat saw the hat by the window. The dog").tolist()
    expected = whole_pass(gpt, ids)
    with with_cache(gpt.model.decoder) as memory:
        for times in range(2):  # the second time after forgetting
            steps = [gpt.model.logits({"tokens": torch.tensor([ids[:4]])})["lm"][0]]
            for at in range(4, len(ids)):
                batch = {"tokens": torch.tensor([[ids[at]]]), "positions": torch.tensor([[at]])}
                steps.append(gpt.model.logits(batch)["lm"][0])
            torch.testing.assert_close(torch.cat(steps), expected, rtol=1e-4, atol=1e-4, msg=str(times))
            memory.clear()
    assert "Remember" not in repr(gpt.model)


@pytest.mark.parametrize(("family", "kept"), [("palm", [(12, 1, 16)] * 2), ("gpt3-banded", [(12, 4, 8), (5, 4, 8)])])
def test_no_more_is_remembered_than_will_be_seen(family, kept):
    """One head of keys and values where there is one; of a banded layer what is within the band."""
    model, tokens = tiny_model(family), tiny_batch(family, rows=1)["tokens"]
    expected = model.logits({"tokens": tokens})["lm"][0]
    with with_cache(model.decoder) as memory:
        steps = [model.logits({"tokens": tokens[:, :7]})["lm"][0]]
        for at in range(7, 12):
            batch = {"tokens": tokens[:, at : at + 1], "positions": torch.tensor([[at]])}
            steps.append(model.logits(batch)["lm"][0])
        torch.testing.assert_close(torch.cat(steps), expected, rtol=1e-4, atol=1e-4)
        keys = [layer.past[0] for layer in memory.layers]
        assert [(len(one), *one.shape[2:]) for one in keys] == kept


def test_greedy_continuation_is_the_likeliest_token_of_a_whole_pass(gpt):
    ids = gpt.tokenizer.encode("The cat").tolist()
    said = list(continue_ids(gpt, ids, tokens=40, draw=Draw(GREEDY, gpt.tokenizer)))
    assert len(set(said)) > 3
    for at, id_ in enumerate(said):
        assert id_ == int(whole_pass(gpt, ids + said[:at])[-1, : gpt.tokenizer.vocabulary].argmax())


def test_past_the_context_it_goes_on_from_the_second_half(gpt):
    ids = gpt.tokenizer.encode("The cat").tolist()
    limit = gpt.spec.context
    said = list(continue_ids(gpt, ids, tokens=limit + 20, draw=Draw(GREEDY, gpt.tokenizer)))
    assert len(said) == limit + 20
    text = [*ids, *said]
    window = text[limit + 1 - limit // 2 : limit + 1]  # the first to be too long is one longer than the context
    assert text[limit + 1] == int(whole_pass(gpt, window)[-1, : gpt.tokenizer.vocabulary].argmax())


def test_a_prompt_longer_than_the_context_is_read_from_its_end(gpt):
    ids = gpt.tokenizer.encode("The cat saw the dog. " * 40).tolist()
    assert len(ids) > gpt.spec.context
    (said,) = continue_ids(gpt, ids, tokens=1, draw=Draw(GREEDY, gpt.tokenizer))
    window = ids[-(gpt.spec.context // 2) :]
    assert said == int(whole_pass(gpt, window)[-1, : gpt.tokenizer.vocabulary].argmax())


def test_the_end_of_a_document_ends_the_text(gpt):
    ids = gpt.tokenizer.encode("The cat").tolist()
    said = list(continue_ids(gpt, ids, tokens=10, draw=Draw(GREEDY, gpt.tokenizer)))
    special = gpt.tokenizer.special
    gpt.tokenizer.__dict__["special"] = type(special)(size=special.size, end=said[3])
    assert list(continue_ids(gpt, ids, tokens=10, draw=Draw(GREEDY, gpt.tokenizer))) == said[: said.index(said[3])]


def test_the_same_seed_says_the_same(gpt):
    def said(seed):
        return "".join(continue_text(gpt, "The cat", tokens=30, sampling=Sampling(seed=seed, temperature=2.0)))

    assert said(1) == said(1)
    assert said(1) != said(2)


def test_pieces_of_text_add_up_to_the_decoded_whole(gpt):
    sampling = Sampling(seed=5, temperature=3.0, top_k=0)  # wild enough to say halves of characters
    ids = gpt.tokenizer.encode("The cat").tolist()
    whole = [*ids, *continue_ids(gpt, ids, tokens=60, draw=Draw(sampling, gpt.tokenizer))]
    pieces = list(continue_text(gpt, "The cat", tokens=60, sampling=sampling))
    assert gpt.tokenizer.decode(whole).rstrip("\N{REPLACEMENT CHARACTER}").startswith("The cat" + "".join(pieces))
    assert len(pieces) > 5


def test_only_the_likeliest_are_drawn_as_often_as_they_should(gpt):
    draw = Draw(Sampling(temperature=0.5, top_k=2), gpt.tokenizer)
    logits = torch.zeros(gpt.spec.vocabulary)
    logits[7], logits[9] = 2.0, 1.5
    drawn = [draw(logits.clone()) for _ in range(2000)]
    assert set(drawn) == {7, 9}
    expected = 1 / (1 + torch.tensor(-(2.0 - 1.5) / 0.5).exp().item())
    assert drawn.count(7) / 2000 == pytest.approx(expected, abs=0.04)


def test_ids_that_the_tokenizer_has_not_are_never_said(gpt):
    logits = torch.zeros(gpt.tokenizer.vocabulary + 5)
    logits[gpt.tokenizer.vocabulary :] = 100.0
    draw = Draw(Sampling(top_k=0), gpt.tokenizer)
    assert max(draw(logits.clone()) for _ in range(200)) < gpt.tokenizer.vocabulary


def test_holes_are_filled_in_their_places():
    text = [5, 100, 6, 101, 7]

    def ids(said):
        return [id_ for part, _ in filled(text, said, [100, 101]) for id_ in part]

    assert filled(text, [100, 1, 2, 101, 3], [100, 101])[:3] == [([5], False), ([1, 2], True), ([6], False)]
    assert ids([100, 1, 2, 101, 3]) == [5, 1, 2, 6, 3, 7]
    assert ids([9, 9, 101, 3, 100, 1]) == [5, 1, 6, 3, 7]
    assert ids([100, 1]) == [5, 1, 6, 7]
    assert ids([9]) == [5, 6, 7]


def said_by_whole_passes(loaded, read, heard, tokens):
    """Ids that an encoder-decoder says of what its encoder reads, after what its decoder hears."""
    special, vocabulary, said = loaded.tokenizer.special, loaded.tokenizer.vocabulary, []
    while len(said) < tokens:
        batch = {"tokens": torch.tensor([read]), "decoder_tokens": torch.tensor([[*heard, *said]])}
        logits = loaded.model.logits(batch)["lm"][0, -1, :vocabulary]
        logits[[id_ for id_ in (special.pad, special.begin) if id_ is not None]] = float("-inf")
        if (id_ := int(logits.argmax())) == special.end:
            break
        said.append(id_)
    return said


def test_a_prompt_becomes_what_the_objective_showed(runs, trained_for):
    """T5's has numbered holes; BART's masks, after the tokens that begin a text; a translator's is the text alone."""
    t5, bart, translator = (opened(runs[family]) for family in ("t5", "bart", "transformer"))
    tasks = trained_for("text-to-text")
    masked = trained_for("bert-style")

    def ids(loaded, text):
        return loaded.tokenizer.encode(text).tolist()

    def pad_end(loaded):
        return loaded.tokenizer.special.pad, loaded.tokenizer.special.end

    (pad, end), hole = pad_end(t5), t5.tokenizer.special.sentinels[0]
    with_hole = [*ids(t5, "The"), hole, *ids(t5, "saw"), end]
    special = bart.tokenizer.special
    begin, mask, bart_end = special.begin, special.mask, special.end
    cases = [
        (t5, "The <extra_id_0> saw", with_hole, [pad]),
        (bart, "The<mask> saw", [begin, *ids(bart, "The"), mask, *ids(bart, " saw"), bart_end], [bart_end, begin]),
        (translator, "The cat", [*ids(translator, "The cat"), pad_end(translator)[1]], [pad_end(translator)[0]]),
        (tasks, "The cat", [*ids(tasks, "The cat"), end], [pad]),
        (tasks, "The <extra_id_0> saw", with_hole, [pad]),  # its corpora of plain text are read in corrupted spans
        (masked, "<extra_id_0> saw <extra_id_0>", [hole, *ids(masked, "saw"), hole, end], [pad]),
    ]
    for loaded, prompt, read, heard in cases:
        kind, prompt_ids = read_prompt(loaded, prompt)
        said = list(answer_ids(loaded, prompt_ids, kind=kind, tokens=12, draw=Draw(GREEDY, loaded.tokenizer)))
        assert said, prompt
        assert said == said_by_whole_passes(loaded, read, heard, 12), prompt
        if kind != "sentinels":
            assert loaded.fill(prompt, tokens=12, temperature=0) == loaded.tokenizer.decode(said)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_masks_get_the_likeliest_tokens_of_a_whole_pass(runs, family):
    bert = opened(runs[family])
    special, tokenizer = bert.tokenizer.special, bert.tokenizer
    first, second = guess_masks(bert, "The [MASK] saw the [MASK].", guesses=3)
    words = [tokenizer.encode(part).tolist() for part in ("The", "saw the", ".")]
    ids = [special.cls, *words[0], special.mask, *words[1], special.mask, *words[2], special.sep]
    row = {"tokens": torch.tensor([ids]), "segments": torch.zeros(1, len(ids), dtype=torch.int64)}
    chances = bert.model.logits(row)["mlm"][0, ids.index(special.mask), : tokenizer.vocabulary].softmax(0)
    assert [guess.chance for guess in first] == pytest.approx(chances.topk(3).values.tolist(), rel=1e-4)
    assert first[0].token == tokenizer.library.id_to_token(int(chances.argmax()))
    assert first != second


@pytest.mark.parametrize(
    ("family", "prompt", "told"),
    [
        ("gpt2", "", "the prompt is empty"),
        ("t5", "The cat", "the prompt needs holes"),
        ("t5", "The <extra_id_1>", "the prompt needs holes"),
        ("bart", "The cat", "the prompt needs a <mask> for the model to fill"),
        ("transformer", "", "the prompt is empty"),
        ("bert", "The cat", r"the prompt needs a \[MASK\]"),
        ("bert", "[MASK]" * 200, "the prompt has 202 tokens, the model reads 128"),
    ],
)
def test_a_prompt_the_model_cannot_answer_is_told(runs, family, prompt, told):
    with pytest.raises(UserError, match=told):
        CliRunner().invoke(command, [str(runs[family]), "--prompt", prompt], catch_exceptions=False)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"temperature": 1e-320}, r"temperature \(1e-320\) must be 0, or from 0\.001 to 1000"),
        ({"temperature": float("nan")}, r"temperature \(nan\) must be 0, or"),
        ({"temperature": 1e308}, r"temperature \(1e\+308\) must be 0, or"),
        ({"top_k": -1}, r"top-k \(-1\) must be 0 or more"),
        ({"seed": 10**30}, r"seed \(10+\) must be a number of 64 bits"),
    ],
)
def test_what_cannot_be_drawn_by_is_told(said, told):
    with pytest.raises(UserError, match=told):
        Sampling(**said)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_text_with_half_a_character_is_told(runs, family):
    tokenizer = tokenizer_at(runs[family] / "tokenizer")
    for encode in (tokenizer.encode_batch, tokenizer.encode_batch_with_ends):
        with pytest.raises(UserError, match=r"a text has '\\udcff', half of a character or a byte that is not UTF-8"):
            encode(["whole", "The \udcff cat"])


def test_the_command_speaks_for_each_family(runs):
    def said(family, *arguments):
        done = CliRunner().invoke(command, [str(runs[family]), "--prompt", *arguments], catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    trained = open_run(runs["gpt2"])
    continued = "".join(islice(continue_text(trained, "The cat", tokens=9, sampling=Sampling(seed=4)), 9))
    assert said("gpt2", "The cat", "--tokens", "9", "--seed", "4") == printable(f"The cat{continued}\n")
    assert said("t5", "The <extra_id_0> saw", "--tokens", "5", "--greedy").startswith("The")
    asked = [command, [str(runs["t5"]), "--prompt", "The <extra_id_0> saw", "--tokens", "5", "--greedy"]]
    in_color = CliRunner().invoke(*asked, color=True, catch_exceptions=False).output
    assert re.fullmatch(r"The(\x1b\[1m.*\x1b\[0m)? ?saw\n", in_color)
    assert re.sub(r"\x1b\[\dm", "", in_color) == CliRunner().invoke(*asked, catch_exceptions=False).output
    assert said("bart", "The<mask> saw", "--tokens", "5", "--greedy").strip()
    assert said("transformer", "The cat", "--tokens", "5") == said(
        "transformer", "The cat", "--tokens", "5", "--beams=4"
    )
    assert said("bert", "The [MASK] saw", "--guesses", "2").splitlines()[1].split() == [
        "mask",
        "guess",
        "1",
        "guess",
        "2",
    ]


def test_a_run_without_a_checkpoint_is_told(runs, tmp_path):
    (tmp_path / "config.yaml").write_text((runs["gpt2"] / "config.yaml").read_text())
    with pytest.raises(UserError, match="has no checkpoint yet"):
        CliRunner().invoke(command, [str(tmp_path), "--prompt", "The"], catch_exceptions=False)
