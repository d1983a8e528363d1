"""What a model folder holds besides config and weights: tokenizer, card, and what commands left there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headprune.checkpoint.exchange import exchange
from headprune.checkpoint.save import stale

# What a model folder holds besides the files that saving the pruned model writes anew.
TRAINED = ("finetune.json", "train-mt.json", "train-lm.json", "training_args.bin", "trainer_state.json")
RESULT = "prune.json"
RESULTS = (*TRAINED, "evaluation.json", RESULT)
WEIGHTS = (".safetensors", ".bin", ".gguf", ".onnx", ".h5", ".msgpack", ".ot", ".pt", ".pth", ".index.json")


def copy_companions(source: Path, target: Path, out: Path | None = None) -> None:
    """Tokenizer and other files of a local model folder, so that the pruned folder is as complete as the first. `out`
    is where they end up, if that is elsewhere."""
    if not source.is_dir():
        _save_tokenizer(str(source), target)
        return
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        weights_of_model = len(relative.parts) == 1 and path.name.endswith(WEIGHTS)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.is_dir() or weights_of_model or hidden or path.suffix == ".py" or (target / relative).exists():
            continue
        if relative.name in RESULTS or relative.parts[0] == "checkpoints":
            continue  # what training left beside the model
        if path.resolve().is_relative_to((out or target).resolve()):
            continue  # the target lies inside the source
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / relative)


@contextmanager
def new_model_folder(out: Path, source: Path | None = None) -> Iterator[Path]:
    """Where a command puts a model and everything that belongs to it. When the block ends, the companions of its
    `source` have come along, and all of it is exchanged for the model that is in `out`."""

    def goes(names: list[str]) -> list[str]:
        return [*stale(names, out), *(name for name in RESULTS if (out / name).is_file())]

    with exchange(out, goes) as new:
        cards = [folder / "README.md" for folder in (out, source) if folder is not None]
        card = next((path for path in cards if path.is_file()), None)
        if card is not None:
            shutil.copyfile(card, new / "README.md")  # saving adds what was removed to it
        yield new
        if source is not None:
            copy_companions(source, new, out)


def _save_tokenizer(name: str, target: Path) -> None:
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(name).save_pretrained(target)
    except (OSError, ValueError, KeyError):
        return  # vision and audio models have none
