"""Write docs/papers/*.md from the presets and the stored results, so that they cannot drift. Run by `make docs`.

A value is "ours" if the trials that it needs are in docs/results/data/experiments under the keys that the preset gives
them today: trials that presets share count for all of them. What is arithmetic is computed here. verdicts.md has every
statement with its verdict, paper_figures.py draws the figures.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import headprune.lab.experiments.arithmetic  # noqa: F401  # kinds of work that need no model
from headprune.lab.experiments.claims import Counts, Verdict
from headprune.lab.experiments.execute import execute_trial
from headprune.lab.experiments.library import all_presets
from headprune.lab.experiments.presets import Preset, Scale
from headprune.lab.experiments.runs import Run, plan_run, read_runs
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.values import Observed

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # the tests load this file from elsewhere

from decisions_page import decisions_page  # noqa: E402
from paper_figures import figure  # noqa: E402
from verdicts_page import anchor, claims_table, plain, table, verdict_counts, verdict_page  # noqa: E402

RESULTS = HERE / "results"
NOTE = "<!-- Written by `make docs` from the presets and docs/results/data; edit docs/papers_build.py instead. -->"
NOT_RUN = "not run yet"
ARITHMETIC = {"densities", "savings"}


class Paper(NamedTuple):
    """What stands above the experiments of a paper."""

    study: str  # as the presets call it
    cited: str
    link: str
    here: str  # where its method is in headprune


PAPERS = {
    "michel": Paper(
        "Michel et al. 2019",
        "Paul Michel, Omer Levy, Graham Neubig: Are Sixteen Heads Really Better than One? NeurIPS 2019",
        "https://arxiv.org/abs/1905.10650",
        "Their score is the method `sensitivity`, masking one head at a time is `headprune ablate`, their curves are "
        "`headprune curve`.",
    ),
    "voita": Paper(
        "Voita et al. 2019",
        "Elena Voita, David Talbot, Fedor Moiseev, Rico Sennrich, Ivan Titov: Analyzing Multi-Head Self-Attention: "
        "Specialized Heads Do the Heavy Lifting, the Rest Can Be Pruned. ACL 2019",
        "https://arxiv.org/abs/1905.09418",
        "Their gates are `hard-concrete` ([gates](../concepts/gates.md)), their kinds of heads `headprune functions`.",
    ),
    "budhraja": Paper(
        "Budhraja et al. 2020",
        "Aakriti Budhraja, Madhura Pande, Preksha Nema, Pratyush Kumar, Mitesh M. Khapra: On the weak link between "
        "importance and prunability of attention heads. EMNLP 2020",
        "https://aclanthology.org/2020.emnlp-main.260/",
        "Their choices of heads are random ones (`headprune prune --prune 50% --seed 1`) and patterns "
        "(`--pattern top:3`), followed by `headprune finetune`.",
    ),
    "shim": Paper(
        "Shim et al. 2021",
        "Kyuhong Shim, Iksoo Choi, Wonyong Sung, Jungwook Choi: Layer-wise Pruning of Transformer Attention Heads for "
        "Efficient Language Modeling. 2021",
        "https://arxiv.org/abs/2110.03252",
        "Their gates are `binary-concrete` ([gates](../concepts/gates.md)), their models are those of "
        "[language models](../language-models.md).",
    ),
}

HOW = (
    "A table or figure is a preset: `headprune run PRESET` repeats it ([experiments](../experiments.md)). The scale "
    "`small` has models and data for two cores, the scale `paper` the paper's own. Numbers at the small scale are not "
    "the paper's experiment: other models, other data, fewer steps. ± is the half width of the 95 % t interval over "
    "seeds. A statement is the paper's own, with its place, or our reading of it. It **holds** or **does not hold** "
    "when the interval over three seeds or more lies wholly on one side (arithmetic needs no seeds), and is **open** "
    "otherwise. [All statements with their verdicts](verdicts.md)."
)


class Stored:
    """What was run, by the keys of its trials."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        runs = read_runs(self.store)
        self.prints = {name: known for run in runs for name, known in run.inputs.items()}
        self.seeds = sorted({record.trial.seed for record in self.store})

    def look_up(self, preset: Preset, scale: str) -> tuple[list[Observed], list[Verdict]]:
        """The values of a preset and its statements, as far as trials are there."""
        if {step.work for step in preset.scale(scale).steps} <= ARITHMETIC:
            run, records = _computed(preset, scale)
        else:
            # An input that nothing stored was run with has no fingerprint, so that its trials cannot be found.
            prints = {name: self.prints.get(name, "") for name in preset.scale(scale).inputs}
            run = plan_run(preset, scale, prints)[0]
            if self.seeds:
                run = run.joined(plan_run(preset, scale, prints, self.seeds)[0])
            records = run.records(self.store)
        values = run.values(records)
        return values, run.claims(values)

    def records(self, preset: Preset) -> list[Record]:
        """The trials of a preset at the small scale, under its own names."""
        if {step.work for step in preset.scale("small").steps} <= ARITHMETIC:
            return _computed(preset, "small")[1]
        prints = {name: self.prints.get(name, "") for name in preset.scale("small").inputs}
        run = plan_run(preset, "small", prints, self.seeds or None)[0]
        return run.records(self.store)


def _computed(preset: Preset, scale: str) -> tuple[Run, list[Record]]:
    run, trials = plan_run(preset, scale, {})
    with tempfile.TemporaryDirectory() as folder:
        records = [execute_trial(trial, Path(folder), {}, {}) for trial in trials]
    failed = [record.error for record in records if not record.is_done]
    if failed:
        raise RuntimeError(failed[0])
    return run, records


def pages() -> dict[Path, str]:
    """Every page with its text, and every picture."""
    stored, presets = Stored(RESULTS / "data" / "experiments"), all_presets()
    unknown = {preset.study for preset in presets} - {paper.study for paper in PAPERS.values()}
    if unknown:
        raise ValueError(f"Presets of {', '.join(unknown)}: which page of docs/papers is theirs?")
    folder = HERE / "papers"
    drawn = {f"{preset.name}.svg": text for preset in presets if (text := figure(preset, stored.records(preset)))}
    found = {folder / "figures" / name: text for name, text in drawn.items()}
    for name, paper in PAPERS.items():
        own = sorted((preset for preset in presets if preset.study == paper.study), key=_place)
        parts = [
            NOTE, f"# {paper.study}", "", f"{paper.cited}, [{paper.link.removeprefix('https://')}]({paper.link}). "
            f"{paper.here}", "", HOW, "", *_overview(own, stored),
        ]  # fmt: skip
        for preset in own:
            parts += ["", *_section(preset, stored, drawn)]
        found[folder / f"{name}.md"] = "\n".join(parts) + "\n"
    judged = [(preset, stored.look_up(preset, "small")[1]) for preset in sorted(presets, key=_place)]
    found[folder / "verdicts.md"] = verdict_page(PAPERS, judged)
    found[folder / "decisions.md"] = decisions_page()
    found[folder / "verdicts.json"] = verdict_counts(PAPERS, judged)
    return found


def _place(preset: Preset) -> tuple[str, int, str]:
    """Tables, then figures, each by number; then the rest."""
    kind, number = re.fullmatch(r"\w+-(\w+?)(?:-(\d+).*)?", preset.name).groups()  # type: ignore[union-attr]
    order = {"table": "0", "figure": "1"}.get(kind, "2")
    return order, int(number or 0), preset.name


def _overview(presets: list[Preset], stored: Stored) -> list[str]:
    rows = []
    for preset in presets:
        values, claims = stored.look_up(preset, "small")
        known = sum(value.mean is not None for value in values)
        told = f"{known} of {len(values)} values" if known else NOT_RUN
        counts = Counts.of(claims)
        verdict = (
            f"{counts.holds} hold, {counts.fails} do not, {counts.spread + counts.unfinished} open" if claims else "–"
        )
        rows.append([f"[{_title(preset)}](#{anchor(_title(preset))})", f"`headprune run {preset.name}`", told, verdict])
    return table(["experiment", "command", "here, small scale", "statements"], rows)


def _title(preset: Preset) -> str:
    return f"{preset.line[0].upper()}{preset.line[1:]}: {preset.what}"


def _section(preset: Preset, stored: Stored, drawn: Collection[str]) -> Iterator[str]:
    yield from (f"## {_title(preset)}", "")
    for name, scale in preset.scales.items():
        if name == "small":
            yield from (*_command(preset, name, scale), "")
            if f"{preset.name}.svg" in drawn:
                yield from (f"![{plain(_title(preset))}](figures/{preset.name}.svg)", "")
            yield from _found(preset, name, stored)
        else:
            told = f"At the paper's size: <code>headprune run {preset.name} --scale paper</code>"
            yield from ("", '<details markdown="1">', f"<summary>{told}</summary>", "")
            yield from (*_command(preset, name, scale), "", *_found(preset, name, stored), "", "</details>")


def _command(preset: Preset, name: str, scale: Scale) -> Iterator[str]:
    words = [f"$ headprune run {preset.name}", *(["--scale paper"] if name == "paper" else [])]
    words += [f"--input {one}={one.upper()}" for one in scale.inputs]
    yield from ("```console", " ".join([*words, "--out runs"]), "```", "")
    given = [f"`{one}`: {plain(told)}" for one, told in scale.inputs.items()]
    yield " ".join(filter(None, [f"Given: {'; '.join(given)}." if given else "", plain(scale.note)])).strip()


def _found(preset: Preset, scale: str, stored: Stored) -> Iterator[str]:
    values, claims = stored.look_up(preset, scale)
    if values:
        yield from table(["value", "paper", "here"], [[plain(v.name), _paper(v), _ours(v)] for v in values])
    if claims:
        yield from ("", *claims_table(claims, preset.scale(scale)))


def _paper(value: Observed) -> str:
    if value.paper is None:
        return "–"
    return plain(value.paper) if isinstance(value.paper, str) else f"{value.paper:.4g}"


def _ours(value: Observed) -> str:
    if value.mean is None:
        return value.problem or "–"
    return f"{value.mean:.4g}" + (f" ± {value.half_width:.2g}" if value.half_width is not None else "")


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
