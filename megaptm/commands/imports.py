"""`megaptm import`: a run that begins from a model made elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.group("import")
def imports() -> None:
    """Begin a run from a model of another library.

    \b
      megaptm import hf exported/gpt2-tiny runs/again
    """


@imports.command("hf")
@click.argument("source")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def hugging_face(source: str, run: Path, overrides: tuple[str, ...]) -> None:
    """Make the run folder RUN, whose step 0 is the model in SOURCE: a folder, or a name on the hub.

    Models of the families here that transformers has, saved as safetensors. A head that a model came without, as
    BertForMaskedLM does without the sentence head, begins afresh. Any key of the config can be set, until the first
    checkpoint also by `megaptm train`; model.family=spanbert says which it is where several are of one type there. No
    code of the model's own is run.

    \b
      megaptm import hf exported/gpt2-tiny runs/again data.mix='{corpora/books: 1}'
      megaptm train runs/again train.steps=500

    \b
    Text for it has to be read by its own tokenizer:
      megaptm import hf openai-community/gpt2 runs/gpt2
      megaptm corpus build 'books/**/*.txt' out=runs/gpt2/corpus tokenizer=runs/gpt2/tokenizer
      megaptm evaluate runs/gpt2
    """
    from megaptm.report.terminal import TimedLog

    tell = TimedLog(enabled=sys.stderr.isatty(), stream=sys.stderr)  # for people, who wait
    tell("loading PyTorch and transformers")
    from megaptm.config import resolve_model
    from megaptm.hub.import_run import import_run
    from megaptm.plan.count import count
    from megaptm.shell import command_line, typed_path

    tell(f"reading {source}")
    done = import_run(source, run, overrides)
    config = done.config
    if done.fresh:
        click.echo(f"{source} came without {', '.join(done.fresh)}: begun afresh, from train.seed={config.train.seed}")
    if done.otherwise:
        said = " and ".join(done.otherwise)
        click.echo(f"{source} was trained with {said}: here one rate is for all, model.dropout={config.model.dropout}")
    spec = resolve_model(config)
    size = f"{config.model.family}/{config.model.size}, {count(spec):,} parameters"
    click.echo(f"{source} is step 0 of {click.format_filename(run)} ({size})")
    folder = typed_path(run.absolute())
    lines = [["train", folder]]
    if str(run.absolute() / "corpus") in config.data.mix:  # nobody named another: it is yet to be built
        out, tokenizer = f"out={folder}/corpus", f"tokenizer={folder}/tokenizer"
        # Labels are numbered in the order of their folders, which must be those of the model.
        of_images, of_text = ["images", "FOLDER_OF_LABELS", out], ["build", "FOLDER_OF_TEXT", out, tokenizer]
        lines.insert(0, ["corpus", *(of_images if spec.family.reads_images else of_text)])
    click.echo("\n".join(["next:", *(f"  {command_line(line)}" for line in lines)]))
