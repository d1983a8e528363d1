"""A model by its name: the one way in which headprune loads one, and what to say if there is none."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headprune import limits
from headprune.errors import CheckpointError, HeadpruneError
from headprune.types import Config

if TYPE_CHECKING:
    from torch import nn

PARSED = (".json", ".jinja", ".txt", ".model")

log = logging.getLogger("headprune")


def load_model(name: str, device: str, *, trust_remote_code: bool = False) -> nn.Module:
    """The model in the class that its config names, in evaluation mode."""
    import transformers

    quiet_transformers()
    check_sizes(Path(name))
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        cls = model_class(config)
        more = {"trust_remote_code": True} if trust_remote_code else {}
        model: nn.Module = cls.from_pretrained(name, config=config, **more).eval()
    except HeadpruneError:
        raise
    except Exception as error:  # whatever a damaged or foreign folder makes transformers stumble over
        raise cannot_load(name, error) from error
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise HeadpruneError(f"The device '{device}' cannot be used: {error}. Try --device cpu.") from error


def check_sizes(folder: Path) -> None:
    """Files that transformers parses whole are no larger than such files are."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        size = path.stat().st_size if path.name.endswith(PARSED) and path.is_file() else 0
        if size > limits.JSON_BYTES:
            raise CheckpointError(
                f"'{path}' has {size} bytes; expected at most {limits.JSON_BYTES}. It is no file of a model."
            )


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


def model_class(config: Config) -> Any:
    """The class that a checkpoint was saved from: one of transformers', or one registered with its Auto classes."""
    import transformers

    registered = [getattr(transformers, name)._model_mapping for name in ("AutoModelForCausalLM", "AutoModel")]
    others = {cls.__name__: cls for table in registered if type(config) in table for cls in (table[type(config)],)}
    for architecture in config.architectures or ():
        cls = getattr(transformers, architecture, None) or others.get(architecture)
        if cls is not None:
            return cls
    return transformers.AutoModel


def quiet_transformers() -> None:
    """Loading reports and progress bars of transformers would drown ours, unless somebody looks for a fault."""
    import transformers

    if not log.isEnabledFor(logging.DEBUG):
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
