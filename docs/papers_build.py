"""Write docs/papers/*.md from the presets and the stored results, so that they cannot drift. Run by `make docs`.

A value is "ours" if the trials that it needs are in docs/results/data/experiments under the keys that the preset gives
them today: trials that presets share count for all of them. What is arithmetic is computed here.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import headprune.lab.experiments.arithmetic  # noqa: F401  # kinds of work that need no model
from headprune.lab.experiments.claims import Verdict
from headprune.lab.experiments.execute import execute_trial
from headprune.lab.experiments.library import all_presets
from headprune.lab.experiments.presets import Preset, Scale
from headprune.lab.experiments.runs import Run, plan_run, read_runs
from headprune.lab.experiments.store import Record, Store
from headprune.lab.experiments.trial import FIRST
from headprune.lab.experiments.values import Observed

HERE = Path(__file__).parent
RESULTS = HERE / "results"
NOTE = "<!-- Written by `make docs` from the presets and docs/results/data; edit docs/papers_build.py instead. -->"
NOT_RUN = "not run at this size"
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

# Studies by scripts of their own: which table or figure a part of their pages belongs to.
CURVE, ALONE = "Pruning curve", "Without each head"
SEE = {
    "michel-figure-1": [
        ("multi30k", "Without each head (Michel et al., Table 1 and Figure 1a)"),
        ("sst2-minilm", ALONE),
    ],
    "michel-figure-2": [
        ("multi30k", "On another domain (Michel et al., Figure 2a)"),
        ("cola-minilm", "In domain and out of domain"),
    ],
    "michel-figure-3": [
        ("multi30k", "Pruning all components (Michel et al., Figures 3a and 6d)"),
        ("sst2-minilm", CURVE),
    ],
    "michel-figure-4": [("multi30k", "Pruning one component (Michel et al., Figure 4)")],
    "michel-figure-5": [("multi30k", "While training (Michel et al., Figure 5)")],
    "michel-figure-6": [("sst2-minilm", CURVE), ("cola-minilm", CURVE), ("mrpc-minilm", CURVE)],
    "michel-table-1": [("multi30k", "Without each head (Michel et al., Table 1 and Figure 1a)")],
    "michel-table-2": [("multi30k", "One head a site (Michel et al., Tables 2 and 5)")],
    "michel-table-5": [("multi30k", "One head a site (Michel et al., Tables 2 and 5)")],
    "voita-figure-7": [("multi30k", "Gates (Voita et al., Table 2 and Figures 7, 9, 10)")],
    "voita-figure-9": [("multi30k", "Gates (Voita et al., Table 2 and Figures 7, 9, 10)")],
    "voita-figure-10": [("multi30k", "Gates (Voita et al., Table 2 and Figures 7, 9, 10)")],
    "voita-table-2": [("multi30k", "Gates (Voita et al., Table 2 and Figures 7, 9, 10)")],
    "voita-sections-4-5": [("functions-minilm", "Heads with a function")],
    "budhraja-table-1": [("multi30k", "Random heads (Budhraja et al., Table 1)")],
    "budhraja-table-2": [("multi30k", "Patterns (Budhraja et al., Tables 2 and 3)")],
    "budhraja-table-3": [("multi30k", "Patterns (Budhraja et al., Tables 2 and 3)")],
    "shim-figure-1": [("allattention", "What pruning heads saves (Figure 1)")],
    "shim-figure-3": [("allattention", "Against narrower Transformer-XL (Figure 3)")],
    "shim-table-1": [("allattention", "λ and sparsity (Tables 1 and 2)")],
    "shim-table-2": [("allattention", "λ and sparsity (Tables 1 and 2)")],
    "shim-table-3": [("allattention", "The three techniques (Table 3)")],
}  # fmt: skip

HOW = (
    "A table or figure is a preset: `headprune run PRESET` repeats it ([experiments](../experiments.md)). The scale "
    "`small` has models and data for two cores, the scale `paper` the paper's own. Numbers at the small scale are not "
    "the paper's experiment: other models, other data, fewer steps. ± is the half width of the 95 % t interval over "
    f"seeds; a number without it comes from fewer than three seeds and is no claim. “{NOT_RUN}” means that "
    "the preset is there, and that this repository holds no result of it."
)


class Stored:
    """What was run, by the keys of its trials."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        runs = read_runs(self.store)
        self.presets = {run.preset.name for run in runs}
        self.prints = {name: known for run in runs for name, known in run.inputs.items()}
        self.seeds = sorted({record.trial.seed for record in self.store})

    def look_up(self, preset: Preset, scale: str) -> tuple[list[Observed], list[Verdict], str]:
        """The values of a preset and what agrees, as far as trials are there; and which headprune made them, if not
        such a one as this."""
        if {step.work for step in preset.scale(scale).steps} <= ARITHMETIC:
            run, records = _computed(preset, scale)
        else:
            run, records = next(
                (found for version in ("", FIRST) if (found := self._found(preset, scale, version))[1]),
                self._found(preset, scale, ""),
            )
        values = run.values(records)
        return values, run.claims(values), run.made_by

    def _found(self, preset: Preset, scale: str, version: str) -> tuple[Run, list[Record]]:
        # An input that nothing stored was run with has no fingerprint, so that its trials cannot be found.
        prints = {name: self.prints.get(name, "") for name in preset.scale(scale).inputs}
        run = plan_run(preset, scale, prints, version=version)[0]
        if self.seeds:
            run = run.joined(plan_run(preset, scale, prints, self.seeds, version)[0])
        return run, run.records(self.store)


def _computed(preset: Preset, scale: str) -> tuple[Run, list[Record]]:
    run, trials = plan_run(preset, scale, {})
    with tempfile.TemporaryDirectory() as folder:
        records = [execute_trial(trial, Path(folder), {}, {}) for trial in trials]
    failed = [record.error for record in records if not record.is_done]
    if failed:
        raise RuntimeError(failed[0])
    return run, records


def pages() -> dict[Path, str]:
    """Every page with its text."""
    stored, presets = Stored(RESULTS / "data" / "experiments"), all_presets()
    unknown = {preset.study for preset in presets} - {paper.study for paper in PAPERS.values()}
    if unknown:
        raise ValueError(f"Presets of {', '.join(unknown)}: which page of docs/papers is theirs?")
    found = {}
    for name, paper in PAPERS.items():
        own = sorted((preset for preset in presets if preset.study == paper.study), key=_place)
        parts = [
            NOTE, f"# {paper.study}", "", f"{paper.cited}, [{paper.link.removeprefix('https://')}]({paper.link}). "
            f"{paper.here}", "", HOW, "", *_overview(own, stored),
        ]  # fmt: skip
        for preset in own:
            parts += ["", *_section(preset, stored)]
        found[HERE / "papers" / f"{name}.md"] = "\n".join(parts) + "\n"
    return found


def _place(preset: Preset) -> tuple[str, int, str]:
    """Tables, then figures, each by number; then the rest."""
    kind, number = re.fullmatch(r"\w+-(\w+?)(?:-(\d+).*)?", preset.name).groups()  # type: ignore[union-attr]
    order = {"table": "0", "figure": "1"}.get(kind, "2")
    return order, int(number or 0), preset.name


def _overview(presets: list[Preset], stored: Stored) -> list[str]:
    rows = []
    for preset in presets:
        values, _, _ = stored.look_up(preset, "small")
        known = sum(value.mean is not None for value in values)
        told = f"{known} of {len(values)} values" if known else NOT_RUN
        if preset.name in stored.presets:
            told += f", [all of it](../results/{preset.name}.md)"
        rows.append([f"[{_title(preset)}](#{_anchor(_title(preset))})", f"`headprune run {preset.name}`", told])
    return _table(["experiment", "command", "here, small scale"], rows)


def _title(preset: Preset) -> str:
    return f"{preset.line[0].upper()}{preset.line[1:]}: {preset.what}"


def _section(preset: Preset, stored: Stored) -> Iterator[str]:
    yield from (f"## {_title(preset)}", "")
    for name, scale in preset.scales.items():
        if name == "small":
            yield from (*_command(preset, name, scale), "", *_found(preset, name, stored))
        else:
            told = f"At the paper's size: <code>headprune run {preset.name} --scale paper</code>"
            yield from ("", '<details markdown="1">', f"<summary>{told}</summary>", "")
            yield from (*_command(preset, name, scale), "", *_found(preset, name, stored), "", "</details>")
    also = [f"[{_heading(page)}: {_plain(part)}]({_target(page, part)})" for page, part in SEE.get(preset.name, ())]
    if also:
        yield from ("", f"Measured by a script of its own, too: {'; '.join(also)}.")


def _command(preset: Preset, name: str, scale: Scale) -> Iterator[str]:
    words = [f"$ headprune run {preset.name}", *(["--scale paper"] if name == "paper" else [])]
    words += [f"--input {one}={one.upper()}" for one in scale.inputs]
    yield from ("```console", " ".join([*words, "--out runs"]), "```", "")
    given = [f"`{one}`: {_plain(told)}" for one, told in scale.inputs.items()]
    yield " ".join(filter(None, [f"Given: {'; '.join(given)}." if given else "", _plain(scale.note)])).strip()


def _found(preset: Preset, scale: str, stored: Stored) -> Iterator[str]:
    values, claims, made_by = stored.look_up(preset, scale)
    if values:
        yield from _table(["value", "paper", "here"], [[_plain(v.name), _paper(v), _ours(v)] for v in values])
    elif preset.name in stored.presets and scale == "small":
        yield f"No single number stands for it; the whole of it is in [the results](../results/{preset.name}.md)."
    else:
        yield f"No single number stands for it; its report has the picture. Here: {NOT_RUN}."
    if any(claim.verdict != "not done" for claim in claims):
        rows = [[_plain(one.text), NOT_RUN if one.verdict == "not done" else one.told()] for one in claims]
        yield from ("", *_table(["the paper says", "here"], rows))
    if made_by:
        yield from ("", f"Made by {made_by}.")


def _paper(value: Observed) -> str:
    if value.paper is None:
        return "–"
    return _plain(value.paper) if isinstance(value.paper, str) else f"{value.paper:.4g}"


def _ours(value: Observed) -> str:
    if value.mean is None:
        return value.problem or NOT_RUN
    return f"{value.mean:.4g}" + (f" ± {value.half_width:.2g}" if value.half_width is not None else "")


def _heading(page: str) -> str:
    text = (RESULTS / f"{page}.md").read_text()
    return _plain(re.search(r"^# (.+)$", text, re.M).group(1))  # type: ignore[union-attr]


def _target(page: str, part: str) -> str:
    """A link into a results page; a heading that is gone is an error."""
    if f"\n## {part}\n" not in (RESULTS / f"{page}.md").read_text():
        raise ValueError(f"docs/results/{page}.md has no heading '{part}': change SEE.")
    # Other letters become different anchors on different sites.
    return f"../results/{page}.md" + (f"#{_anchor(part)}" if part.isascii() else "")


def _anchor(title: str) -> str:
    kept = re.sub(r"[^\w\s-]", "", title.encode("ascii", "ignore").decode().lower()).strip()
    return re.sub(r"[\s-]+", "-", kept)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_<>|])", r"\\\1", text)


if __name__ == "__main__":
    (HERE / "papers").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
