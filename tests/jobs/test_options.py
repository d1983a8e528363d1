"""Options as data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headprune.jobs.options.base import TaskOptions, command_words
from headprune.jobs.options.curve import CurveOptions
from headprune.jobs.options.export import ExportOptions
from headprune.jobs.options.report import ReportOptions
from headprune.jobs.options.score import ScoreOptions
from tests.command import invoked

ASKED = {
    "score": ScoreOptions(
        model="m", out=Path("o"), against=[Path("a"), Path("b")], data=TaskOptions(task="cola", batch_size=16), seed=3
    ),
    "curve": CurveOptions(model="m", out=Path("o"), rescore=True, random=0, data=TaskOptions(max_length=64)),
    "export": ExportOptions(model="my model", out=Path("o"), kind="onnx", int8=True, trust_remote_code=True),
    "report": ReportOptions(runs=[Path("a"), Path("b")], out=[Path("a.md")], title="Mine"),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_a_person_would_type_asks_for_the_same(name, monkeypatch):
    """Options as words of a command line are read as the options that they were."""
    asked = []
    monkeypatch.setattr("headprune.cli.options.run_job", lambda job, options, json: asked.append(options))
    invoked(name, *command_words(ASKED[name]))
    assert asked == [ASKED[name]]


def test_options_are_quick_to_import():
    """No help text waits for torch."""
    code = """
import importlib, pkgutil, sys, headprune.jobs.options as room
for module in pkgutil.iter_modules(room.__path__):
    importlib.import_module(f"{room.__name__}.{module.name}")
print(sorted({"torch", "transformers", "numpy", "plotly"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
