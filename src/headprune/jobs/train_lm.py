"""`train-lm`: a language model with a memory from running text."""

from __future__ import annotations

from dataclasses import replace

from headprune.checkpoint.out_folder import open_out
from headprune.errors import DataError
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.train_lm import TrainLmOptions
from headprune.jobs.trained import Trained, finish, finished, training_facts
from headprune.registry import hint
from headprune.tasks import evaluate
from headprune.tasks.data import task_and_source
from headprune.tasks.finetune import cut_to_mask_, finetune
from headprune.tasks.processes import is_main_process, main_process_first
from headprune.tasks.text import StreamTask
from headprune.tasks.text.corpus import read_part
from headprune.tasks.text.presets import PRESETS, new_language_model
from headprune.tasks.text.streams import StreamExamples
from headprune.tasks.text.symbols import symbols_of

SIZES = (
    "kind", "layers", "width", "heads", "persistent", "memory", "positions", "dropout", "attention_dropout",
)  # fmt: skip


def train_lm(options: TrainLmOptions, progress: Progress = SILENT) -> Trained | None:
    """Train an All-attention or Transformer-XL model. Of several processes, only the first has a result."""
    out = open_out("train-lm", options, holds_model=True)
    if out.is_finished:
        return finished(out) if is_main_process() else None
    if options.preset not in PRESETS:
        raise DataError(f"No preset called '{options.preset}'. {hint(options.preset, PRESETS)}")
    start, data, checkpoints = PRESETS[options.preset], options.data, options.out / "checkpoints"
    given = {name: value for name in SIZES if (value := getattr(options, name)) is not None}
    shape = replace(start.shape, **given)
    recipe = replace(
        start.recipe, seed=options.seed, batch_size=data.batch_size or start.recipe.batch_size,
        max_length=data.max_length or options.memory or start.recipe.max_length,
    ).with_options(options.training)  # fmt: skip
    task, source = task_and_source(replace(data, batch_size=recipe.batch_size, max_length=recipe.max_length))
    if not isinstance(task, StreamTask):
        raise DataError(f"train-lm trains on running text, not {task.name}. Use headprune finetune.")
    with main_process_first():
        text = read_part(source, "train", options.by)  # type: ignore[arg-type]
        tokenizer = symbols_of(checkpoints / "symbols", text, options.by, options.vocabulary)  # type: ignore[arg-type]
    model = new_language_model(shape, tokenizer, options.seed).to(options.device)
    task = task.for_processor(tokenizer, model.config)
    if options.mask is not None:
        cut_to_mask_(model, options.mask)
    examples = task.load(source, "train", tokenizer, recipe.max_length)
    assert isinstance(examples, StreamExamples), "a StreamTask loads streams"
    parts = {name: task.load(source, name, tokenizer, recipe.max_length) for name in ("dev", *(options.test or ()))}
    seen = parts["dev"].sample(options.validate_examples, 0) if options.validate_examples else None
    looked_at = list(seen.batches(recipe.batch_size)) if seen is not None else []
    finetune(
        model, tokenizer, task, examples, checkpoints, recipe, keep_checkpoints=options.keep_checkpoints,
        quiet=progress.quiet, force=options.force,
        validate=lambda model: {task.metric.name: evaluate(model, looked_at, task).score} if looked_at else {},
    )  # fmt: skip
    if not is_main_process():
        return None
    facts = {
        "by": options.by, "symbols": len(tokenizer), "preset": options.preset, "shape": shape.to_dict(),
        "recipe": recipe.to_dict(), "seed": options.seed, "train_tokens": len(examples.segments.tokens),
        **training_facts(checkpoints, model, recipe.steps(examples)),
    }  # fmt: skip
    batches = {name: list(part.batches(recipe.batch_size)) for name, part in parts.items()}
    result = finish(out, model, tokenizer, task, batches, facts)
    line = (
        f"{result.scores(3)}; {result.facts['steps']} steps on {result.facts['train_tokens']} tokens in "
        f"{result.facts['seconds']:.0f} s; {options.out}"
    )
    return replace(result, line=line)
