"""Records and lines that no model was trained for."""

from __future__ import annotations

import json
import re

from headprune.jobs.trained import Trained
from headprune.lab.experiments.store import Record
from headprune.lab.experiments.trial import Trial
from headprune.lab.report.lines import Line, Point
from headprune.tasks import ScoreSummary


def data_of(page, name):
    return json.loads(re.search(rf'id="{name}-data">(.*?)</script>', page, re.S)[1])


def trained(step, values, seed, kept, score, every=12):
    """A record of a model that was trained with so many heads."""
    params = {"command": "finetune", "arguments": ["{cut}"], "options": values, "values": values}
    dev = ScoreSummary("accuracy", score, (score, score), 0.95, 10, None)
    heads = {"encoder.0": list(range(kept))}
    found = Trained(task="sst2", metric="accuracy", kept=heads, original={"encoder.0": every}, dev=dev)
    result = found.to_dict()
    return Record(trial=Trial(work="command", params=params, seed=seed, step=step), status="done", result=result)


def line(name, *scores, share=0.5):
    whole = Point(12, 0.0, dict.fromkeys(range(len(scores)), (0.9,)))
    points = (whole, Point(6, share, {seed: (score,) for seed, score in enumerate(scores)}))
    component, _, order = name.rpartition(", ")
    return Line(name, points, order, (component, ""))
