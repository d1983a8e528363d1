"""What the commands share: options, amounts, loading a model, progress."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headprune.errors import CheckpointError, HeadpruneError, MaskError, UnsupportedModelError

if TYPE_CHECKING:
    from torch import nn

    from headprune.heads import HeadMap


@dataclass
class State:
    debug: bool = False


state = State()

Model = Annotated[str, typer.Argument(help="A model: a folder, or a name on the hub.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Seed = Annotated[int, typer.Option(help="Seed of random choices.")]
Device = Annotated[str, typer.Option(help="Where to run: cpu, cuda, mps, …")]
Picture = Annotated[Literal["html", "png", "svg"], typer.Option(help="html (values on hover), png or svg.")]
Parts = Annotated[
    Literal["heads", "neurons", "both"],
    typer.Option(help="What may go: attention heads, neurons of feed-forward parts, or both."),
]
RemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model. Off unless you ask for it.")
]


def find_parts(model: nn.Module, parts: str) -> tuple[HeadMap, HeadMap]:
    """Everything that a mask of this model must name, and what of it may go."""
    from headprune.structure import find_heads

    every = find_heads(model, neurons=parts != "heads")
    found = every.neurons if parts == "neurons" else every
    if not found:
        why = f" ({every.skipped[0].path}: {every.skipped[0].reason})" if every.skipped else ""
        raise UnsupportedModelError(f"No {parts} were found in {type(model).__name__}{why}.")
    return every, found


def amount(text: str) -> float | int:
    """`50%` is a share, `72` a count."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if not match or (not match[2] and "." in match[1]):
        raise MaskError(f"'{text}' is not an amount of heads. Expected a share like 50% or a count like 72.")
    return float(match[1]) / 100 if match[2] else int(match[1])


def load_model(name: str, device: str, *, trust_remote_code: bool = False) -> nn.Module:
    """The model in the class that its config names, in evaluation mode."""
    import transformers

    quiet_transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        cls = model_class(transformers, config)
        more: dict[str, Any] = {"trust_remote_code": True} if trust_remote_code else {}
        model: nn.Module = cls.from_pretrained(name, config=config, **more).eval()
    except HeadpruneError:
        raise
    except Exception as error:  # whatever a damaged or foreign folder makes transformers stumble over
        raise cannot_load(name, error) from error
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise HeadpruneError(f"The device '{device}' cannot be used: {error}. Try --device cpu.") from error


def cannot_load(name: str, error: Exception) -> CheckpointError:
    """Why there is no model by this name: no such folder, an unfinished one, or what the library says."""
    place = Path(name)
    if (place / "checkpoints").is_dir() and not (place / "config.json").exists():
        return CheckpointError(
            f"'{name}' holds no finished model, only a run that was not finished. Start the command that made it "
            "again: it goes on from its last checkpoint."
        )
    what = str(error).strip().rstrip(".")
    if place.is_dir():
        return CheckpointError(f"'{name}' cannot be loaded: {what}. Expected a folder with config.json and weights.")
    near = [path.name for path in place.parent.glob("*/") if (path / "config.json").is_file()] if place.name else []
    close = get_close_matches(place.name, near, n=1)
    meant = f" (did you mean '{place.parent / close[0]}'?)" if close else ""
    return CheckpointError(
        f"'{name}' cannot be loaded. There is no such folder{meant}, and as the name of a model on the hub it could "
        f"not be loaded either: {what}"
    )


def model_class(transformers: Any, config: Any) -> Any:
    """The class that a checkpoint was saved from: one of transformers', or one registered with its Auto classes."""
    registered = [getattr(transformers, name)._model_mapping for name in ("AutoModelForCausalLM", "AutoModel")]
    others = {cls.__name__: cls for table in registered if type(config) in table for cls in (table[type(config)],)}
    for architecture in config.architectures or ():
        cls = getattr(transformers, architecture, None) or others.get(architecture)
        if cls is not None:
            return cls
    return transformers.AutoModel


def quiet_transformers() -> None:
    """Loading reports and progress bars of transformers would drown ours."""
    import transformers

    if not state.debug:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()


@contextmanager
def progress(total: int) -> Iterator[Any]:
    """A progress bar on stderr, gone when done; call the result with the name of each step as it begins."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = False

        def step(name: str) -> None:
            nonlocal begun
            bar.update(task, description=name, advance=1 if begun else 0)
            begun = True

        yield step


def check_writable(folder: Path, source: str | None = None) -> Path:
    """Find out before the work, not after it. What took training to make is not replaced by what is made of it."""
    if source is not None and Path(source).is_dir() and folder.resolve() == Path(source).resolve():
        raise CheckpointError(f"--out '{folder}' is the model itself, which would be lost. Choose another --out.")
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise CheckpointError(
            f"'{folder}' cannot be written: '{existing}' is not a writable folder. Choose another --out."
        )
    return folder
