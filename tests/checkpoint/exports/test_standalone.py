"""Checkpoints that bring their code."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference, run
from tests.checkpoint.toy import answers_without_headprune, tell, uniformly_pruned
from tests.families.tiny import FAMILIES, tiny_model


@pytest.mark.long
def test_standalone_models_load_and_answer_without_headprune(tmp_path, programs):
    """Every family, ragged and with an empty site: the code is in the folder."""
    folders = []
    for family in FAMILIES:
        if family in ("all_attention", "transformer_xl"):  # our own classes
            continue
        model = uniformly_pruned(family)
        heads = hp.find_heads(model)
        hp.prune_(model, hp.HeadMask.full(heads).without(heads.sites[0].id))
        folders.append(hp.export(model, tmp_path / family, format="standalone"))
        tell(folders[-1], model)
        assert "import headprune" not in (folders[-1] / "modeling_pruned.py").read_text()
        assert "from headprune" not in (folders[-1] / "modeling_pruned.py").read_text()
    answers_without_headprune(folders, programs)
    # Where headprune is, the ordinary call does without the code in the folder.
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    assert type(loaded).__module__.startswith("transformers.")
    assert len(hp.find_heads(loaded)) == 2


def test_a_standalone_block_follows_its_width(tmp_path, programs):
    """TrOCR reshapes to the model's width: what corrects that is in the folder, too."""
    model = tiny_model("trocr", auto=AutoModelForCausalLM)
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0:1", "decoder.1:0", "decoder.1:2"))
    folder = hp.export(model, tmp_path / "trocr", format="standalone")
    tell(folder, model)
    answers_without_headprune([folder], programs)
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert len(hp.find_heads(loaded)) == len(hp.find_heads(model)) == 5
    assert difference(run(loaded, example_inputs(loaded)), run(model.eval(), example_inputs(model))).is_small


def test_standalone_is_refused_where_it_has_nothing_to_build_on(tmp_path):
    """A model of ours, and one that was never pruned; nothing is written."""
    for model, told in (
        (uniformly_pruned("all_attention"), "not a class that transformers' Auto classes know"),
        (tiny_model("bert"), "No head of this model was removed"),
    ):
        with pytest.raises(hp.HeadpruneError, match=told):
            hp.export(model, tmp_path / "out", format="standalone")
        assert not (tmp_path / "out").exists()


def test_a_standalone_folder_becomes_a_plain_one(tmp_path):
    """Without the code that it was loaded with."""
    model = tiny_model("llama", auto=AutoModelForCausalLM)
    mask = hp.HeadMask.full(hp.find_heads(model)).without("decoder.0:0", "decoder.0:1", "decoder.1:0", "decoder.1:1")
    hp.export(hp.prune_(model, mask), tmp_path / "standalone", format="standalone")
    for trusted in (False, True):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "standalone", trust_remote_code=trusted)
        folder = hp.export(loaded, tmp_path / f"plain-{trusted}", format="plain")
        assert "auto_map" not in json.loads((folder / "config.json").read_text())
        assert not list(folder.glob("*.py"))
