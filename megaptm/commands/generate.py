"""Command `megaptm generate`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.commands.options import FiniteNumber
from megaptm.commands.output import echo
from megaptm.errors import printable


@click.command("generate")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--prompt",
    required=True,
    help="Text to continue (GPT), to translate or answer (encoder-decoder), or with masks to fill (T5, BERT).",
)
@click.option("--tokens", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of new tokens.")
@click.option("--temperature", type=FiniteNumber(min=0), default=0.8, show_default=True, help="Sampling temperature.")
@click.option("--top-k", type=int, default=50, show_default=True, help="Sample from the k most likely tokens; 0: all.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sampling.")
@click.option("--greedy", is_flag=True, help="Always take the most likely token; beam search with one beam.")
@click.option("--guesses", type=click.IntRange(1), default=5, show_default=True, help="BERT: predictions per mask.")
@click.option(
    "--beams",
    type=click.IntRange(1),
    help="Encoder-decoder: generate an answer, such as a translation, with this many beams.  [default for a prompt "
    "without masks: 4, with --greedy 1]",
)
@click.option(
    "--length-penalty",
    type=FiniteNumber(min=0),
    default=0.6,
    show_default=True,
    help="Beam search: higher values prefer longer outputs.",
)
@click.option("--step", type=int, help="Step of the checkpoint.  [default: the newest]")
@click.option("--ema", is_flag=True, help="Use the running mean of the weights (optimizer.ema_decay).")
def generate_command(
    model: Path,
    prompt: str,
    tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    greedy: bool,
    guesses: int,
    beams: int | None,
    length_penalty: float,
    step: int | None,
    ema: bool,
) -> None:
    """Generate text with a MODEL. MODEL is the folder of a run or of an exported model.

    A decoder (GPT) continues the prompt. An encoder-decoder fills masked spans (T5, BART) or generates an answer
    (translation, text-to-text), as in its training. An encoder (BERT, the generator of ELECTRA) predicts masked tokens.

    \b
      megaptm generate runs/gpt2-tiny --prompt 'def read(path' --tokens 200
      megaptm generate runs/t5-tiny --prompt 'The <extra_id_0> sat on the <extra_id_1>.' --greedy
      megaptm generate runs/bart-tiny --prompt 'The <mask> sat on the <mask>.' --greedy
      megaptm generate runs/transformer-tiny --prompt 'one line of text' --beams 4
      megaptm generate exported/bert-tiny --prompt 'The [MASK] sat on the mat.' --guesses 3
    """
    from megaptm.inference.folder import is_run_folder
    from megaptm.report.terminal import TimedLog

    is_run_folder(model, step)  # reports an invalid folder before PyTorch is loaded
    tell = TimedLog(enabled=sys.stderr.isatty(), stream=sys.stderr)
    tell("loading PyTorch")
    from megaptm.inference import generate as generation
    from megaptm.inference.loaded_model import load_model
    from megaptm.inference.prompt import read_prompt, select_use

    tell("reading the checkpoint")
    sampling = generation.Sampling(temperature=0.0 if greedy else temperature, top_k=top_k, seed=seed)
    loaded = load_model(model, step=step, ema=ema)
    use = select_use(loaded, prompt)
    if use == "guess":
        _print_predictions(prompt, generation.predict_masks(loaded, prompt, guesses=guesses))
    elif use == "generate":
        pieces = generation.continue_text(loaded, prompt, tokens=tokens, sampling=sampling)
        first = next(pieces, "")
        click.echo(click.style(printable(prompt), bold=True) + printable(first), nl=False)
        for piece in pieces:
            click.echo(printable(piece), nl=False)
        click.echo()
    elif beams or read_prompt(loaded, prompt)[0] == "text":
        echo(loaded.answer(prompt, tokens=tokens, beams=beams or (1 if greedy else 4), length_penalty=length_penalty))
    else:
        filled = generation.fill_parts(loaded, prompt, tokens=tokens, sampling=sampling)
        click.echo(
            "".join(click.style(printable(text), bold=True) if is_new else printable(text) for text, is_new in filled)
        )


def _print_predictions(prompt: str, predictions: list) -> None:
    from rich.table import Table
    from rich.text import Text

    from megaptm.console import Console

    table = Table(box=None, pad_edge=False, title=Text(prompt, "bold"), title_justify="left")
    table.add_column("mask")
    for column in range(len(predictions[0])):
        table.add_column(f"guess {column + 1}")
    for number, row in enumerate(predictions, 1):
        table.add_row(str(number), *(Text(f"{guess.shown} {guess.probability:.1%}") for guess in row))
    Console().print(table)
