"""`finetune`: a model for a task to start from, or a pruned one to repair."""

from __future__ import annotations

from dataclasses import replace

from headprune.checkpoint.out_folder import open_out
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.finetune import FinetuneOptions
from headprune.jobs.trained import Trained, finish, finished
from headprune.tasks import finetune as training
from headprune.tasks.data import open_new_task
from headprune.tasks.new_model import load_teacher, new_model
from headprune.tasks.processes import is_main_process
from headprune.tasks.recipe import Recipe


def finetune(options: FinetuneOptions, progress: Progress = SILENT) -> Trained | None:
    """Train a model through transformers' Trainer. Of several processes, only the first has a result."""
    out = open_out("finetune", options, holds_model=True)
    if out.is_finished:
        return finished(out) if is_main_process() else None
    opened = open_new_task(options.data, options.model)
    examples, dev = opened.examples("train"), opened.examples("dev")
    parts = {"dev": opened.batches(dev)}
    parts |= {name: opened.batches(opened.examples(name)) for name in options.test or ()}
    start = Recipe(seed=options.seed, batch_size=options.data.batch_size, max_length=options.data.max_length)
    recipe = start.with_options(options.training)
    learner = new_model(
        options.model, opened.task, opened.processor, options.device, options.seed, from_scratch=options.from_scratch
    )
    if options.mask is not None:
        training.cut_to_mask_(learner, options.mask)
    guide = None
    if options.teacher is not None:
        guide = load_teacher(options.teacher, learner, opened.processor, options.device)
    with progress.parts(recipe.steps(examples)) as step:
        trained = training.finetune(
            learner, opened.processor, opened.task, examples, options.out / "checkpoints", recipe, teacher=guide,
            keep_checkpoints=options.keep_checkpoints, force=options.force, watch=(step, progress.tell),
        )  # fmt: skip
    if not is_main_process():
        return None
    facts = {"recipe": recipe.to_dict(), "train_examples": len(examples), "left_out": examples.left_out}
    result = finish(out, trained, opened.processor, opened.task, parts, facts)
    low, high = result.dev.interval
    told = f"{result.metric} {result.dev.score:.4f} ({low:.4f} to {high:.4f}) on {len(dev)} dev examples"
    return replace(result, line=f"{told}; saved to {options.out}")
