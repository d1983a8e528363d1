"""The written documentation is that of the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def build_pages():
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


def test_the_generated_pages_are_up_to_date():
    """`make docs` would change nothing."""
    for path, text in build_pages().items():
        assert path.read_text() == text, f"{path.name} is out of date: run make docs"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/api.md", "docs/cli.md"])
def test_local_links_lead_somewhere(page):
    """No dead link to a file of the project."""
    path = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target
