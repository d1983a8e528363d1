"""Whether data are there and of the right task, before hours are spent: every part that a trial names is read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headprune.errors import DataError, HeadpruneError, PresetError
from headprune.lab.experiments.placeholders import names_in
from headprune.lab.experiments.trial import Trial

_PARTS = ("split", "test", "against", "choose-on")  # options that name a part of the data


def check_data(trials: Iterable[Trial], places: Mapping[str, Path]) -> None:
    """`places` are the inputs by name. What is wrong is told with the name of the input, for all inputs at once."""
    asked: dict[tuple[str, str, str], set[str]] = {}
    for trial in trials:
        options = trial.params.get("options", {})
        found = names_in([options.get("data-dir") or options.get("data") or ""])
        for name in found & set(places):
            kind = "trees" if "data" in options else str(options.get("task") or trial.kind)
            parts = {"train", "dev"} if kind != "trees" else set()
            for option in _PARTS:
                given = options.get(option)
                parts |= set(given) if isinstance(given, list) else {given} - {None}
            asked.setdefault((name, kind, str(options.get("languages", ""))), set()).update(parts)
    problems = []
    for (name, kind, languages), parts in asked.items():
        try:
            _read(kind, places[name], languages, sorted(parts))
        except (HeadpruneError, OSError, ValueError) as error:
            problems.append(f"  {name} ({kind}): {error}")
    if problems:
        raise DataError("Nothing was run: these inputs are not what the presets ask for.\n" + "\n".join(problems))


def _read(kind: str, path: Path, languages: str, parts: list[str]) -> None:
    from headprune.lab.analysis.functions import read_sentences
    from headprune.tasks.classification import TextTask
    from headprune.tasks.data import find_task
    from headprune.tasks.tables import Source
    from headprune.tasks.text.corpus import read_part
    from headprune.tasks.translation.pairs import Languages, read_pairs

    if kind == "trees":
        if not read_sentences(path):
            raise DataError(f"'{path}' has no sentences.")
        return
    source = Source(folder=path)
    if kind in ("train-mt", "translation"):
        for part in parts:
            read_pairs(source, part, Languages.parse(languages))
    elif kind in ("train-lm", "stream-lm"):
        for part in parts:
            read_part(source, part, "characters")
    elif isinstance(task := find_task(kind), TextTask):
        for part in parts:
            task.texts(source, part)


def check_machine(options: Any) -> None:
    """What is asked for in cores and devices is there; a cluster is asked by its runner."""
    if options.device is not None and options.device.startswith("cuda") and options.runner == "inline":
        import torch

        if not torch.cuda.is_available():
            raise PresetError(
                f"--device is {options.device}; torch finds no GPU here. Leave it out, or use --runner ray."
            )
    if options.threads < 0:
        raise PresetError(f"--threads is {options.threads}; expected 1 or more, or 0 for as many as torch takes.")
