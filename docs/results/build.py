"""Write the results pages from the stored JSON in docs/results/data. Run by `make results`; a test notices drift."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from headprune.stats import correlation

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # the tests load this file from elsewhere

from allattention_page import allattention_page  # noqa: E402
from translation_page import translation_page  # noqa: E402
from writing import NOTE, Runs, label, scored, spread, table  # noqa: E402

TITLES = {
    "sst2-minilm": ("SST-2", "6,920 training and 872 dev sentences"),
    "cola-minilm": ("CoLA", "8,551 training sentences, 527 dev sentences in domain and 516 out of domain"),
    "mrpc-minilm": ("MRPC", "pairs of sentences; scores are F1"),
}


def pages() -> dict[Path, str]:
    """Every page with its text."""
    found = {}
    for name in sorted(TITLES):
        runs = stored(name)
        if runs:
            found[HERE / f"{name}.md"] = classifier_page(name, runs)
    gates = stored("gates-sst2")
    if gates:
        found[HERE / "gates-sst2.md"] = gates_page(gates)
    translation = stored("multi30k")
    if translation:
        found[HERE / "multi30k.md"] = translation_page(translation, (HERE / "translation.sh").read_text())
    books = stored("allattention")
    if books:
        found[HERE / "allattention.md"] = allattention_page(books, (HERE / "allattention.sh").read_text())
    functions = HERE / "data" / "functions-minilm" / "all.json"
    if functions.is_file():
        found[HERE / "functions-minilm.md"] = functions_page(json.loads(functions.read_text()))
    return {**found, **experiments_pages(HERE / "data" / "experiments")}


def experiments_pages(folder: Path) -> dict[Path, str]:
    """What `headprune run` found at small scale, a page a preset."""
    from headprune.lab.experiments.runs import read_runs
    from headprune.lab.experiments.store import Store
    from headprune.lab.report import gather, markdown_page

    found = {}
    for name in sorted({run.preset.name for run in read_runs(Store(folder))}):
        page = markdown_page(gather([folder], presets=[name]))
        told = (
            "The same as a page with maps of heads and a slider: "
            f"`headprune report docs/results/data/experiments --preset {name} -o report.html`."
        )
        title, _, rest = page.partition("\n")
        found[HERE / f"{name}.md"] = f"{NOTE}\n{title}\n\n{told}\n{rest}"
    return found


def stored(name: str) -> Runs:
    files = sorted((HERE / "data" / name).glob("seed-*.json"))
    return {int(path.stem.removeprefix("seed-")): json.loads(path.read_text()) for path in files}


def classifier_page(name: str, runs: Runs) -> str:
    task, data = TITLES[name]
    metric = next(iter(runs.values()))["curve"]["curves"]["sensitivity"][0]["metric"]
    parts = [
        NOTE, f"# {task}: what the heads of MiniLM are worth", "",
        f"all-MiniLM-L6-v2 (6 layers of 12 heads), fine-tuned on {task} ({data}); learning rate 1e-4, 3 epochs, batch "
        f"32. Scores are {metric} on dev. {label(runs)} One seed is one fine-tuning and everything after it.", "",
        *seeds_table(runs, metric), *curve_table(runs, metric), *ablation_table(runs), *domains_table(runs),
        *budget_table(runs, metric), *agreement_table(runs), *times_table(runs), *commands(name),
    ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


def seeds_table(runs: Runs, metric: str) -> list[str]:
    rows = []
    for seed, run in sorted(runs.items()):
        dev = run["finetune"]["dev"]
        low, high = dev["interval"]
        rows.append([seed, f"{dev['score']:.4f}", f"{low:.4f} to {high:.4f}", f"{dev['loss']:.3f}", dev["examples"]])
    head = ["seed", metric, "95 % bootstrap interval over examples", "loss", "dev examples"]
    return ["## With all heads", "", *table(head, rows), ""]


def curve_table(runs: Runs, metric: str) -> list[str]:
    """Score by share pruned, for every order (Michel et al., Figure 3)."""
    orders = list(next(iter(runs.values()))["curve"]["curves"])
    points = next(iter(runs.values()))["curve"]["curves"][orders[0]][0]["points"]
    rows = []
    for place, point in enumerate(points):
        cells = []
        for order in orders:
            means = [np.mean([line["points"][place]["score"] for line in run["curve"]["curves"][order]])
                     for run in runs.values()]  # fmt: skip
            cells.append(spread(means))
        rows.append([f"{point['share']:.0%} ({point['pruned']})", *cells])
    names = {"metric-ablation": "ablation on dev (oracle)"}
    text = (
        "Heads are masked, not removed (both give the same answers); no training after masking. Each cell is "
        f"{metric}, averaged over seeds; `random` is the mean of three orders a seed. `sensitivity` is one-shot, on "
        "all training examples; re-scored means scored anew after every step of 6 heads on 512 training examples. "
        "The oracle order looks at the dev set that it is then evaluated on."
    )
    return ["## Pruning curve", "", text, "",
            *table(["pruned", *(names.get(order, order) for order in orders)], rows), ""]  # fmt: skip


def ablation_table(runs: Runs) -> list[str]:
    """How many heads matter alone (Michel et al., Figure 1 and Table 1)."""
    rows = []
    for seed, run in sorted(runs.items()):
        heads = run["ablation"]["heads"].values()
        scores = [row["score"] for row in heads]
        counts = [sum(row[name] < 0.01 for row in heads) for name in ("p", "p_holm", "p_bh")]
        better = sum(score > run["ablation"]["base"]["score"] for score in scores)
        rows.append([seed, f"{min(scores):.4f} to {max(scores):.4f}", better, *counts,
                     f"{run['ablation']['share_reused']:.0%}"])  # fmt: skip
    head = ["seed", "score without one head", "heads without which it is higher", "p < 0.01", "after Holm",
            "after Benjamini-Hochberg", "work reused"]  # fmt: skip
    return ["## Without each head", "", *table(head, rows), ""]


def domains_table(runs: Runs) -> list[str]:
    """The same heads on two data sets (Michel et al., Figure 2)."""
    rows = []
    for seed, run in sorted(runs.items()):
        other = run["ablation"].get("against")
        if other is not None and other["pearson"] is not None:
            rows.append([seed, f"{run['ablation']['base']['score']:.4f}", f"{other['base']['score']:.4f}",
                         f"{other['pearson']:.2f} ({other['pearson_p']:.1e})",
                         f"{other['spearman']:.2f} ({other['spearman_p']:.1e})"])  # fmt: skip
    if not rows:
        return []
    head = ["seed", "all heads, in domain", "all heads, out of domain", "Pearson r (p)", "Spearman rho (p)"]
    text = (
        "Score without each head, in domain against out of domain. Michel et al. report r = 0.68 for BERT on MNLI "
        "matched against mismatched (their Figure 2)."
    )
    return ["## In domain and out of domain", "", text, "", *table(head, rows), ""]


def budget_table(runs: Runs, metric: str) -> list[str]:
    rows = []
    for seed, run in sorted(runs.items()):
        budget, (before, after) = run["prune"]["budget"], run["prune"]["heads"]
        change, (low, high) = budget["test_change"]["change"], budget["test_change"]["interval"]
        halves = [
            f"{budget[half]['full']['score']:.4f} to {budget[half]['pruned']['score']:.4f}"
            for half in ("validation", "test")
        ]
        rows.append([seed, f"{before} to {after}", *halves, f"{change:+.4f} ({low:+.4f} to {high:+.4f})"])
    head = ["seed", "heads", f"{metric}, half chosen on", f"{metric}, other half", "change there (95 % interval)"]
    text = (
        "`--max-drop 1.0`: the most heads that may go, in the order of sensitivity, within one point on one half of "
        "dev; then told on the other half, which the choice never saw. Heads are really removed."
    )
    return ["## Within one point", "", text, "", *table(head, rows), ""]


def agreement_table(runs: Runs) -> list[str]:
    rows = []
    for seed, run in sorted(runs.items()):
        first = [value for row in run["scores"].values() for value in row]
        names = [f"{site}:{head}" for site, row in run["scores"].items() for head in range(len(row))]
        second = [-run["ablation"]["heads"][name]["change"] for name in names]
        same = correlation(first, second)
        rows.append([seed, f"{same.spearman:.2f} ({same.spearman_p:.1e})"])
    head = ["seed", "Spearman rho (p) of sensitivity and the drop without the head"]
    return ["## Do sensitivity and ablation see the same heads?", "", *table(head, rows), ""]


def times_table(runs: Runs) -> list[str]:
    steps = list(next(iter(runs.values()))["seconds"])
    rows = []
    for seed, run in sorted(runs.items()):
        minutes = [run["seconds"].get(step, 0) / 60 for step in steps]
        rows.append([seed, *(f"{value:.1f}" for value in minutes), f"{sum(minutes):.1f}"])
    versions = next(iter(runs.values()))["versions"]
    text = (
        "Minutes on 2 cores without a GPU, with other work going on at times: no more than an orientation. "
        + ", ".join(f"{name} {value}" for name, value in versions.items())
        + "."
    )
    return ["## How long it took", "", text, "", *table(["seed", *steps, "sum"], rows), ""]


def commands(name: str) -> list[str]:
    task = name.removesuffix("-minilm")
    script = (HERE / "classifier.sh").read_text().rstrip()
    return [
        "## To repeat it", "", "With the data in `$HEADPRUNE_DATA` (a folder per task) and `MODEL` a copy of "
        "sentence-transformers/all-MiniLM-L6-v2 (the folder that `hp.demo_model()` names, or its "
        "name on the hub):", "", "```console",
        f"$ for seed in 1 2 3; do bash docs/results/classifier.sh {task} $seed runs/{task}-$seed; done",
        "$ python docs/results/collect.py classifiers runs", "$ make results", "```", "",
        "`docs/results/classifier.sh` is:", "", "```bash", script, "```",
    ]  # fmt: skip


def gates_page(runs: Runs) -> str:
    """Gates against Michel et al.'s order with as much fine-tuning."""
    first = next(iter(runs.values()))["gates"][0]
    intro = (
        "All start from one fine-tuned model (seed 1 of [sst2-minilm](sst2-minilm.md)) and train for "
        f"{first['epochs']:g} epochs at learning rate {first['learning_rate']:g}. Gates: Hard Concrete, learning rate "
        f"{first['gate_lr']:g}, a target instead of a lambda, frozen after 70 % of the steps, then removed for real. "
        "Michel: the lowest heads by sensitivity are removed first, then the rest is trained. Scores are accuracy on "
        f"the 872 dev sentences. {label(runs)} A seed here is the order of the data and the noise of the gates, "
        "not another fine-tuning before them."
    )
    rows, summary = [], []
    for share in ("50", "75"):
        pairs = []
        for seed, run in sorted(runs.items()):
            gated = next(r for r in run["gates"] if abs(1 - r["heads"][1] / r["heads"][0] - int(share) / 100) < 0.03)
            michel = run["michel"][share]["dev"]
            pairs.append((gated["dev"]["score"], michel["score"]))
            rows.append([f"{share} %", seed, f"{gated['before']['score']:.4f}", gated["objective"]["target"],
                         gated["heads"][1], scored(gated["dev"]), scored(michel)])  # fmt: skip
        gap = [a - b for a, b in pairs]
        summary.append([f"{share} %", spread([a for a, _ in pairs]), spread([b for _, b in pairs]), spread(gap)])
    parts = [
        NOTE, "# SST-2: gates against Michel et al.'s order", "", intro, "",
        *table(["pruned", "seed", "all heads", "target", "heads left", "gates", "Michel, fine-tuned"], rows), "",
        "In brackets: 95 % bootstrap intervals over examples. Over seeds:", "",
        *table(["pruned", "gates", "Michel, fine-tuned", "gates minus Michel"], summary), "",
        "## To repeat it", "", "After seed 1 of [sst2-minilm](sst2-minilm.md), with its run in `runs/sst2-1`:", "",
        "```console",
        "$ for seed in 1 2 3; do bash docs/results/gates.sh $seed runs/sst2-1 gate-runs/sst2-$seed; done",
        "$ python docs/results/collect.py gates gate-runs", "$ make results", "```", "",
        "`docs/results/gates.sh` is:", "", "```bash", (HERE / "gates.sh").read_text().rstrip(), "```",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def functions_page(found: dict[str, Any]) -> str:
    """What the heads of MiniLM do (Voita et al., Figure 8 and Table 1)."""
    counts, limits = found["counts"], found["thresholds"]
    best = []
    for name, relation in found["relations"].items():
        head, row = max(
            ((head, row["relations"][name]) for head, row in found["heads"].items()),
            key=lambda item: item[1]["accuracy"],
        )
        low, high = row["interval"]
        best.append([name, relation["pairs"], head, f"{row['accuracy']:.3f} ({low:.3f} to {high:.3f})",
                     f"{relation['baseline']:.3f} ({relation['baseline_offset']:+d})"])  # fmt: skip
    doing = []
    for head, row in found["heads"].items():
        if row["functions"]:
            place = f"{row['offset']:+d} in {row['offset_share']:.0%}" if "positional" in row["functions"] else ""
            rare = f"{row['rare_share']:.0%}" if "rare" in row["functions"] else ""
            doing.append([head, ", ".join(row["functions"]), place, "; ".join(row["syntactic"]), rare])
    intro = (
        f"all-MiniLM-L6-v2 as it comes, {found['sentences']} sentences ({found['tokens']} tokens) of the English Web "
        f"Treebank's dev part with gold trees; nothing here is random. Of {len(found['heads'])} heads "
        f"{counts['positional']} are positional, {counts['syntactic']} syntactic, {counts['rare']} look at rare "
        f"tokens, {counts['other']} do none of these (one model, no claim about others)."
    )
    rules = (
        f"Positional: the largest weight is at one relative position for at least {limits['position']:.0%} of tokens. "
        f"Syntactic: at least {100 * limits['margin']:.0f} points above the best fixed offset, for relations "
        f"with at least {limits['pairs']} pairs. Rare: points to the rarest token in at least {limits['rare']:.0%} "
        f"of the {found['rare_sentences']} sentences that have one outside the {limits['frequent']} most frequent. "
        "Details: the docstring of `headprune.lab.analysis.functions.kinds`."
    )
    parts = [
        NOTE, "# What the heads of MiniLM do", "", intro, "", rules, "", "## The best head of each relation", "",
        *table(["relation", "pairs", "head", "accuracy (95 % interval)", "best fixed offset"], best), "",
        "Picking the best of all heads on the data that it is told on flatters it; the intervals do not know that.", "",
        "## Heads with a function", "", *table(["head", "functions", "offset", "relations", "rare"], doing), "",
        "## To repeat it", "", "```console",
        "$ headprune functions $MODEL --data $HEADPRUNE_DATA/ud-ewt/en_ewt-ud-dev.conllu --out functions",
        "$ python docs/results/collect.py functions functions", "$ make results", "```",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
