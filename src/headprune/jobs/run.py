"""`run`: tables and figures of papers, from their presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from headprune.errors import PresetError
from headprune.files import write_text
from headprune.jobs.job import SILENT, Progress, Result
from headprune.jobs.options.run import RunOptions
from headprune.lab.experiments.library import all_presets, find_preset
from headprune.lab.experiments.presets import Preset
from headprune.lab.experiments.size_check import Checked, check, check_all


@dataclass(frozen=True)
class Listed:
    """All presets."""

    presets: Sequence[Preset]
    version: ClassVar[int] = 1

    def to_dict(self) -> list[dict[str, Any]]:
        return [
            {"name": p.name, "paper": p.study, "line": p.line, "what": p.what,
             "scales": {name: {"inputs": dict(s.inputs), "note": s.note} for name, s in p.scales.items()}}
            for p in self.presets
        ]  # fmt: skip

    def message(self) -> str:
        width = max(len(preset.name) for preset in self.presets)
        return "\n".join(f"{p.name:{width}}  {p.study}, {p.line}: {p.what}" for p in self.presets)


@dataclass(frozen=True)
class Sources:
    """The files of presets."""

    presets: Sequence[Preset]
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, str]:
        return {preset.name: preset.source for preset in self.presets}

    def message(self) -> str:
        return "\n".join(preset.source.rstrip() for preset in self.presets)


@dataclass(frozen=True)
class Copied:
    """A preset as a file of one's own."""

    file: Path
    version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, str]:
        return {"file": str(self.file)}

    def message(self) -> str:
        return f"{self.file}: change it, then headprune run {self.file}"


@dataclass(frozen=True)
class Sizes:
    """Models of the papers' true size."""

    models: Mapping[str, Sequence[Checked]]  # by preset
    version: ClassVar[int] = 1

    @property
    def failed(self) -> list[str]:
        """Presets whose models are not of the size that the paper tells."""
        return [name for name, models in self.models.items() if any(one.agrees is False for one in models)]

    def to_dict(self) -> dict[str, Any]:
        return {name: [one.to_dict() for one in models] for name, models in self.models.items()}

    def message(self) -> str:
        return "\n".join(f"{name}, {one.message()}" for name, models in self.models.items() for one in models)


def run(options: RunOptions, progress: Progress = SILENT) -> Result:
    """Repeat tables and figures; what is finished in the folder is not run again."""
    if options.show_all:
        return Listed(all_presets())
    if options.every and options.names:
        raise PresetError(f"--all is every preset; {' '.join(options.names)} was given, too: leave out one of them.")
    if not options.names and not options.every:
        raise PresetError("Which preset? `headprune run --list` shows all, `--all` runs them.")
    names = options.names or []
    if options.copy:
        return _copied(names)
    presets = [find_preset(name, trusted=options.trust_remote_code) for name in names]
    if options.every:  # those by arithmetic have one scale for both
        presets = [one for one in all_presets() if ("paper" if options.check else options.scale) in one.scales]
    if len({preset.name for preset in presets}) < len(presets):
        raise PresetError(f"Two presets have one name: {', '.join(p.name for p in presets)}. Give the copy another.")
    if options.show:
        return Sources(presets)
    if options.check:
        sizes = Sizes(check_all(presets) if options.every else {preset.name: check(preset) for preset in presets})
        if sizes.failed:
            progress.note(f"The size is not the paper's: {', '.join(sizes.failed)}.")
        return sizes
    from headprune.lab.experiments.repetition import repeat  # statistics take a second to import: not for a list

    return repeat(presets, options, progress)


def _copied(names: Sequence[str]) -> Copied:
    if len(names) != 2 or not names[1].endswith(".toml"):
        raise PresetError(f"Found {' '.join(names)}; expected a preset and a file: run --copy NAME FILE.toml.")
    target = Path(names[1])
    if target.exists():
        raise PresetError(f"'{target}' is there already: choose another name, or remove it.")
    source = find_preset(names[0]).source.replace(f'name = "{names[0]}"', f'name = "{target.stem}"', 1)
    return Copied(write_text(target, source))
