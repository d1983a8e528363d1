"""`headprune train-lm`: a language model with a memory from running text."""

from __future__ import annotations

import json as json_module
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headprune.checkpoint.load_model import check_writable
from headprune.cli.options import Device, Json, Seed
from headprune.cli.trained import finished, scores_told
from headprune.cli.widening import takes, takes_task
from headprune.errors import DataError
from headprune.jobs.options.task import TaskOptions
from headprune.jobs.options.training import Tests, TrainingOptions
from headprune.tasks.data import task_and_source
from headprune.tasks.finetune import cut_to_mask_

PRESET_NAMES = "tiny, small (for a CPU), wikitext-103, text8 (Shim et al.'s)"


@takes(TrainingOptions, "training")
@takes_task(task="stream-lm", batch_size=0, max_length=0)
def train_lm(
    data: TaskOptions,
    training: TrainingOptions,
    out: Annotated[Path, typer.Option(help="Folder for the model, its vocabulary and train-lm.json.")],
    by: Annotated[
        str, typer.Option(help="What a token is: words, characters, letters (a to z and space, as Text8), bytes.")
    ] = "characters",
    preset: Annotated[str, typer.Option(help=f"Shape and recipe to start from: {PRESET_NAMES}.")] = "small",
    kind: Annotated[str | None, typer.Option(help="all-attention or transformer-xl.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of every layer.")] = None,
    persistent: Annotated[
        int | None, typer.Option(help="Persistent vectors a head; width of the feed-forward part in transformer-xl.")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="Positions that a layer remembers.")] = None,
    positions: Annotated[str | None, typer.Option(help="Vectors of distances: learned or sinusoidal.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout of vectors and of what layers say.")] = None,
    attention_dropout: Annotated[float | None, typer.Option(help="Dropout of attention.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Keep so many symbols; the others become <unk>.")] = None,
    mask: Annotated[Path | None, typer.Option(help="A mask file: train with only these heads.")] = None,
    test: Tests = None,
    validate_examples: Annotated[
        int, typer.Option(help="Dev segments to look at with every checkpoint; 0 for none.")
    ] = 100,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Keep every checkpoint, not only the last.")
    ] = False,
    seed: Seed = 42,
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Train an All-attention or Transformer-XL language model; an interrupted run goes on where it stopped.

    --batch-size is the number of streams read side by side, --max-length that of tokens in a segment; 0 leaves both as
    the preset has them.
    """
    check_writable(out)
    from headprune.registry import hint
    from headprune.tasks import evaluate
    from headprune.tasks.finetune import finetune
    from headprune.tasks.processes import is_main_process, main_process_first
    from headprune.tasks.text import StreamTask
    from headprune.tasks.text.corpus import read_part
    from headprune.tasks.text.presets import PRESETS, new_language_model
    from headprune.tasks.text.streams import StreamExamples
    from headprune.tasks.text.symbols import symbols_of

    if preset not in PRESETS:
        raise DataError(f"No preset called '{preset}'. {hint(preset, PRESETS)}")
    sizes: dict[str, Any] = {
        "kind": kind, "layers": layers, "width": width, "heads": heads, "persistent": persistent, "memory": memory,
        "positions": positions, "dropout": dropout, "attention_dropout": attention_dropout,
    }  # fmt: skip
    start = PRESETS[preset]
    shape = replace(start.shape, **{name: value for name, value in sizes.items() if value is not None})
    recipe = replace(
        start.recipe, seed=seed, batch_size=data.batch_size or start.recipe.batch_size,
        max_length=data.max_length or memory or start.recipe.max_length,
    ).with_options(training)  # fmt: skip
    task, source = task_and_source(replace(data, batch_size=recipe.batch_size, max_length=recipe.max_length))
    if not isinstance(task, StreamTask):
        raise DataError(f"train-lm trains on running text, not {task.name}. Use headprune finetune.")
    with main_process_first():
        text = read_part(source, "train", by)  # type: ignore[arg-type]
        tokenizer = symbols_of(out / "checkpoints" / "symbols", text, by, vocabulary)  # type: ignore[arg-type]
    model = new_language_model(shape, tokenizer, seed).to(device)
    task = task.for_processor(tokenizer, model.config)
    if mask is not None:
        cut_to_mask_(model, mask)
    examples = task.load(source, "train", tokenizer, recipe.max_length)
    assert isinstance(examples, StreamExamples), "a StreamTask loads streams"
    parts = {name: task.load(source, name, tokenizer, recipe.max_length) for name in ("dev", *(test or ()))}
    looked_at = list(parts["dev"].sample(validate_examples, 0).batches(recipe.batch_size)) if validate_examples else []
    finetune(
        model, tokenizer, task, examples, out / "checkpoints", recipe, keep_checkpoints=keep_checkpoints, quiet=json,
        validate=lambda model: {task.metric.name: evaluate(model, looked_at, task).score} if looked_at else {},
    )  # fmt: skip
    if not is_main_process():
        return
    facts = {
        "by": by, "symbols": len(tokenizer), "preset": preset, "shape": shape.to_dict(), "recipe": recipe.to_dict(),
        "seed": seed, "train_tokens": len(examples.segments.tokens), "steps": recipe.steps(examples),
    }  # fmt: skip
    result = finished("train-lm", out, model, tokenizer, task, parts, recipe.batch_size, facts)
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    typer.echo(
        f"{scores_told(result, parts, 3)}; {result['steps']} steps on {result['train_tokens']} tokens in "
        f"{result['seconds']:.0f} s; {out}"
    )
