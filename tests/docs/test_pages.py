"""The written documentation is that of the code."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

from tests.places import ROOT

RESULTS = ROOT / "docs" / "results"


def build_pages(builder):
    spec = importlib.util.spec_from_file_location("docs_build", builder)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


@pytest.mark.parametrize("builder", ["build.py", "robustness_build.py"])
def test_the_generated_pages_are_up_to_date(builder):
    """`make docs` would change nothing."""
    for path, text in build_pages(ROOT / "docs" / builder).items():
        assert path.read_text() == text, f"{path.name} is out of date: run make docs"


def test_the_fuzz_run_found_nothing():
    """As many inputs as were asked for, and no finding."""
    fuzz = json.loads((ROOT / "benchmarks/results/fuzz.json").read_text())
    assert fuzz["inputs"] >= 100_000
    assert fuzz["findings"] == []


def test_the_results_are_those_of_the_stored_figures():
    """`make results` would change nothing, and no page stands there without figures."""
    pages = build_pages(RESULTS / "build.py")
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.name} is out of date: run make results"
    assert {path.name for path in RESULTS.glob("*.md")} == {path.name for path in pages}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "examples/README.md"])
def test_local_links_lead_somewhere(page):
    """No dead link to a file of the project; pages of the site are looked at in test_site."""
    path = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_cost_of_a_cluster_is_the_measured_one():
    """The table of docs/cluster.md is that of the stored benchmark."""
    spec = importlib.util.spec_from_file_location("paper_cost", ROOT / "benchmarks" / "paper_cost.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stored = json.loads((ROOT / "benchmarks" / "results" / "paper_cost.json").read_text())
    assert module.table(stored) in (ROOT / "docs" / "cluster.md").read_text()
    for paper, row in module.costs(stored["shapes"]).items():  # the presets have not changed since
        assert row == pytest.approx(stored["papers"][paper])


def test_the_speeds_of_the_pages_are_the_measured_ones():
    """docs/without-training.md and docs/deployment.md against the stored benchmarks, and these within their targets."""

    def words(page):
        return " ".join((ROOT / "docs" / page).read_text().split())

    onnx, targets = (
        json.loads((ROOT / "benchmarks" / "results" / name).read_text())
        for name in ("onnx_speed.json", "speedup_target.json")
    )
    runs = targets["speedups"]
    assert all(abs(run["measured"] / float(asked) - 1) <= 0.05 for asked, run in runs.items())
    first, second, third = (f"{run['measured']:.3f}" for run in runs.values())
    assert f"were {first}, {second} and {third} times as fast" in words("without-training.md")
    controls = ", ".join(f"{run['control']:.3f}" for run in runs.values())
    assert f"A/A controls {controls}" in words("without-training.md")
    half, most = (run["reached"] for run in onnx["speedup"].values())
    assert min(half, most) >= 0.9
    assert f"measured {half:.3f} (half of the heads gone) and {most:.3f} (three quarters)" in words("deployment.md")
