"""Pages of toy models: a classifier that was trained, and a language model."""

from __future__ import annotations

from headprune.jobs.options.base import TaskOptions
from headprune.jobs.options.play import PlayOptions
from headprune.jobs.options.shrink import ShrinkOptions
from headprune.jobs.play import play
from headprune.jobs.shrink import shrink


def task(root, **more):
    return TaskOptions(task="sst2", data_dir=root / "data", max_length=16, batch_size=20, **more)


def write_page(root, folder):
    """The page of a toy classifier and of two smaller ones; gives what was recorded."""
    model = str(root / "tuned")
    made = shrink(ShrinkOptions(model=model, data=task(root), macs="80%,60%", length=16, out=folder / "small"))
    options = PlayOptions(
        model=model, data=task(root), scores=root / "scores" / "scores.json", steps=4, page=folder / "page.html",
        smaller=[folder / "small" / name.rpartition("/")[2] for name in made.out],
    )  # fmt: skip
    return play(options).content
