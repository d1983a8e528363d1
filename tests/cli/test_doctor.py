"""`headprune doctor`."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from headprune.cli.app import app
from headprune.errors import MaskError
from tests.command import call


def test_the_doctor_finds_a_working_installation():
    """Versions, extras and devices for programs, and one line for people."""
    found = json.loads(call("doctor", "--json"))
    assert found["problems"] == []
    assert found["extras"] == {"tasks": [], "report": [], "ray": [], "onnx": [], "gguf": [], "openvino": [], "demo": []}
    assert found["packages"]["transformers"].startswith("5.")
    assert "cpu" in found["devices"]
    assert call("doctor").splitlines()[-1].startswith("everything works")


def test_the_doctor_names_what_is_missing_or_broken(monkeypatch):
    """An extra without its package, a version out of range, a model that cannot be pruned."""
    from headprune.jobs import doctor

    known = doctor._version
    gone = {"ray": None, "plotly": None, "scipy": "0.1"}
    monkeypatch.setattr(doctor, "_version", lambda name: gone.get(name, known(name)))

    def refuse(*words, **more):
        raise MaskError("not today")

    monkeypatch.setattr("headprune.surgery.prune.prune_", refuse)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["extras"]["ray"] == ["ray"]
    assert found["extras"]["demo"] == ["plotly"]  # by the extra within it
    assert "scipy is 0.1" in found["problems"][0]
    assert "MaskError: not today" in found["problems"][1]
    assert "pip install 'headprune[ray]'" in CliRunner().invoke(app, ["doctor"]).stdout
