"""The order of the rooms of headprune, and what each knows. The test of imports and CONTRIBUTING.md read it here.

A module imports only from those above it. `room.module` is a module whose place differs from its room's: what a model's
config says of its heads is part of what is on disk, and finding heads reads it.
"""

from __future__ import annotations

LAYERS = {
    "errors": "the exception tree",
    "limits": "how much a file may ask for",
    "memory": "how much memory there is, and what may be taken of it",
    "quiet": "other libraries' words, kept from people who did not ask for them",
    "registry": "names to things, with near-miss hints and entry points of other packages",
    "types": "types that many rooms share",
    "typed_json": "dataclasses to and from JSON, the first wrong field told",
    "jobs.options": "what can be asked of each job: light dataclasses; the command line and presets are made of them",
    "files": "atomic writes, bounded reads, kinds and schemas of JSON files; work in parts that resumes",
    "stats": "bootstrap, paired tests, corrections, correlations",
    "heads": "`HeadId`, `HeadMap`, `HeadMask`, `HeadScores`: values, no model code; patterns, ranking by scores",
    "patches": "how transformers and torch are changed, each with why and since when; nothing else changes them",
    "structure.adapters": "knowledge about the few families whose structure does not tell everything: data",
    "hooks": "tracing, masks, gates, replay: the only place that registers hooks",
    "checkpoint.config_entry": "what a config says of removed heads",
    "structure": "finding attention and neurons in a model: trace, projections, names, example inputs",
    "masking": "`masked`",
    "scoring": "what scorers are given, losses, moments; `methods/`: one file each",
    "cost": "parameters and MACs counted; time with its control, and memory, measured",
    "surgery": "plan, edits, apply, verify; emptied sites",
    "recovery": "repair without training, search; `methods/`: one file each",
    "gates": "distributions (one file each), penalties, schedules, the Trainer",
    "checkpoint": "what is on disk: save, load, v4, gated models, companions; `exports/`: one file a format",
    "model_checks": "the checks of one model behind `headprune verify`",
    "budgets": "masks within a budget, the public `select`; `kinds/`: one file a budget",
    "on_disk": "checkpoints on disk, worked through layer by layer",
    "shrink": "the whole job in one call: choose, repair, remove, tell the price",
    "lab.models": "All-attention and Transformer-XL; the demo's model",
    "tasks": "data in, batches, losses, metrics, fine-tuning",
    "lab.analysis": "functions of heads, agreement, weight change, pictures",
    "lab.playground": "the page to play with a model, recorded or served to this machine",
    "jobs": "what each command does, as a function: options in, a typed result out",
    "lab.experiments": "presets (`presets_toml/`: one file each), trials, stores, sweeps, Ray",
    "lab.report": "stored results as one page",
    "jobs.report": "the job that makes the page",
    "jobs.run": "the job that runs presets",
    "lab": "the papers' laboratory: the rooms above",
    "compat": "the calls of transformers v4",
    "integration": "what `import headprune` does to transformers",
    "__init__": "the public names, loaded when first used",
    "cli": "the lazy group of commands, and one file that makes them of the options of jobs",
    "__main__": "`python -m headprune`",
}


def table() -> str:
    """The order as Markdown."""
    rows = [f"| `{name}` | {what} |" for name, what in LAYERS.items()]
    return "\n".join(["| module | what it knows |", "|---|---|", *rows])
