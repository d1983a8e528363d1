"""One small function for each loader: it writes the input where the loader looks for it, and loads it.

A target returns, or raises a HeadpruneError; anything else is a finding. Data files are in `data_targets`, checkpoints
in `model_targets`; both add to the same table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2  # noqa: F401  # a page loads these late: here, so that it is not noticed as an import
import plotly.offline  # noqa: F401
from benchmarks.leaderboard import hardest, page, read_cells
from tools.families.families import counted, read_families
from tools.families.page import families_page

from headprune.errors import FileFormatError, HeadpruneError
from headprune.files import WorkParts, noted_steps, write_text
from headprune.heads import HeadMap, HeadMask, HeadScores, Site
from headprune.heads.patterns import pattern
from headprune.heads.scores import pruning_order
from headprune.lab.experiments import library, preset_file
from headprune.lab.experiments.runs import note_runs, plan_run, read_runs
from headprune.lab.experiments.store import Record, Store, row
from headprune.lab.report import gather, html_page, markdown_page

Load = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Target:
    load: Load
    kind: str  # of strategy: how valid files are altered
    share: float = 1.0  # of all inputs, beside that of the others
    seconds: float = 5.0  # that one input may take
    ending: str = ".json"  # of its files in the corpus


TARGETS: dict[str, Target] = {}


def target(kind: str, **more: Any) -> Callable[[Load], Load]:
    def add(load: Load) -> Load:
        TARGETS[load.__name__.replace("_", "-")] = Target(load, kind, **more)
        return load

    return add


@cache
def heads() -> HeadMap:
    """Of a small encoder-decoder, one site of which was pruned and one has groups."""
    rows = (
        ("encoder", 0, (0, 1, 2, 3), 1), ("encoder", 1, (0, 2), 1), ("decoder", 0, (0, 1, 2, 3), 2),
        ("cross", 0, (0, 1, 2, 3), 1),
    )  # fmt: skip
    sites = []
    for part, layer, kept, size in rows:
        groups = tuple(kept[i : i + size] for i in range(0, len(kept), size))
        sites.append(Site(
            id=f"{part}.{layer}", component=part, layer=layer, num_heads=len(kept), num_kv_heads=len(groups),
            head_dim=4, path=f"{part}.{layer}.attention", output=f"{part}.{layer}.attention.out", original_num_heads=4,
            kept=kept, groups=groups, layers=(layer,),
        ))  # fmt: skip
    return HeadMap(tuple(sites), model_type="toy")


def as_text(data: bytes) -> str:
    """As the commands read files that are one value."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(str(error)) from error


@target("json", share=2)
def mask(data: bytes, folder: Path) -> object:
    found = HeadMask.from_json(as_text(data))
    assert HeadMask.from_json(found.to_json()) == found
    return found.has_neurons, found.filled(heads()).checked_for(heads())


@target("json")
def mask_dict(data: bytes, folder: Path) -> object:
    try:
        kept = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return HeadMask.from_dict(heads(), kept).to_json()


@target("json", share=2)
def scores(data: bytes, folder: Path) -> object:
    found = HeadScores.from_json(as_text(data))
    again = HeadScores.from_json(found.to_json())
    return again, found.standard_errors, pruning_order(found), pruning_order(found, normalize="none")


@target("json", share=2)
def head_map(data: bytes, folder: Path) -> object:
    found = HeadMap.from_json(as_text(data))
    assert HeadMap.from_json(found.to_json()) == found
    return str(found), found.attention, HeadMask.full(found)


@target("text", share=2, ending=".txt")
def pattern_text(data: bytes, folder: Path) -> object:
    text = data.decode("utf-8", "replace")
    attention = HeadMap(tuple(site for site in heads() if site.component == "encoder"))
    for model in (heads(), attention):
        try:
            pattern(model, text)
        except HeadpruneError:
            continue
    return None


@target("text", share=2, ending=".toml")
def preset(data: bytes, folder: Path) -> object:
    (folder / "mine.toml").write_bytes(data)
    found = library.find_preset(str(folder / "mine.toml"))
    for name, scale in found.scales.items():
        plan_run(found, name, dict.fromkeys(scale.inputs, "0" * 16))
    return found


@target("json", share=2)
def trial(data: bytes, folder: Path) -> object:
    """A record of a store, under the name that its key asks for and under another."""
    store = Store(folder)
    store.trials.mkdir()
    known = "0123456789abcdef"
    names = [str(json.loads(data).get("key", known))] if data.startswith(b'{"schema"') and _is_json(data) else [known]
    name = names[0] if len(names[0]) == 16 and names[0].isalnum() and names[0].isascii() else known
    (store.trials / f"{name}.json").write_bytes(data)
    found = [row(record) for record in store]
    store.get(name)
    return found, len(store)


def _is_json(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


@cache
def _small_preset() -> Any:
    text = (Path(__file__).parent / "corpus" / "preset" / "valid-small.toml").read_text(encoding="utf-8")
    return preset_file.read_preset(text, "small.toml", library.shared_steps())


@target("json", share=2)
def run_notes(data: bytes, folder: Path) -> object:
    """RUN/run.json: what was run, which a report reads and the next run adds to."""
    store = Store(folder)
    store.trials.mkdir()
    (folder / "run.json").write_bytes(data)
    runs = read_runs(store)
    for run in runs:
        run.claims(run.values(run.records(store)))
    plan, _ = plan_run(_small_preset(), "small", {"data": "0" * 16})
    note_runs(store, [plan])
    return runs


@target("json", share=3, seconds=20)
def report(data: bytes, folder: Path) -> object:
    """A report of trials whose results somebody has changed; a file holds lines of [record, ...]."""
    store = Store(folder)
    store.trials.mkdir()
    if not _is_json(data):
        (store.trials / "0123456789abcdef.json").write_bytes(data)
        return gather([folder])
    content = json.loads(data)
    (folder / "run.json").write_text(json.dumps(content.get("notes", {})))
    kept = 0
    for number, entry in enumerate(content["records"] if isinstance(content.get("records"), list) else ()):
        try:
            record = Record.from_dict(_with_key(entry), folder / "x")
        except HeadpruneError:
            continue
        write_text(store.path(record.trial.key()), json.dumps({**record.to_dict(), "number": number}))
        kept += 1
    if not kept:
        return None
    found = gather([folder])
    write_text(folder / "page.md", markdown_page(found))
    if len(data) % 8 == 0:  # a page is four megabytes
        write_text(folder / "page.html", html_page(found))
    return found


def _with_key(entry: Any) -> Any:
    """The key that belongs to a trial, so that changes are not refused for the key alone."""
    from headprune.lab.experiments.trial import Trial

    try:
        return {**entry, "schema": 1, "key": Trial.from_dict(entry["trial"]).key()}
    except (TypeError, KeyError, AttributeError, ValueError):
        return entry


@target("json")
def cells(data: bytes, folder: Path) -> object:
    (folder / "leaderboard.json").write_bytes(data)
    found = read_cells(folder / "leaderboard.json")
    for one in found:
        hardest(found, str(one["model"]), str(one["data"]))
    return page(found) if found else None


@target("json")
def families(data: bytes, folder: Path) -> object:
    (folder / "families.json").write_bytes(data)
    found = read_families(folder, "5.0")
    return counted(found), families_page(found, "5.0")


@target("json")
def steps(data: bytes, folder: Path) -> object:
    """Lines that a training notes of its steps, read when it goes on."""
    (folder / "steps.jsonl").write_bytes(data)
    found = noted_steps(folder / "steps.jsonl")
    return [note for note in found if note["step"] <= 3]


@target("json")
def parts(data: bytes, folder: Path) -> object:
    made = WorkParts(folder, "key")
    made._path("part").write_bytes(data)
    return made.get("part")
