"""The command line in this process: a start of Python with torch and transformers takes seconds."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from headprune.cli.app import app


def invoked(*words: object) -> Result:
    """Output and exit code of a command; errors of ours come through."""
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def call(*words: object) -> str:
    """What a command prints."""
    return invoked(*words).stdout


def answered(*words: object) -> Any:
    """What a command prints for programs."""
    told = call(*words, "--json")
    return json.loads(told[min(told.find(c) for c in "{[" if c in told) :])
