"""`headprune train-mt`: a translation model from parallel text."""

from __future__ import annotations

import json as json_module
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from headprune.tasks import Source
    from headprune.tasks.translation import TranslationTask
    from headprune.tasks.translation.presets import Shape

PRESET_NAMES = "tiny, quick, long (for a CPU), iwslt, base, large (the papers')"


@takes(TrainingOptions, "training")
@takes_task(task="translation")
def train_mt(
    data: TaskOptions,
    training: TrainingOptions,
    out: Annotated[Path, typer.Option(help="Folder for the model, its tokenizer and train-mt.json.")],
    preset: Annotated[str, typer.Option(help=f"Shape and recipe to start from: {PRESET_NAMES}.")] = "quick",
    layers: Annotated[int | None, typer.Option(help="Layers of encoder and of decoder.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of every site.")] = None,
    feed_forward: Annotated[int | None, typer.Option(help="Width of the feed-forward blocks.")] = None,
    norm: Annotated[str | None, typer.Option(help="pre (M2M-100's class) or post (Marian's).")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout after every block.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Subwords, for both languages together.")] = None,
    subwords: Annotated[str, typer.Option(help="bpe (of bytes) or unigram (as in SentencePiece).")] = "bpe",
    mask: Annotated[
        Path | None, typer.Option(help="A mask file: train with only these heads (Voita et al., Table 2).")
    ] = None,
    test: Tests = None,
    validate_examples: Annotated[
        int, typer.Option(help="Dev sentences to translate (greedily) after each epoch; 0 for none.")
    ] = 200,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Keep the checkpoint of every epoch (Michel et al., Figure 5).")
    ] = False,
    seed: Seed = 42,
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Train a Transformer on pairs of sentences; an interrupted run goes on where it stopped."""
    check_writable(out)
    from headprune.registry import hint
    from headprune.tasks.finetune import finetune
    from headprune.tasks.processes import is_main_process, main_process_first
    from headprune.tasks.translation import TranslationTask
    from headprune.tasks.translation.presets import PRESETS, new_translator

    if preset not in PRESETS:
        raise DataError(f"No preset called '{preset}'. {hint(preset, PRESETS)}")
    sizes: dict[str, Any] = {
        "layers": layers, "width": width, "heads": heads, "feed_forward": feed_forward, "norm": norm,
        "dropout": dropout, "vocabulary": vocabulary,
    }  # fmt: skip
    shape = replace(PRESETS[preset].shape, **{name: value for name, value in sizes.items() if value is not None})
    longest = min(data.max_length, shape.positions - 2)
    recipe = replace(PRESETS[preset].recipe, seed=seed, max_length=longest).with_options(training)
    task, source = task_and_source(data)
    if not isinstance(task, TranslationTask):
        raise DataError(f"train-mt trains translation models, not {task.name}. Use headprune finetune.")
    with main_process_first():
        tokenizer = _tokenizer(task, source, out / "checkpoints" / "subwords", shape, subwords)
    model = new_translator(shape, tokenizer, seed).to(device)
    task = task.for_processor(tokenizer, model.config)
    if mask is not None:
        cut_to_mask_(model, mask)
    examples = task.load(source, "train", tokenizer, longest)
    parts = {name: task.load(source, name, tokenizer, longest) for name in ("dev", *(test or ()))}
    finetune(
        model, tokenizer, task, examples, out / "checkpoints", recipe, keep_checkpoints=keep_checkpoints, quiet=json,
        validate=_validation(task, parts["dev"], validate_examples, data.batch_size),
    )  # fmt: skip
    if not is_main_process():
        return
    facts = {
        "preset": preset, "shape": shape.to_dict(), "recipe": recipe.to_dict(), "seed": seed,
        "train_examples": len(examples), "left_out": examples.left_out, "steps": recipe.steps(examples),
    }  # fmt: skip
    result = finished("train-mt", out, model, tokenizer, task, parts, data.batch_size, facts)
    if json:
        typer.echo(json_module.dumps(result, indent=1))
        return
    typer.echo(
        f"{scores_told(result, parts, 2)}; trained on {len(examples)} pairs ({examples.left_out} left out: too long or "
        f"of too unequal length) in {result['seconds']:.0f} s; {out}"
    )


def _tokenizer(task: TranslationTask, source: Source, folder: Path, shape: Shape, kind: str) -> Any:
    """One vocabulary for both sides of the training data."""
    from headprune.tasks.translation.pairs import read_pairs
    from headprune.tasks.translation.subwords import subwords_of

    if task.languages is None:
        raise DataError("Which languages? Say source and target with --languages, as en-de.")
    pairs = read_pairs(source, "train", task.languages)
    return subwords_of(folder, [*pairs.sources, *pairs.targets], shape.vocabulary, kind)  # type: ignore[arg-type]


def _validation(task: TranslationTask, dev: Any, count: int, batch_size: int) -> Any:
    """BLEU of greedy translations of some dev sentences: enough to see that a run is going well. None of none."""
    from headprune.tasks import evaluate
    from headprune.tasks.translation.beam_search import SEARCHES

    if not count:
        return lambda model: {}
    greedy = replace(task, search=SEARCHES["greedy"])
    batches = list(dev.sample(count, 0).batches(batch_size))
    return lambda model: {task.metric.name: evaluate(model, batches, greedy).score}
