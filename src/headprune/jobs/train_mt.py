"""`train-mt`: a translation model from parallel text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headprune.checkpoint.out_folder import open_out
from headprune.errors import DataError
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.train_mt import TrainMtOptions
from headprune.jobs.trained import Trained, finish, finished, training_facts
from headprune.registry import hint
from headprune.tasks import Examples, Source, evaluate
from headprune.tasks.data import task_and_source
from headprune.tasks.finetune import cut_to_mask_, finetune
from headprune.tasks.processes import is_main_process, main_process_first
from headprune.tasks.trainers import Validate
from headprune.tasks.translation import TranslationTask
from headprune.tasks.translation.beam_search import SEARCHES
from headprune.tasks.translation.pairs import read_pairs
from headprune.tasks.translation.presets import PRESETS, Shape, new_translator
from headprune.tasks.translation.subwords import subwords_of
from headprune.types import Tokenizer

SIZES = ("layers", "width", "heads", "feed_forward", "norm", "dropout", "vocabulary")


def train_mt(options: TrainMtOptions, progress: Progress = SILENT) -> Trained | None:
    """Train a Transformer on pairs of sentences. Of several processes, only the first has a result."""
    out = open_out("train-mt", options, holds_model=True)
    if out.is_finished:
        return finished(out) if is_main_process() else None
    if options.preset not in PRESETS:
        raise DataError(f"No preset called '{options.preset}'. {hint(options.preset, PRESETS)}")
    start, checkpoints = PRESETS[options.preset], options.out / "checkpoints"
    given = {name: value for name in SIZES if (value := getattr(options, name)) is not None}
    shape = replace(start.shape, **given)
    longest = min(options.data.max_length, shape.positions - 2)
    recipe = replace(start.recipe, seed=options.seed, max_length=longest).with_options(options.training)
    task, source = task_and_source(options.data)
    if not isinstance(task, TranslationTask):
        raise DataError(f"train-mt trains translation models, not {task.name}. Use headprune finetune.")
    with main_process_first():
        tokenizer = _tokenizer(task, source, checkpoints / "subwords", shape, options.subwords)
    model = new_translator(shape, tokenizer, options.seed).to(options.device)
    task = task.for_processor(tokenizer, model.config)
    if options.mask is not None:
        cut_to_mask_(model, options.mask)
    examples = task.load(source, "train", tokenizer, longest)
    parts = {name: task.load(source, name, tokenizer, longest) for name in ("dev", *(options.test or ()))}
    size = options.data.batch_size
    finetune(
        model, tokenizer, task, examples, checkpoints, recipe, keep_checkpoints=options.keep_checkpoints,
        quiet=progress.quiet, force=options.force,
        validate=_validation(task, parts["dev"], options.validate_examples, size),
    )  # fmt: skip
    if not is_main_process():
        return None
    facts = {
        "preset": options.preset, "shape": shape.to_dict(), "recipe": recipe.to_dict(), "seed": options.seed,
        "train_examples": len(examples), "left_out": examples.left_out,
        **training_facts(checkpoints, model, recipe.steps(examples)),
    }  # fmt: skip
    batches = {name: list(part.batches(size)) for name, part in parts.items()}
    result = finish(out, model, tokenizer, task, batches, facts)
    line = (
        f"{result.scores(2)}; trained on {len(examples)} pairs ({examples.left_out} left out: too long or of too "
        f"unequal length) in {result.facts['seconds']:.0f} s; {options.out}"
    )
    return replace(result, line=line)


def _tokenizer(task: TranslationTask, source: Source, folder: Path, shape: Shape, kind: str) -> Tokenizer:
    """One vocabulary for both sides of the training data."""
    if task.languages is None:
        raise DataError("Which languages? Say source and target with --languages, as en-de.")
    pairs = read_pairs(source, "train", task.languages)
    return subwords_of(folder, [*pairs.sources, *pairs.targets], shape.vocabulary, kind)  # type: ignore[arg-type]


def _validation(task: TranslationTask, dev: Examples, count: int, batch_size: int) -> Validate:
    """BLEU of greedy translations of some dev sentences: enough to see that a run is going well. None of none."""
    if not count:
        return lambda model: {}
    greedy = replace(task, search=SEARCHES["greedy"])
    batches = list(dev.sample(count, 0).batches(batch_size))
    return lambda model: {task.metric.name: evaluate(model, batches, greedy).score}
