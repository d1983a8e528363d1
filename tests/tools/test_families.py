"""Tiny models of every type: one process a type, whatever becomes of it."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from tools.families import processes
from tools.families.__main__ import main
from tools.families.build_model import NotBuiltError, build, model_types
from tools.families.families import counted, read_families, write_families
from tools.families.page import families_page
from tools.families.processes import verify_types

from headprune.errors import HeadpruneError
from headprune.model_checks import Verdict
from tests.places import DOCS, ROOT


def crash(model_type, send):
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(model_type, send):
    time.sleep(60)


def test_a_crash_of_one_type_is_its_result(monkeypatch):
    """The others go on."""
    monkeypatch.setattr(processes, "_verify", crash)
    (family,) = verify_types(["bert"]).values()
    assert family.status == "failed"
    assert "ended with -11" in family.reason


def test_a_type_that_never_ends_is_stopped(monkeypatch):
    """After the limit."""
    monkeypatch.setattr(processes, "_verify", hang)
    begun = time.monotonic()
    (family,) = verify_types(["bert"], limit=2).values()
    assert family.reason == "took longer than 2 s"
    assert time.monotonic() - begun < 40


def test_the_list_has_every_type_with_a_class():
    """Of text, pictures and sound."""
    types = model_types()
    assert {"bert", "llama", "t5", "vit", "whisper"} <= set(types)
    assert len(types) >= 400


def test_a_type_that_cannot_be_built_says_why():
    """With what was tried besides, as notes."""
    with pytest.raises(NotBuiltError, match=r"tiny model|not installed|M parameters"):
        build("timm_backbone")


def test_the_command_tells_and_writes(tmp_path, capsys):
    """JSON for programs, a file and a page for people; a second call does not lose the first."""
    main(["bert", "mamba", "--out", str(tmp_path), "--json"])
    types = json.loads(capsys.readouterr().out)["types"]
    assert {name: entry["status"] for name, entry in types.items()} == {"bert": "pass", "mamba": "no-attention"}
    assert json.loads((tmp_path / "families.json").read_text())["types"] == types
    assert "| `bert` | BertLMHeadModel | 2 encoder | pass |" in (tmp_path / "families.md").read_text()
    assert not (tmp_path / ".families").exists()


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch, capsys):
    """What is finished is not done again."""
    import transformers

    monkeypatch.setattr(processes, "_verify", crash)
    known = {"bert": Verdict("pass", sites={"encoder": 2}, checks={"found": "pass"})}
    write_families(tmp_path / ".families", known, transformers.__version__)
    main(["bert", "gpt2", "--out", str(tmp_path), "--json"])
    types = json.loads(capsys.readouterr().out)["types"]
    assert (types["bert"]["status"], types["gpt2"]["status"]) == ("pass", "failed")


def test_another_version_of_transformers_is_other_work(tmp_path):
    """And a damaged file is no work at all."""
    write_families(tmp_path, {"bert": Verdict("pass")}, "5.0.0")
    assert read_families(tmp_path, "5.0.0").keys() == {"bert"}
    assert read_families(tmp_path, "5.1.0") == {}
    (tmp_path / "families.json").write_text('{"transformers": "5.0.0", "types": [1]}')
    assert read_families(tmp_path, "5.0.0") == {}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [([], "Name model types"), (["bert", "--all"], "Name model types"), (["bertt"], "Did you mean 'bert'")],
)
def test_bad_questions_get_clear_answers(arguments, told):
    """No traceback."""
    with pytest.raises(HeadpruneError, match=told):
        main(arguments)


def stored():
    content = json.loads((DOCS / "families.json").read_text())
    return {name: Verdict.from_dict(entry) for name, entry in content["types"].items()}, content["transformers"]


def test_the_page_and_the_readme_say_what_the_file_says():
    """docs/families.md is made from docs/families.json, and so are the numbers of the README."""
    families, version = stored()
    assert (DOCS / "families.md").read_text() == families_page(families, version)
    counts = counted(families)
    readme = " ".join((ROOT / "README.md").read_text().split())
    exact = counts["pass"] + counts["core"]
    built = len(families) - counts["unbuilt"]
    assert f"Of the {len(families)} model types of transformers {version}, {built} could be built" in readme
    assert f"{exact} are pruned exactly and reload, {counts['pass']} of them with every check" in readme


def test_the_figures_of_the_file_are_reached():
    """At least 400 types built, 330 pruned exactly, 280 with every check; none fails."""
    families, _ = stored()
    counts = counted(families)
    assert len(families) - counts["unbuilt"] >= 400
    assert counts["pass"] + counts["core"] >= 330
    assert counts["pass"] >= 280
    assert counts["failed"] == 0


@pytest.mark.parametrize(
    "model_type", ["bert", "llama", "bart", "clip", "wavlm", "xlnet", "mixtral", "zamba", "olmo2", "detr"]
)
def test_a_sample_reproduces_the_file(model_type):
    """The same results, check by check."""
    import transformers

    families, version = stored()
    if transformers.__version__ != version:
        pytest.skip(f"the file is about transformers {version}")
    (found,) = verify_types([model_type]).values()
    assert found.to_dict() == families[model_type].to_dict()


def test_a_type_that_takes_too_much_to_look_at_fails(monkeypatch):
    """Whatever else it passes: its example is too large."""
    from tools.families import families

    assert families.verify_type("bert").status == "pass"
    monkeypatch.setattr(families, "MOST_BYTES", -1)
    assert "looking at a tiny model takes 0 s" in families.verify_type("bert").reason
