"""The part of a model card that tells what was removed."""

from __future__ import annotations

import re

from headprune import files
from headprune.checkpoint.config_entry import Entry, recorded_heads
from headprune.errors import FileFormatError
from headprune.heads.ids import NEURONS, SiteName

BEGIN, END = "<!-- headprune: begin -->", "<!-- headprune: end -->"
LOADING = """Load it with the ordinary call, after importing headprune (without it, loading stops with an error):

```python
import headprune
from transformers import AutoModel

model = AutoModel.from_pretrained("path/to/this/folder")
```"""


def model_card(entry: Entry, before: str = "", *, loading: str = LOADING) -> str:
    """The card `before` with our section put in, or replaced if it is there already; `loading` is what it takes."""
    section = f"{BEGIN}\n{_section(entry, loading)}\n{END}"
    if BEGIN in before and END in before:
        return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: section, before, count=1, flags=re.DOTALL)
    if before.strip():
        return f"{before.rstrip()}\n\n{section}\n"
    return f"---\nlibrary_name: transformers\ntags:\n- headprune\n---\n\n# Pruned model\n\n{section}\n"


def _section(entry: Entry, loading: str) -> str:
    every = recorded_heads(entry)
    heads, neurons = every.attention, every.neurons
    original = sum(site.original_num_heads for site in heads)
    lines = [
        "## Removed attention heads",
        "",
        f"{original - len(heads)} of {original} attention heads were removed. Heads count from 0, by their "
        "index in the original model.",
        "",
        "| site | heads left | of | removed |",
        "|---|---|---|---|",
    ]
    for site in heads:
        gone = [head for head in range(site.original_num_heads) if head not in site.kept]
        shown = ", ".join(map(str, gone)) if gone else "none"
        lines.append(f"| {site.id} | {site.num_heads} | {site.original_num_heads} | {shown} |")
    if neurons:
        lines += [
            "",
            "Neurons of feed-forward parts that are left:",
            "",
            "| site | neurons left | of |",
            "|---|---|---|",
        ]
        lines += [f"| {site.id} | {site.num_heads} | {site.original_num_heads} |" for site in neurons]
    lines += ["", "How they were chosen:", ""]
    history = entry.get("history", [])
    if not isinstance(history, list) or not all(isinstance(step, dict) for step in history):
        raise FileFormatError(f"The config's history is {str(history)[:60]}; expected a list of tables, one a pruning.")
    for number, step in enumerate(history, 1):
        removed = _removed(files.head_lists(step.get("removed", {}), "The config's history, 'removed'"))
        how = step.get("by") or "a mask given by the user"
        on = f", on {step['on']}" if step.get("on") else ""
        repaired = f"; repaired without training by {step['recovered']}" if step.get("recovered") else ""
        lines.append(f"{number}. {removed} by {how}{on}{repaired}")
    lines += ["", loading]
    return "\n".join(lines)


def _removed(gone: dict[str, list[int]]) -> str:
    neurons = sum(len(indices) for site, indices in gone.items() if SiteName.parse(site).component == NEURONS)
    heads = sum(len(indices) for indices in gone.values()) - neurons
    return " and ".join(f"{count} {what}" for count, what in ((heads, "heads"), (neurons, "neurons")) if count)
