"""Measurements of models as work: how fast, and how large a part of a block a head is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headprune.checkpoint.load_model import load_model
from headprune.lab.experiments.placeholders import resolved
from headprune.lab.experiments.work import OUT, Context, Result, work
from headprune.typed_json import to_plain

if TYPE_CHECKING:
    import random

    from torch import nn


@dataclass(frozen=True)
class MeasuredSpeed:
    """How many times as fast a pruned model is, and the whole one against itself; each with its quartiles."""

    speedup: float
    speedup_quartiles: tuple[float, float]
    control: float
    control_quartiles: tuple[float, float]
    examples_per_second: Mapping[str, float]


@work("speed", alone=True)
def speed(context: Context) -> Result:
    """A pruned model against the whole one, in interleaved rounds with an A/A control (Michel et al., Table 4)."""
    import torch

    from headprune.cost.measurement import interleaved, ratio
    from headprune.structure.dummy_inputs import example_inputs
    from headprune.structure.run import to_model

    options = resolved(dict(context.params["options"]), context.places)
    whole, pruned = (load_model(str(options[name]), "cpu") for name in ("whole", "pruned"))
    inputs = example_inputs(whole, batch=int(options["batch"]), length=int(options["length"]))

    def reading(model: nn.Module) -> Callable[[], None]:
        moved = to_model(model, inputs)

        def run() -> None:
            with torch.inference_mode():
                model(**moved)

        return run

    times = interleaved([reading(whole), reading(whole), reading(pruned)], int(options["repeats"]), warmup=1)
    speedup, *quartiles = ratio(times[0], times[2])
    control, *chance = ratio(times[0], times[1])
    found = MeasuredSpeed(
        speedup, (quartiles[0], quartiles[1]), control, (chance[0], chance[1]),
        {name: int(options["batch"]) / min(times[place]) for name, place in (("whole", 0), ("pruned", 2))},
    )  # fmt: skip
    return dict(to_plain(found))


@work("noisy-pairs")
def noisy_pairs(context: Context) -> Result:
    """Pairs whose source is written carelessly, as `noisy.SOURCE` and `noisy.TARGET`: a stand-in for MTNT, whose noise
    is that of people who type in a hurry (Michel and Neubig 2018). In lower case, without commas and full stops, and
    every sixth word has two letters swapped or one lost."""
    import random

    from headprune.files import write_text
    from headprune.tasks.tables import Source
    from headprune.tasks.translation.pairs import Languages, read_pairs

    options = resolved(dict(context.params["options"]), context.places)
    languages = Languages.parse(str(options["languages"]))
    found = read_pairs(Source(Path(str(options["pairs"])), None), str(options["split"]), languages)
    count = min(len(found), int(options["examples"]))
    out, draws = context.folder / OUT, random.Random(0)
    write_text(
        out / f"noisy.{languages.source}", "".join(_careless(text, draws) + "\n" for text in found.sources[:count])
    )
    write_text(out / f"noisy.{languages.target}", "".join(text + "\n" for text in found.targets[:count]))
    return {"sentences": count}


def _careless(text: str, draws: random.Random) -> str:
    words = text.lower().replace(",", "").rstrip(".").split()
    for place, word in enumerate(words):
        if len(word) > 3 and draws.random() < 1 / 6:
            at = draws.randrange(1, len(word) - 2)
            swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
            words[place] = swapped if draws.random() < 0.5 else word[:at] + word[at + 1 :]
    return " ".join(words)


@work("head-share", exact=True)
def head_share(context: Context) -> Result:
    """What share of its block's weights leaves with the first head of each site (Michel et al., section 3.1)."""
    from headprune.heads import HeadMask
    from headprune.structure.find import find_heads
    from headprune.surgery.prune import temporarily_pruned

    options = resolved(dict(context.params["options"]), context.places)
    model = load_model(str(options["model"]), "cpu")
    heads = find_heads(model)
    whole = {site.id: _weights(model, site.path) for site in heads}
    with temporarily_pruned(model, HeadMask.full(heads).without(*(f"{site.id}:{site.kept[0]}" for site in heads))):
        left = {site.id: _weights(model, site.path) for site in heads}
    return {
        site.id: {"heads": site.num_heads, "weights": whole[site.id], "share": 1 - left[site.id] / whole[site.id]}
        for site in heads
    }


def _weights(model: nn.Module, path: str) -> int:
    """Numbers in the matrices of a block: its biases and norms are not a head's."""
    return sum(p.numel() for p in model.get_submodule(path).parameters() if p.dim() > 1)
