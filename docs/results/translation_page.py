"""docs/results/multi30k.md: what the heads of a translation model are worth, from what translation.sh found."""

from __future__ import annotations

from typing import Any

import numpy as np
from writing import NOTE, Runs, label, spread, table

Run = dict[str, Any]
COMPONENTS = ("encoder", "decoder", "cross")
TEST = "test_2016_flickr"


def translation_page(runs: Runs, script: str) -> str:
    """One model and everything after it; sections of what was not run are left out and named."""
    (seed, run), *_ = sorted(runs.items())
    sections = [
        _ablation(run), _domains(run), _alone(run), _curve(run), _components(run), _dynamics(run), _gates(run),
        _random(run), _patterns(run),
    ]  # fmt: skip
    names = ["ablation", "second domain", "single heads", "curve", "curves by component", "dynamics", "gates",
             "random pruning", "patterns"]  # fmt: skip
    missing = [name for name, section in zip(names, sections, strict=True) if not section] + _unfinished(run)
    parts = [
        NOTE,
        "# Multi30k, English to German: heads of encoder, decoder and cross-attention",
        "",
        *_intro(runs, run),
    ]
    if missing:
        parts += [f"Not run yet: {', '.join(missing)}.", ""]
    for section in sections:
        parts += section
    return "\n".join([*parts, *_times(run), *_commands(seed, script)]).rstrip() + "\n"


def _intro(runs: Runs, run: Run) -> list[str]:
    model = run["model"]
    shape, recipe = model["shape"], model["recipe"]
    text = (
        f"`headprune train-mt --preset {model['preset']}`: {shape['layers']} + {shape['layers']} layers of "
        f"{shape['heads']} heads, width {shape['width']}, feed-forward {shape['feed_forward']}, {shape['norm']}-norm, "
        f"{shape['vocabulary']:,} subwords for both languages, {model['parameters'] / 1e6:.1f} M parameters; "
        f"{recipe['epochs']:g} epochs over {model['train_examples']:,} pairs in {model['seconds'] / 60:.1f} "
        "minutes on 2 "
        f"cores. Scores are BLEU by sacrebleu (`{model['signature']}`), beam {model['search']['beams']}, length "
        "penalty "
        f"{model['search']['length_penalty']:g}; in brackets 95 % bootstrap intervals over sentences. {label(runs)}"
    )
    rows = [[name, scored2(model[name]), model[name]["examples"]] for name in ("dev", TEST) if name in model]
    epochs = ", ".join(f"{note['epoch']:g}: {note['bleu']:.1f}" for note in model["validation"])
    return [text, "", *table(["part", "BLEU with all heads", "sentences"], rows), "",
            f"While training, greedy BLEU of 200 dev sentences after each epoch: {epochs}.", ""]  # fmt: skip


def scored2(evaluation: dict[str, Any]) -> str:
    """BLEU has two digits that mean something."""
    low, high = evaluation["interval"]
    return f"{evaluation['score']:.2f} ({low:.2f} to {high:.2f})"


def _ablation(run: Run) -> list[str]:
    """Michel et al., Figure 1a and Table 1."""
    found = run.get("ablation")
    if found is None:
        return []
    rows = []
    for component, row in found["components"].items():
        counts = row["significant"]
        better = sum(r["change"] > 0 for name, r in found["heads"].items() if name.startswith(component))
        rows.append([component, row["heads"], f"{row['lowest']:+.2f} to {row['highest']:+.2f}", better, counts["p"],
                     counts["p_holm"], counts["p_bh"]])  # fmt: skip
    head = ["component", "heads", "change of BLEU without one", "heads without which it is higher", "p < 0.01",
            "after Holm", "after Benjamini-Hochberg"]  # fmt: skip
    text = (
        f"Every head masked alone, dev translated again ({found['base']['examples']} sentences, "
        f"{found['base']['score']:.2f} with all heads). Paired bootstrap, 1,000 resamples: a p below 0.001 cannot be "
        "told from 0, so Holm's correction is as lenient as it can be here. Michel et al. found 8 of 96 encoder heads "
        "significant at p < 0.01, uncorrected (their Table 1)."
    )
    lines = ["## Without each head (Michel et al., Table 1 and Figure 1a)", "", text, "", *table(head, rows), ""]
    return [*lines, "Change of BLEU without each head; ** p < 0.01 after Holm, * p < 0.01 before it.", "",
            *_head_table(found["heads"]), ""]  # fmt: skip


def _head_table(heads: dict[str, dict[str, float]]) -> list[str]:
    sites = list(dict.fromkeys(name.partition(":")[0] for name in heads))
    most = 1 + max(int(name.partition(":")[2]) for name in heads)
    rows = []
    for site in sites:
        cells = []
        for head in range(most):
            row = heads.get(f"{site}:{head}")
            mark = "" if row is None else "**" if row["p_holm"] < 0.01 else "*" if row["p"] < 0.01 else ""
            cells.append("" if row is None else f"{row['change']:+.2f}{mark.replace('*', chr(92) + '*')}")
        rows.append([site, *cells])
    return table(["site", *range(most)], rows)


def _domains(run: Run) -> list[str]:
    """Michel et al., Figure 2a."""
    other = (run.get("ablation") or {}).get("against")
    if other is None:
        return []
    same = (
        "no correlation can be told: no head changes the score there"
        if other["pearson"] is None
        else f"Pearson r = {other['pearson']:.2f} (p {other['pearson_p']:.1e}), Spearman rho = {other['spearman']:.2f} "
        f"(p {other['spearman_p']:.1e}) over {other['n']} heads"
    )
    text = (
        f"LibreOffice help sentences ({other['base']['examples']}), which this model of captions can hardly translate: "
        f"BLEU {other['base']['score']:.2f} with all heads. Scores without each head, dev against help: {same}. Michel "
        "et al. report r = 0.56 for newstest2013 against MTNT."
    )
    return ["## On another domain (Michel et al., Figure 2a)", "", text, ""]


def _alone(run: Run) -> list[str]:
    """Michel et al., Tables 2 and 5."""
    found = run.get("alone")
    if found is None:
        return []
    sites = found["best_single"]["sites"]
    layers = sorted({site.partition(".")[2] for site in sites})
    rows = []
    for layer in layers:
        cells = []
        for component in COMPONENTS:
            row = sites[f"{component}.{layer}"]
            cells.append(
                f"{row['change']:+.2f}{'*' if row['p'] < 0.01 else ''} (head {row['head']:g})".replace("*", "\\*")
            )
        rows.append([layer, *cells])
    text = (
        f"The best head of each site alone, the others of its site masked: chosen on "
        f"{found['best_single']['examples']} dev "
        f"sentences, told on {found['base']['examples']} test sentences ({found['base']['score']:.2f} with all heads). "
        "\\* p < 0.01, uncorrected."
    )
    return [
        "## One head a site (Michel et al., Tables 2 and 5)",
        "",
        text,
        "",
        *table(["layer", *COMPONENTS], rows),
        "",
    ]


def _lines_table(curves: dict[str, Any], relative: bool = False) -> list[str]:
    names = list(curves)
    shares = [point[0] for point in curves[names[0]][0]]
    rows = []
    for place, share in enumerate(shares):
        cells = []
        for name in names:
            whole = float(np.mean([line[0][1] for line in curves[name]]))
            value = float(np.mean([line[place][1] for line in curves[name]]))
            cells.append(f"{value / whole:.0%}" if relative and whole else f"{value:.2f}")
        rows.append([f"{share:.0%}", *cells])
    titles = {"metric-ablation": "ablation on dev (oracle)"}
    return table(["pruned", *(titles.get(name, name.replace(", sensitivity", "")) for name in names)], rows)


def _curve(run: Run) -> list[str]:
    """Michel et al., Figures 3a and 6d."""
    found = run["curves"].get("curve")
    if found is None:
        return []
    text = (
        f"Heads masked over the whole model, BLEU of {found['examples']} dev sentences, no training afterwards. "
        "`random` "
        "is the mean of three orders; the oracle order was found on dev, too."
    )
    return [
        "## Pruning all components (Michel et al., Figures 3a and 6d)",
        "",
        text,
        "",
        *_lines_table(found["curves"]),
        "",
    ]


def _components(run: Run) -> list[str]:
    """Michel et al., Figure 4."""
    found = run["curves"].get("components")
    if found is None:
        return []
    halves = {name.partition(",")[0]: next(score for share, score in lines[0] if share >= 0.5 - 1e-9)
              for name, lines in found["curves"].items()}  # fmt: skip
    lowest = min(halves, key=halves.__getitem__)
    verdict = (
        "Cross-attention is the most sensitive here, too, as the papers say"
        if lowest == "cross"
        else f"Here it is {lowest} attention, not cross-attention, that is the most sensitive"
    )
    listed = ", ".join(f"{name} {score:.2f}" for name, score in halves.items())
    text = (
        f"The heads of one component at a time, in the order of sensitivity, BLEU of {found['examples']} dev "
        "sentences. "
        f"With half of a component's heads gone: {listed}. {verdict} (one model, no claim)."
    )
    return ["## Pruning one component (Michel et al., Figure 4)", "", text, "", *_lines_table(found["curves"]), ""]


def _dynamics(run: Run) -> list[str]:
    """Michel et al., Figure 5."""
    found = run["curves"].get("dynamics")
    if found is None:
        return []
    whole = ", ".join(
        f"{name.removeprefix('epoch-')} [{lines[0][0][1]:.1f}]" for name, lines in found["curves"].items()
    )
    text = (
        f"Share of the unpruned model's BLEU that is left, on {found['examples']} dev sentences, by epoch of training. "
        f"Epoch [BLEU unpruned]: {whole}. Sensitivity on 512 training sentences of each epoch's model."
    )
    return [
        "## While training (Michel et al., Figure 5)",
        "",
        text,
        "",
        *_lines_table(found["curves"], relative=True),
        "",
    ]


def _gates(run: Run) -> list[str]:
    """Voita et al., Table 2 and Figures 7, 9."""
    if not run["gates"]:
        return []
    rows = []
    for kind, results in run["gates"].items():
        for result in sorted(results, key=lambda r: -r["heads"][1]):
            scratch = run["scratch"].get(f"gates-{kind}-{result['setting']}")
            counts = dict.fromkeys(COMPONENTS, 0)
            for site, kept in result["kept"].items():
                counts[site.partition(".")[0]] += len(kept)
            rows.append([
                "encoder, decoder frozen" if kind == "encoder" else "all",
                f"{result['heads'][1]} of {result['heads'][0]}",
                "/".join(str(counts[name]) for name in COMPONENTS), scored2(result["tests"][TEST]),
                scored2(scratch[TEST]) if scratch else "not run yet",
            ])  # fmt: skip
    epochs = next(iter(run["gates"].values()))[0]["epochs"]
    text = (
        f"Hard Concrete gates with a number of heads to keep, {epochs:g} epochs from the trained model; closed "
        "heads are "
        "removed for real. From scratch: the same heads, random weights, the whole training of the first model. "
        "BLEU on "
        f"test, one seed; the unpruned model has {scored2(run['model'][TEST])}."
    )
    head = ["gates on", "heads left", "encoder/decoder/cross", "BLEU from trained", "BLEU from scratch"]
    told = [text, "", *table(head, rows), "", *_against_scratch(run)]
    return ["## Gates (Voita et al., Table 2 and Figures 7, 9, 10)", "", *told]


def _against_scratch(run: Run) -> list[str]:
    """Whether pruning a trained model beats training the same heads from scratch, as the paper has it."""
    pairs = [
        (result["tests"][TEST]["score"], scratch[TEST]["score"])
        for kind, results in run["gates"].items()
        for result in results
        if (scratch := run["scratch"].get(f"gates-{kind}-{result['setting']}")) is not None
    ]
    if not pairs:
        return []
    epochs = next(iter(run["gates"].values()))[0]["epochs"]
    ahead = sum(trained > scratch for trained, scratch in pairs)
    seen = "appears here, too" if ahead == len(pairs) else "does not appear here"
    return [
        f"The trained model is ahead of the one from scratch in {ahead} of {len(pairs)} rows. In the paper it is in "
        "all of four (29.62 against 29.47 BLEU with 75 of 144 heads, 28.90 against 28.41 with 26): this finding "
        f"{seen}. One seed, no claim; and the two are not trained alike: gates had {epochs:g} epochs, training from "
        f"scratch {run['model']['recipe']['epochs']:g}.",
        "",
    ]


def _random(run: Run) -> list[str]:
    """Budhraja et al., Table 1."""
    if not run["random"]:
        return []
    groups: dict[str, list[float]] = {}
    for name, result in run["random"].items():
        groups.setdefault(name.rsplit("-seed-", 1)[0], []).append(result[TEST]["score"])
    titles = {"18-18-18": "25 %", "12-12-12": "50 %", "6-6-6": "75 %", "one": "one head a site (88 %)"}
    base = run["model"][TEST]["score"]
    rows = [
        [titles.get(name, name), spread(groups[name], 2), f"{np.mean(groups[name]) - base:+.2f}", len(groups[name])]
        for name in (*titles, *sorted(set(groups) - set(titles)))
        if name in groups
    ]
    epochs = next(iter(run["random"].values()))["recipe"]["epochs"]
    text = (
        f"As many random heads of each component removed, then {epochs:g} epochs of fine-tuning. BLEU on test; the "
        f"unpruned model, which had no further training, has {base:.2f}. ± is the half width of the 95 % t "
        "interval over "
        "samplings."
    )
    head = ["pruned", "BLEU", "against unpruned", "samplings"]
    return ["## Random heads (Budhraja et al., Table 1)", "", text, "", *table(head, rows), ""]


def _patterns(run: Run) -> list[str]:
    """Budhraja et al., Tables 2 and 3."""
    rows = [
        [kind, name, scored2(result[TEST])]
        for kind, results in (("by layer", run["layers"]), ("by component", run["triples"]))
        for name, result in results.items()
    ]
    if not rows:
        return []
    text = (
        "Heads kept: a digit a layer, or a number a component (ES encoder, ED cross, DS decoder); which, by chance. "
        "Fine-tuned as above; BLEU on test, one sampling each, no claim."
    )
    return [
        "## Patterns (Budhraja et al., Tables 2 and 3)",
        "",
        text,
        "",
        *table(["pattern", "kept", "BLEU"], rows),
        "",
    ]


def _unfinished(run: Run) -> list[str]:
    wanted = [f"gates-{kind}-{result['setting']}" for kind, results in run["gates"].items() for result in results]
    lacking = [name for name in wanted if name not in run["scratch"]]
    return [f"{len(lacking)} of the {len(wanted)} trainings from scratch"] if lacking else []


def _times(run: Run) -> list[str]:
    groups: dict[str, float] = {}
    for name, seconds in run["seconds"].items():
        groups[name.partition("/")[0]] = groups.get(name.partition("/")[0], 0.0) + seconds / 60
    rows = [[name, f"{minutes:.1f}"] for name, minutes in groups.items()]
    versions = ", ".join(f"{name} {value}" for name, value in run["versions"].items())
    text = (
        f"Minutes on 2 cores without a GPU, {sum(groups.values()):.0f} in all, with other work going on at times; what "
        "a killed step had done before is not counted. Trainings from scratch and patterns ran two at a time with one "
        f"thread each, so that they took half of that by the clock. No more than an orientation. {versions}."
    )
    return ["## How long it took", "", text, "", *table(["step", "minutes"], rows), ""]


def _commands(seed: int, script: str) -> list[str]:
    return [
        "## To repeat it", "", "With the aligned files of Multi30k (`train`, `val`, `test_2016_flickr` as `.en` and "
        "`.de`, or `.gz`) in `data`:", "", "```console",
        "$ python docs/results/help_pairs.py data",
        f"$ SEED={seed} bash docs/results/translation.sh data runs/multi30k-{seed}",
        "$ python docs/results/collect.py translation runs", "$ make results", "```", "",
        "`docs/results/translation.sh` is:", "", "```bash", script.rstrip(), "```",
    ]  # fmt: skip
