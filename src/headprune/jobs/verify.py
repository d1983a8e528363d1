"""`verify`: does pruning work with my model?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from transformers import CONFIG_MAPPING

from headprune.checkpoint.load_model import load_model
from headprune.checkpoint.out_folder import open_out
from headprune.errors import CheckpointError, HeadpruneError
from headprune.files import dump, labelled, write_text
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.verify import VerifyOptions
from headprune.model_checks import Verdict, check_model, checks

TYPES = (
    "Tiny models of every type are built and checked by `python -m tools.families {names}` in headprune's repository, "
    "and docs/families.md has what was found. `headprune verify` checks your own model: a folder, or a name on the hub."
)
MEANING = {
    "pass": "every check that applies passes",
    "core": "it is pruned exactly and reloads; something else is refused",
    "refused": "it cannot be pruned exactly, and is left as it was",
    "no-attention": "there are no attention heads in it",
    "unbuilt": "nothing could be checked",
    "failed": "a check fails, which is a fault of headprune: please report it",
}
RESULTS = {"na": "does not apply"}


@dataclass(frozen=True)
class Verified:
    """What the checks said of a model."""

    model: str
    verdict: Verdict
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        return labelled("verdict", {"model": self.model, **self.verdict.to_dict()})

    def message(self) -> str:
        found = self.verdict
        lines = [f"{name:20}  {RESULTS.get(result, result)}" for name, result in found.checks.items()]
        why = f" ({found.reason})" if found.reason else ""
        return "\n".join([*lines, f"{self.model}, {found.class_name}: {MEANING[found.status]}{why}"])


def verify(options: VerifyOptions, progress: Progress = SILENT) -> Verified:
    """Put a model through every check: found, masked, pruned, reloaded, emptied, generating, training …"""
    names = options.models or []
    if options.every_type or len(names) > 1:
        raise HeadpruneError(TYPES.format(names="--all" if options.every_type else " ".join(names)))
    if not names:
        raise HeadpruneError("Name a model: a folder, or a name on the hub.")
    if options.out is not None:
        open_out("verify", options)
    with progress.steps(1 + len(checks)) as step:
        step("loading the model")
        try:
            model = load_model(names[0], options.device, trust_remote_code=options.trust_remote_code)
        except CheckpointError as error:
            if names[0] in CONFIG_MAPPING and not Path(names[0]).exists():
                raise HeadpruneError(f"'{names[0]}' is a type of models. " + TYPES.format(names=names[0])) from error
            raise
        result = Verified(names[0], check_model(model, step=step))
    if options.out is not None:
        write_text(options.out / "verdict.json", dump("verdict", {"model": names[0], **result.verdict.to_dict()}))
    return result
