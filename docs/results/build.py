"""Write docs/results from stored trials: a page for each preset of which there are some. Run by `make results`.

docs/results/data/experiments holds what `headprune run` found, without models and pages of heads
(`python docs/results/commit.py RUNS` puts it there).
"""

from __future__ import annotations

from pathlib import Path

from headprune.lab.experiments.runs import read_runs
from headprune.lab.experiments.store import Store
from headprune.lab.report import gather, markdown_page

HERE = Path(__file__).parent
DATA = HERE / "data" / "experiments"
NOTE = "<!-- Written by `make results` from docs/results/data; edit nothing here. -->"


def pages() -> dict[Path, str]:
    """Every page with its text."""
    store = Store(DATA)
    found = {}
    for name in sorted({run.preset.name for run in read_runs(store) if run.records(store)}):
        page = markdown_page(gather([DATA], presets=[name]))
        told = (
            "The same as a page with maps of heads and a slider: "
            f"`headprune report docs/results/data/experiments --preset {name} -o report.html`. "
            "All statements of the papers: [verdicts](../papers/verdicts.md)."
        )
        title, _, rest = page.partition("\n")
        found[HERE / f"{name}.md"] = f"{NOTE}\n{title}\n\n{told}\n{rest}"
    return found


if __name__ == "__main__":
    made = pages()
    for path in HERE.glob("*.md"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.write_text(text)
