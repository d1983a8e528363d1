"""The examples run as a reader would run them, and say what they should."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.places import ROOT

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(path.name for path in (EXAMPLES / "notebooks").glob("*.ipynb"))


@pytest.fixture
def said(programs, tmp_path):
    """What a script prints, run in an empty folder, with no network and one thread."""

    def run(script):
        done = programs.run(EXAMPLES / script, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        left = {path.name for path in tmp_path.iterdir()}
        assert not left, f"it leaves {left} behind"
        return done.stdout

    return run


def numbers(pattern, text):
    """Every number that the pattern's group finds."""
    return [float(found) for found in re.findall(pattern, text)]


@pytest.mark.long
def test_a_trainer_user_ends_with_half_of_the_heads(said):
    """And the saved model, loaded again, is better than chance on reviews that it has not seen."""
    text = said("trainer_user.py")
    assert numbers(r"(\d+) heads", text) == [72, 36, 36]
    assert numbers(r"loaded: 36 heads, accuracy ([\d.]+)", text)[0] > 0.55


def test_a_plain_pytorch_model_learns_again_with_a_quarter_of_its_heads(said):
    """Loaded into a fresh model that is pruned alike, it answers the same."""
    text = said("plain_pytorch.py")
    assert numbers(r"(\d+) heads", text) == [16, 4, 4]
    trained, pruned, again = numbers(r"accuracy ([\d.]+)", text)
    assert trained > 0.95
    assert pruned < again
    assert again > 0.95
    assert "same answers: True" in text


def test_a_repaired_language_model_writes_what_it_wrote(said):
    """With half of its groups gone; without the repair, its loss is larger."""
    text = said("llm_gqa.py")
    assert numbers(r"(\d+) heads", text) == [36, 18, 18]
    whole, pruned, repaired = numbers(r"loss ([\d.]+)", text)
    assert whole < repaired < pruned
    lines = [line.partition("writes: ")[2] for line in text.splitlines()]
    assert lines[0] == lines[2] == "The early bird catches the worm."


def test_a_translation_model_loses_heads_in_every_component(said):
    """Three quarters of each, and it translates again after a little training."""
    text = said("translation.py")
    for component in ("encoder", "decoder", "cross"):
        counts = numbers(rf"{component}\.\d (\d+)", text)
        assert [sum(counts[place : place + 2]) for place in (0, 2, 4)] == [16, 4, 4]
    trained, pruned, again = numbers(r"(\d+)% of the new", text)
    assert trained > 60
    assert pruned < trained
    assert again > 60


def test_a_scorer_of_ones_own_beats_chance(said):
    """Registered by name, it keeps the vectors of new sentences nearer than random pruning does."""
    text = said("own_scorer.py")
    assert numbers(r"(\d+) heads left", text) == [54, 54, 54]
    near = dict(re.findall(r"^([\w-]+) .* cosine of ([\d.]+)$", text, re.MULTILINE))
    assert float(near["vector-shift"]) > float(near["magnitude"])
    assert float(near["vector-shift"]) > float(near["random"])


@pytest.mark.long
def test_a_gate_of_ones_own_closes_heads(said):
    """They are removed, the model still knows its task, and answers as with its gates."""
    text = said("own_gate.py")
    assert 1 <= numbers(r"(\d+) of 16 heads left", text)[0] <= 8
    assert numbers(r"accuracy ([\d.]+)", text)[0] > 0.9
    assert numbers(r"differ by (\S+)", text)[0] < 1e-4


def test_what_v4_had_is_there(said):
    """Masked equals pruned, the config tells, and a checkpoint of v4 answers as it did there."""
    text = said("from_v4.py")
    assert "69 of 72 heads left" in text
    assert numbers(r"differ by (\S+)", text)[0] < 1e-4
    assert "{0: [1, 2], 5: [7]}" in text
    assert "its answers are those of transformers 4.57.1" in text


@pytest.mark.long
def test_exported_models_answer_without_headprune(said):
    """All three formats, as the pruned model does."""
    gaps = dict(re.findall(r"^(\w+): loaded without headprune, .* by (\S+)$", said("serve_pruned.py"), re.MULTILINE))
    assert set(gaps) == {"standalone", "onnx", "plain"}
    assert max(map(float, gaps.values())) < 1e-4


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_short_and_say_how_to_run_them(script):
    """At most 60 lines; the docstring and the table have the same command."""
    text = (EXAMPLES / script).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    command = re.search(rf"^Run: (python examples/{script}[^(\n]*)", text, re.MULTILINE)
    assert command is not None
    assert f"[{script}]({script}) | `{command[1].strip()}` |" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_every_script_has_a_test_of_what_it_says():
    """A new script needs one, too."""
    tested = re.findall(r'said\("(\w+\.py)"', Path(__file__).read_text(encoding="utf-8"))
    assert sorted(tested) == SCRIPTS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_listed_and_hold_no_outputs(name):
    """What a notebook shows is made where it is run."""
    stored = json.loads((EXAMPLES / "notebooks" / name).read_text(encoding="utf-8"))
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert f"[{name}](notebooks/{name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


SHOWN = {
    "which_heads_matter.ipynb": ("72 heads", "sensitivity, curvature", "random "),
    "prune_without_training.ipynb": ("search and repair  18 heads left", "parameters 22.7 M"),
    "what_heads_do.ipynb": ("24 sentences", "nsubj, dependent to head", "positional"),
}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run_from_top_to_bottom(name, tmp_path):
    """In a fresh kernel; their pictures are made, and they say what they should."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "notebooks" / name, as_version=4)
    NotebookClient(notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert all(words in text for words in SHOWN[name]), text
    assert any("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs)
