"""What a model folder holds besides config and weights: tokenizer, card, and what commands left there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headprune.errors import CheckpointError

# What a model folder holds besides the files that saving the pruned model writes anew.
TRAINED = ("finetune.json", "train-mt.json", "train-lm.json", "training_args.bin", "trainer_state.json")
RESULT = "prune.json"
RESULTS = (*TRAINED, "evaluation.json", RESULT)
WEIGHTS = (".safetensors", ".bin", ".gguf", ".onnx", ".h5", ".msgpack", ".ot", ".pt", ".pth", ".index.json")


def check_replaceable(folder: Path) -> None:
    """What `prune` wrote may be replaced, as by the same command again; a model from elsewhere, or trained, may not."""
    if not (folder / "config.json").exists():
        return
    trained = next((name for name in TRAINED if (folder / name).is_file()), None)
    if trained is not None or not (folder / RESULT).is_file():
        raise CheckpointError(
            f"'{folder}' holds another model{f' ({trained})' if trained else ''}, which would be lost. Choose another "
            "--out, or remove that folder."
        )


def copy_companions(source: Path, target: Path) -> None:
    """Tokenizer and other files of a local model folder, so that the pruned folder is as complete as the first."""
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
        if path.resolve().is_relative_to(target.resolve()):
            continue  # the target lies inside the source
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / relative)


@contextmanager
def kept_card(source: Path, target: Path) -> Iterator[None]:
    """The source's model card is there while saving adds what was removed; taken away again if saving fails."""
    card, copied = source / "README.md", False
    was_there = target.exists()
    if card.is_file() and not (target / "README.md").exists():
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(card, target / "README.md")
        copied = True
    try:
        yield
    except BaseException:
        if copied:
            (target / "README.md").unlink(missing_ok=True)
            if not was_there and not any(target.iterdir()):
                target.rmdir()
        raise


def _save_tokenizer(name: str, target: Path) -> None:
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(name).save_pretrained(target)
    except (OSError, ValueError, KeyError):
        return  # vision and audio models have none
