"""What `functions` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.jobs.options.base import Device, Force, Model, Option, Picture


@dataclass(frozen=True, kw_only=True)
class FunctionsOptions:
    model: Model
    data: Annotated[Path, Option("Sentences: a CoNLL-U file with gold trees, or text with --spacy.", is_read=True)]
    out: Annotated[Path, Option("Folder for functions.json and pictures.")]
    spacy: Annotated[str | None, Option("A spaCy model, by name or folder, that parses plain text.")] = None
    levels: Annotated[
        list[Path] | None,
        Option("curve.json or gates.json: which functions survive at each pruning level? Repeatable.", is_read=True),
    ] = None
    sentences: Annotated[int, Option("Only so many sentences; 0 is all.")] = 0
    max_length: Annotated[int, Option("Tokens a sentence at most; longer ones are left out.")] = 128
    margin: Annotated[float, Option("How far above the best fixed offset a syntactic head must be.")] = 0.10
    force: Force = False
    picture: Picture = "html"
    device: Device = "cpu"
