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
from headprune.cost.measurement import Timing, measure
from headprune.files import write_text
from headprune.heads import HeadMap
from headprune.heads.picture import head_text
from headprune.jobs.curve import Curved, curve
from headprune.jobs.evaluate import Evaluated, evaluate
from headprune.jobs.finetune import finetune
from headprune.jobs.job import SILENT, Progress, Result
from headprune.jobs.options.base import TaskOptions, command_words
from headprune.jobs.options.curve import CurveOptions
from headprune.jobs.options.demo import DemoOptions
from headprune.jobs.options.evaluate import EvaluateOptions
from headprune.jobs.options.finetune import FinetuneOptions
from headprune.jobs.options.score import ScoreOptions
from headprune.jobs.options.shrink import ShrinkOptions
from headprune.jobs.options.training import TrainingOptions
from headprune.jobs.score import Scored, score
from headprune.jobs.shrink import shrink
from headprune.lab.analysis.pictures import curve_picture, heat_map, write_page
from headprune.lab.models.demo import demo_model, demo_reviews
from headprune.shrink import Shrunk
from headprune.structure.find import find_heads
from headprune.typed_json import to_plain

MACS_LEFT = "30%"
Options = TypeVar("Options")
Found = TypeVar("Found", bound=Result | None)


@dataclass(frozen=True, kw_only=True)
class Demonstrated:
    """The model before and after, the second loaded again: what was cut and what it bought. Pairs are both models'."""

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
    timing: Timing
    out: Path
    page: Path
    sites: tuple[HeadMap, HeadMap] | None = None
    version: ClassVar[int] = 2

    def to_dict(self) -> dict[str, Any]:
        stored: dict[str, Any] = to_plain(replace(self, sites=None))
        del stored["sites"]
        return stored

    def facts(self) -> list[tuple[str, str]]:
        (heads, left), timing = self.heads, self.timing
        parameters, macs = [count / 1e6 for count in self.parameters], [count / 1e9 for count in self.macs]
        return [
            ("heads", f"{heads} -> {left}; the smaller model answers as the masked one "
                      f"({self.largest_difference_from_masked:.0e})"),
            ("neurons", f"{self.neurons[0]:,} -> {self.neurons[1]:,}"),
            ("parameters", f"{parameters[0]:.1f} M -> {parameters[1]:.1f} M"),
            ("MACs", f"{macs[0]:.2f} G -> {macs[1]:.2f} G (batch 8, length 64)"),
            ("speed", f"{timing.speedup:.2f} times the original's (median of {timing.repeats} interleaved rounds; "
                      f"same model against itself: {timing.control:.2f})"),
            ("accuracy", f"{self.accuracy[0]:.1%} -> {self.accuracy[1]:.1%} on {self.dev} reviews, without training "
                         f"(95 % interval of the change: {self.change[0]:+.1%} to {self.change[1]:+.1%})"),
            ("saved to", str(self.out)),
        ]  # fmt: skip

    def message(self) -> str:
        assert self.sites is not None, "the job has looked at the models"
        return "\n".join([
            f"\nheads left (■ kept, · removed):\n\n{head_text(self.sites[1])}\n",
            *(f"{name:12}{value}" for name, value in self.facts()),
            f"\nopen {self.page} to see which heads matter and how far pruning goes",
        ])  # fmt: skip


def demo(options: DemoOptions, progress: Progress = SILENT) -> Demonstrated:
    """Fine-tune MiniLM on film reviews, score its heads, draw the curve, shrink it, reload, compare and time."""
    out = open_out("demo", options).path
    tuned, small = out / "tuned", out / "small"
    _write_reviews(out / "data", options)
    data = TaskOptions(task="reviews", data_dir=out / "data", text="text", label="label", max_length=64)
    _clear_unless(tuned, options)
    if not (tuned / "finetune.json").is_file():
        training = TrainingOptions(epochs=options.epochs, lr=1e-4)
        start = FinetuneOptions(model=str(demo_model()), data=data, training=training, seed=options.seed, out=tuned)
        _run(finetune, start, progress)
    scoring = ScoreOptions(
        model=str(tuned), data=replace(data, batch_size=16), examples=min(options.train, 1000), out=out / "scores"
    )
    scored = _run(score, scoring, progress)
    orders = [out / "scores" / "scores.json"]
    curved = _run(
        curve, CurveOptions(model=str(tuned), data=data, scores=orders, random=2, out=out / "curve"), progress
    )
    smaller = ShrinkOptions(model=str(tuned), data=data, macs=MACS_LEFT, batch=8, length=64, out=small)
    (shrunk,) = _run(shrink, replace(smaller, force=small.exists()), progress).models
    both = EvaluateOptions(model=str(small), against=str(tuned), data=data, split="dev", out=out / "evaluation")
    result = _compared(options, tuned, small, shrunk, _run(evaluate, both, progress))
    _write_page(result, scored, curved)
    write_text(out / "demo.json", json.dumps(result.to_dict(), indent=1))
    return result


def _run(job: Callable[[Options, Progress], Found], options: Options, progress: Progress) -> Found:
    """A job, shown as a person would type it."""
    progress.tell(f"$ headprune {shlex.join([job.__name__, *command_words(options)])}")
    result = job(options, progress)
    if result is not None:  # another process has it
        progress.tell(result.message())
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
            writer.writerows([("text", "label"), *((texts[row], rows[texts[row]]) for row in part)])


def _clear_unless(tuned: Path, options: DemoOptions) -> None:
    """Keep a model, finished or not, of an earlier demo with the same settings; what others left is in the way."""
    settings = {"train": options.train, "dev": options.dev, "epochs": options.epochs, "seed": options.seed}
    note, text = tuned.with_name("settings.json"), json.dumps(settings)
    if not note.is_file() or note.read_text() != text:
        shutil.rmtree(tuned, ignore_errors=True)
        note.write_text(text)


def _compared(options: DemoOptions, tuned: Path, small: Path, shrunk: Shrunk, scored: Evaluated) -> Demonstrated:
    """The smaller model, loaded again, against the tuned one: size, speed and accuracy."""
    before, after = load_model(str(tuned), "cpu"), load_model(str(small), "cpu")
    heads, left = find_heads(before), find_heads(after)
    timing = measure(after, batch=8, length=64, against=before, repeats=9).timing
    assert timing is not None, "nine rounds were asked for"
    assert scored.against is not None, "two were compared"
    first, second = shrunk.before, shrunk.after
    return Demonstrated(
        train=options.train, dev=options.dev, epochs=options.epochs, seed=options.seed,
        heads=(len(heads), len(left)), neurons=(first.neurons, second.neurons),
        parameters=(first.parameters, second.parameters), macs=(first.macs, second.macs),
        largest_difference_from_masked=shrunk.difference or 0.0, accuracy=(scored.against.score, scored.score),
        change=scored.against.interval, timing=timing, out=small, page=options.out / "index.html", sites=(heads, left),
    )  # fmt: skip


def _write_page(result: Demonstrated, scored: Scored, curved: Curved) -> None:
    """One page: what was cut and what it bought, the heat map of scores, the curves."""
    assert result.sites is not None, "the job has looked at the models"
    scores, (heads, left) = scored.scores, result.sites
    kept: dict[str, list[float | None]] = {
        site.id: [float(head in site.kept) for head in range(site.original_num_heads)] for site in left
    }
    figures = [
        heat_map(heads, scores.normalized(), title=f"What each head is worth: {scores.method}", name=scores.method),
        heat_map(heads, kept, title="Which heads were kept (1) and removed (0)", name="kept"),
        curve_picture(curved.curves, title="Accuracy on the dev reviews as heads are masked"),
    ]
    write_page(figures, result.page, title="headprune demo: MiniLM on film reviews", facts=result.facts())
