"""The page of all families: does it work with my model? Look it up, it was checked."""

from __future__ import annotations

from collections.abc import Mapping

from tools.families.families import counted

from headprune.model_checks import CORE, STATUSES, Verdict, checks

MEANING = {
    "pass": "every check that applies passes",
    "core": f"{', '.join(CORE)} pass; something else is refused",
    "refused": "headprune says why it does not prune it, and leaves it as it was",
    "no-attention": "there is no softmax attention with heads in it",
    "unbuilt": "no tiny model of it could be built here, so nothing is known",
    "failed": "a fault of headprune's",
}


def families_page(families: Mapping[str, Verdict], transformers: str) -> str:
    """Markdown: what the results mean, how many there are of each, and every type."""
    counts = counted(families)
    built, exact = len(families) - counts["unbuilt"], counts["pass"] + counts["core"]
    lines = [
        "# Families",
        "",
        f"Every model type of transformers {transformers}, on a tiny random model of its real class: {len(families)} "
        f"types, of which {built} could be built here; {exact} are pruned exactly and reload; "
        f"{counts['pass']} of them pass every check that applies. The same as data: [families.json](families.json).",
        "",
        "Made by `python -m tools.families --all --out docs`; for one type: `python -m tools.families bert`. For your "
        "own model: `headprune verify path/to/model` runs the same checks on it, and `prune_` compares the pruned "
        "model with the masked one each time, and puts it back if they differ.",
        "",
        "| Result | Types | Meaning |",
        "|---|---:|---|",
        *(f"| {status} | {counts[status]} | {MEANING[status]} |" for status in STATUSES),
        "",
        "The checks:",
        "",
        *(f"- **{name}**: {(check.__doc__ or '').strip()}" for name, check in checks.items()),
        "",
        "A type is judged by the first class that it has of: translation, speech to text, language model, classifier, "
        "picture classifier, CTC, picture and text, base model. Sizes are tiny, weights random: a type passes "
        "by its code alone.",
        "",
        "| Type | Class | Sites | Result | Not passed, and why |",
        "|---|---|---|---|---|",
        *(_row(name, family) for name, family in sorted(families.items())),
        "",
    ]
    return "\n".join(lines)


def _row(name: str, family: Verdict) -> str:
    sites = ", ".join(f"{count} {component}" for component, count in family.sites.items())
    cells = (f"`{name}`", family.class_name, sites, family.status, _why(family))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _why(family: Verdict) -> str:
    missed = [name for name, result in family.checks.items() if result not in ("pass", "na")]
    if not missed or len(missed) == len(family.checks):
        return family.reason
    return f"{', '.join(missed)}: {family.reason}"
