"""`demo`: the whole job on a small real model and real reviews, with no network."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import open_out
from headprune.files import write_text
from headprune.heads import HeadMap
from headprune.heads.picture import boxed, head_text
from headprune.jobs.evaluate import Evaluated, evaluate
from headprune.jobs.finetune import finetune
from headprune.jobs.job import SILENT, Progress, Result
from headprune.jobs.options.base import TaskOptions, command_words
from headprune.jobs.options.demo import DemoOptions
from headprune.jobs.options.evaluate import EvaluateOptions
from headprune.jobs.options.finetune import FinetuneOptions
from headprune.jobs.options.play import PlayOptions
from headprune.jobs.options.score import ScoreOptions
from headprune.jobs.options.shrink import ShrinkOptions
from headprune.jobs.options.training import TrainingOptions
from headprune.jobs.play import play
from headprune.jobs.score import score
from headprune.jobs.shrink import shrink
from headprune.lab.models.demo import demo_model, demo_reviews
from headprune.shrink import Shrunk
from headprune.structure.find import find_heads
from headprune.typed_json import to_plain

BUDGETS = ("60%", "33%")  # of the MACs, points of a slider; the last is the one that is told of
LABELS = {"0": "negative", "1": "positive"}
Options = TypeVar("Options")
Found = TypeVar("Found", bound=Result | None)


@dataclass(frozen=True, kw_only=True)
class Demonstrated:
    """The model before and after: what was cut and what it bought. Pairs are both models'."""

    model: str = "all-MiniLM-L6-v2"
    data: str = "Rotten Tomatoes sentences"
    train: int
    dev: int
    epochs: float
    seed: int
    heads: tuple[int, int]
    neurons: tuple[int, int]
    parameters: tuple[int, int]
    macs: tuple[int, int]
    largest_difference_from_masked: float
    accuracy: tuple[float, float]  # on the dev reviews, with the interval of the change
    change: tuple[float, float]
    speedup: float
    speedup_spread: tuple[float, float]
    control: float  # the same model against itself
    out: Path
    page: Path
    left: HeadMap | None = None
    version: ClassVar[int] = 3

    def to_dict(self) -> dict[str, Any]:
        stored: dict[str, Any] = to_plain(replace(self, left=None))
        del stored["left"]
        return stored

    def message(self) -> str:
        assert self.left is not None, "the job has looked at the model"
        (heads, kept), (neurons, stay) = self.heads, self.neurons
        parameters, macs = [count / 1e6 for count in self.parameters], [count / 1e6 for count in self.macs]
        (before, after), (low, high) = self.accuracy, self.change
        lines = [
            f"{macs[0] / macs[1]:.1f} times fewer multiply-adds, no training after the cut",
            "",
            f"multiply-adds  {macs[0]:,.0f} M -> {macs[1]:,.0f} M  ({1 - macs[1] / macs[0]:.0%} fewer)",
            f"parameters     {parameters[0]:.1f} M -> {parameters[1]:.1f} M  "
            f"({1 - parameters[1] / parameters[0]:.0%} fewer)",
            f"heads          {heads} -> {kept}",
            f"neurons        {neurons:,} -> {stay:,}",
            f"speed          {self.speedup:.2f} times as fast (itself against itself: {self.control:.2f})",
            f"accuracy       {before:.1%} -> {after:.1%} on {self.dev} reviews that nothing",
            f"               was fitted to (95 % interval of the change: {100 * low:+.1f} to {100 * high:+.1f})",
            "",
            f"the model      {self.out}",
            f"the page       {self.page}",
        ]
        return f"\nheads and neurons left (■ kept, · removed):\n\n{head_text(self.left)}\n\n{boxed(lines)}"


def demo(options: DemoOptions, progress: Progress = SILENT) -> Demonstrated:
    """Fine-tune MiniLM on film reviews, score its heads, shrink it to a third, compare, and make a page of it."""
    out = open_out("demo", options).path
    tuned, scores, small = out / "MiniLM", out / "scores", out / "small"
    _write_reviews(out / "data", options)
    data = TaskOptions(task="reviews", data_dir=out / "data", text="text", label="label", max_length=64)
    _clear_unless(tuned, options)
    steps = _Steps(progress)
    if steps.next("Fine-tune MiniLM on film reviews.", needed=not (tuned / "finetune.json").is_file()):
        training = TrainingOptions(epochs=options.epochs, lr=1e-4, batch_tokens=1000)
        start = FinetuneOptions(model=str(demo_model()), data=data, training=training, seed=options.seed, out=tuned)
        steps.run(finetune, start)
    steps.next("Ask what each head is worth: how much the loss feels it (Michel et al. 2019).")
    few, model = min(options.train, 320), str(tuned)
    steps.run(score, ScoreOptions(model=model, data=replace(data, batch_size=16), examples=few, out=scores))
    steps.next("Shrink: choose heads and neurons, repair what stays, remove the rest. No training.")
    smaller = ShrinkOptions(model=model, data=data, macs=",".join(BUDGETS), calibration=256, out=small)
    shrunk = steps.run(shrink, replace(smaller, force=small.exists()))
    last, place = shrunk.models[-1], Path(shrunk.out[-1])
    steps.next("Compare both models, loaded again, on reviews that nothing was fitted to.")
    both = EvaluateOptions(model=str(place), against=model, data=data, split="dev", out=out / "evaluation")
    scored = steps.run(evaluate, both)
    steps.next("Make a page to play with: move a slider, click a head, watch answers flip.")
    page = PlayOptions(
        model=model, data=data, scores=scores / "scores.json", smaller=[Path(folder) for folder in shrunk.out],
        examples=min(options.dev, 300), steps=8, title="Which heads does MiniLM need?", page=out / "index.html",
    )  # fmt: skip
    steps.run(play, page)
    result = _compared(options, place, last, scored)
    write_text(out / "demo.json", json.dumps(result.to_dict(), indent=1))
    return result


class _Steps:
    """Numbered steps, each with the command that a person would type."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.number = progress, 0

    def next(self, what: str, *, needed: bool = True) -> bool:
        self.number += 1
        self.progress.tell(f"\n{self.number} of 5  {what}{'' if needed else ' Done before.'}")
        return needed

    def run(self, job: Callable[[Options, Progress], Found], options: Options) -> Any:
        self.progress.tell(f"$ headprune {shlex.join([job.__name__, *command_words(options)])}")
        result = job(options, self.progress)
        if result is not None:  # another process has it
            self.progress.tell(result.message())
        return result


def _write_reviews(folder: Path, options: DemoOptions) -> None:
    """train.csv and dev.csv: different sentences of Rotten Tomatoes reviews."""
    with demo_reviews().open(encoding="utf-8", newline="") as file:
        rows = {row["text"]: row["label"] for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"}
    texts = list(rows)
    order = np.random.default_rng(options.seed).permutation(len(texts))[: options.train + options.dev]
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", order[: options.train]), ("dev", order[options.train :])):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([("text", "label"), *((texts[row], LABELS[rows[texts[row]]]) for row in part)])


def _clear_unless(tuned: Path, options: DemoOptions) -> None:
    """Keep a model, finished or not, of an earlier demo with the same settings; what others left is in the way."""
    settings = {"train": options.train, "dev": options.dev, "epochs": options.epochs, "seed": options.seed}
    note, text = tuned.with_name("settings.json"), json.dumps(settings)
    if not note.is_file() or note.read_text() != text:
        shutil.rmtree(tuned, ignore_errors=True)
        note.write_text(text)


def _compared(options: DemoOptions, place: Path, shrunk: Shrunk, scored: Evaluated) -> Demonstrated:
    """The smaller model against the tuned one: size, speed and accuracy."""
    assert scored.against is not None, "two were compared"
    assert shrunk.speed is not None, "it was timed"
    first, second = shrunk.before, shrunk.after
    return Demonstrated(
        train=options.train, dev=options.dev, epochs=options.epochs, seed=options.seed,
        heads=(first.heads, second.heads), neurons=(first.neurons, second.neurons),
        parameters=(first.parameters, second.parameters), macs=(first.macs, second.macs),
        largest_difference_from_masked=shrunk.difference or 0.0, accuracy=(scored.against.score, scored.score),
        change=scored.against.interval, speedup=shrunk.speed.speedup, speedup_spread=shrunk.speed.spread,
        control=shrunk.speed.control, out=place, page=options.out / "index.html",
        left=find_heads(load_model(str(place), "cpu"), neurons=True),
    )  # fmt: skip
