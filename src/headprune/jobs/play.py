"""`play`: take heads away and watch the answers change, in a browser on this machine, or on a page without a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import open_out
from headprune.errors import CheckpointError, FileFormatError
from headprune.files import loads, read_text, write_text
from headprune.heads import HeadMap, HeadScores
from headprune.heads.stored import read_scores
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.play import PlayOptions
from headprune.jobs.shrink import RESULT
from headprune.lab.playground import page
from headprune.lab.playground.content import Content
from headprune.lab.playground.record import Recorder, Smaller
from headprune.lab.playground.server import PlayServer
from headprune.lab.playground.session import SHARES, TEXT, Session
from headprune.scoring import score
from headprune.shrink import Shrunk
from headprune.structure.find import find_heads
from headprune.tasks.classification import TextTask
from headprune.tasks.data import load_processor, open_task
from headprune.tasks.metrics import metrics
from headprune.typed_json import from_plain


@dataclass(frozen=True)
class Played:
    """What was served, or the page that was written."""

    content: Content | None
    place: str
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        ways = self.content.ways if self.content is not None else ()
        return {"place": self.place, "points": {way.name: len(way.points) for way in ways}}

    def message(self) -> str:
        if self.content is None:
            return f"stopped; {self.place} is no longer served"
        points = sum(len(way.points) for way in self.content.ways)
        return f"{points} measured points, {len(self.content.examples)} examples; open {self.place}"


def play(options: PlayOptions, progress: Progress = SILENT) -> Played:
    """Serve a model to this machine's browser; with --page, write what a browser can show without the model."""
    options.check()
    if options.page is not None:
        content = _recorded(options, progress)
        write_text(options.page, page(content))
        write_text(options.page.with_suffix(".json"), content.to_json())
        return Played(content, str(options.page))
    open_out("play", options)
    server = _server(options, progress)
    progress.tell(f"open {server.address}\nstop with Ctrl-C; models are saved below {options.out}")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return Played(None, server.address)
    finally:
        server.server_close()
    return Played(None, server.address)


def _server(options: PlayOptions, progress: Progress) -> PlayServer:
    with progress.steps(3 + len(SHARES)) as step:
        step("loading the model")
        model = load_model(options.model, options.device, trust_remote_code=options.trust_remote_code)
        tokenizer = load_processor(TextTask(name="play", metric=metrics["accuracy"], first=()), options.model)
        step("finding heads")
        heads = find_heads(model)
        scores = _scores(options, model, heads)
        session = Session(
            model=model, name=options.model, tokenizer=tokenizer, scores=scores, heads=_scored(model, heads, scores),
            out=options.out, text=options.sentence or TEXT, tell=step,
        )  # fmt: skip
        return PlayServer(session, options.port)


def _scores(options: PlayOptions, model: nn.Module, heads: HeadMap) -> HeadScores:
    if options.scores is not None:
        return read_scores(options.scores)
    return score(model, heads=heads, method="magnitude")


def _scored(model: nn.Module, heads: HeadMap, scores: HeadScores) -> HeadMap:
    """With neurons, if these were scored, too."""
    every = find_heads(model, neurons=True)
    return every if any(site.id in scores.scores for site in every.neurons) else heads


def _recorded(options: PlayOptions, progress: Progress) -> Content:
    """Everything that a page without a server shows."""
    data = open_task(options.data, options.model)
    model = data.load_model(options.model, options.device)
    rows = data.examples(options.split, options.examples, options.seed)
    smaller = [_smaller(folder, options) for folder in options.smaller or ()]
    total = options.steps + len(smaller) + 4 + len(find_heads(model).attention.sites)
    with progress.steps(total) as step:
        recorder = Recorder(model, data, rows, seed=options.seed, tell=step)
        heads = recorder.heads
        scores = _scores(options, model, heads)
        ways = [recorder.by_heads(scores, options.steps, _command(options))]
        ways += [recorder.by_budget(smaller)] if smaller else []
        name = Path(options.model).name
        return recorder.content(
            ways, scores, title=options.title or f"Which heads does {name} need?", split=options.split,
            about=f"{name} on {len(rows)} examples of {options.data.task} ({options.split}), seed {options.seed}. "
            "Every point of the sliders was measured.",
        )  # fmt: skip


def _command(options: PlayOptions) -> str:
    scores = f"--scores {options.scores}" if options.scores is not None else "--method magnitude"
    return f"headprune prune {options.model} {scores} --prune {{count}} --out small"


def _smaller(folder: Path, options: PlayOptions) -> Smaller:
    """A folder of `shrink`: its model and what was done to it."""
    if not (folder / RESULT).is_file():
        raise CheckpointError(f"'{folder}' holds no {RESULT}: expected a folder that `headprune shrink` wrote.")
    try:
        shrunk = from_plain(Shrunk, loads(read_text(folder / RESULT, "shrink")))
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"'{folder / RESULT}' is damaged ({error}).") from error
    budget, _, amount = shrunk.budget.partition(" ")
    command = f"headprune shrink {options.model} --{budget.replace('_', '-')} {amount} --task … --out small"
    return Smaller(model=load_model(str(folder), options.device), shrunk=shrunk, command=command)
