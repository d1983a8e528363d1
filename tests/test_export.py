"""Pruned models where headprune is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import headprune as hp
from headprune.checkpoint.exports import export_format, exports
from headprune.cli.app import app
from headprune.equality import difference
from headprune.structure.example import example_inputs
from headprune.structure.run import run
from tests.families.tiny import FAMILIES, tiny_model

# Whose config can say that heads are fewer and as wide as before.
PLAIN = {
    "phi", "phi3", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "deepseek_v3",
    "t5", "mt5", "vit", "deit", "dinov2",
}  # fmt: skip

LOADED = """
import json, sys
from pathlib import Path

class Nothing:  # headprune cannot be imported here
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "headprune":
            raise ImportError("headprune is not installed here")

sys.meta_path.insert(0, Nothing())
import torch, transformers
for folder in map(Path, sys.argv[1:]):
    told = json.loads((folder / "told.json").read_text())
    auto = json.loads((folder / "config.json").read_text()).get("auto_map")
    if auto:  # the code to load it is in the folder
        model = getattr(transformers, next(iter(auto))).from_pretrained(folder, trust_remote_code=True).eval()
    else:
        model = getattr(transformers, told["class"]).from_pretrained(folder).eval()
    with torch.no_grad():
        found = model(**{name: torch.tensor(value) for name, value in told["batch"].items()})[0]
    expected = torch.tensor(told["output"])
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5), (folder, (found - expected).abs().max())
    assert model.num_parameters() <= told["parameters"], folder  # T5's table of positions is cut, too
    print(folder.name, "as it was")
assert "headprune" not in sys.modules
"""


def uniformly_pruned(family):
    """The first head or group of every site is gone."""
    model = tiny_model(family)
    heads = hp.find_heads(model)
    gone = [f"{site.id}:{head}" for site in heads for head in site.groups[0]]
    return hp.prune_(model, hp.HeadMask.full(heads).without(*gone))


def tell(folder, model):
    """What the model answers, beside its checkpoint."""
    batch = {name: value for name, value in example_inputs(model).items() if isinstance(value, torch.Tensor)}
    with torch.no_grad():
        output = model(**batch)[0]
    told = {
        "class": type(model).__name__, "batch": {name: value.tolist() for name, value in batch.items()},
        "output": output.tolist(), "parameters": model.num_parameters(),
    }  # fmt: skip
    (folder / "told.json").write_text(json.dumps(told))


def answers_without_headprune(folders, cache):
    """In a process where it cannot even be imported."""
    words = [sys.executable, "-c", LOADED, *map(str, folders)]
    environment = {**os.environ, "HF_MODULES_CACHE": str(cache)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("as it was") == len(folders)


def test_plain_models_load_and_answer_without_headprune(tmp_path):
    """Every family whose config can say it."""
    folders = []
    for family in sorted(PLAIN):
        model = uniformly_pruned(family)
        folders.append(hp.export(model, tmp_path / family, format="plain"))
        tell(folders[-1], model)
        assert "headprune" not in json.loads((folders[-1] / "config.json").read_text())
    answers_without_headprune(folders, tmp_path / "cache")


def test_standalone_models_load_and_answer_without_headprune(tmp_path):
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
    answers_without_headprune(folders, tmp_path / "cache")
    # Where headprune is, the ordinary call does without the code in the folder.
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    assert type(loaded).__module__.startswith("transformers.")
    assert len(hp.find_heads(loaded)) == 2


def test_a_standalone_block_follows_its_width(tmp_path):
    """TrOCR reshapes to the model's width: what corrects that is in the folder, too."""
    model = tiny_model("trocr", auto=AutoModelForCausalLM)
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0:1", "decoder.1:0", "decoder.1:2"))
    folder = hp.export(model, tmp_path / "trocr", format="standalone")
    tell(folder, model)
    answers_without_headprune([folder], tmp_path / "cache")
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert len(hp.find_heads(loaded)) == len(hp.find_heads(model)) == 5
    assert difference(run(loaded), run(model.eval())).is_small


def test_standalone_is_refused_where_it_has_nothing_to_build_on(tmp_path):
    """A model of ours, and one that was never pruned; nothing is written."""
    for model, told in (
        (uniformly_pruned("all_attention"), "not a class that transformers' Auto classes know"),
        (tiny_model("bert"), "No head of this model was removed"),
    ):
        with pytest.raises(hp.HeadpruneError, match=told):
            hp.export(model, tmp_path / "out", format="standalone")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - PLAIN))
def test_families_that_cannot_be_plain_say_why(family, tmp_path):
    """And nothing is written."""
    model = uniformly_pruned(family)
    with pytest.raises(hp.HeadpruneError, match=r"Otherwise save it with save_pretrained") as refusal:
        hp.export(model, tmp_path / "out", format="plain")
    reasons = ("divisible", "multiple", "divide", "of shape", "a list of heads by stage")
    assert any(reason in str(refusal.value) for reason in reasons)
    assert not (tmp_path / "out").exists()


def test_ragged_and_empty_layers_are_refused_by_name():
    """An ordinary config has one number for all layers."""
    model = tiny_model("llama")
    heads = hp.find_heads(model)
    hp.prune_(model, hp.HeadMask.full(heads).without("decoder.0:0", "decoder.0:1"))
    with pytest.raises(hp.HeadpruneError, match=r"decoder.0 has 2 heads and decoder.1 has 4"):
        hp.export(model, "nowhere")
    model = tiny_model("llama")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0"))
    with pytest.raises(hp.HeadpruneError, match=r"decoder.0 has no heads left"):
        hp.export(model, "nowhere")


def test_t5_is_plain_only_if_all_layers_keep_the_same_heads(tmp_path):
    """They share one table of positions, with a column for each head."""
    model = tiny_model("t5")
    heads = hp.find_heads(model)
    mixed = [f"{site.id}:{site.layer}" for site in heads]  # head 0 of layer 0, head 1 of layer 1
    hp.prune_(model, hp.HeadMask.full(heads).without(*mixed))
    with pytest.raises(hp.HeadpruneError, match=r"relative_attention_bias.* must keep the same heads"):
        hp.export(model, tmp_path / "out")


def test_a_model_that_was_never_pruned_is_plain_already(tmp_path):
    """The same weights; the model itself is left as it was."""
    model = tiny_model("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loaded = type(model).from_pretrained(hp.export(model, tmp_path))
    batch = example_inputs(model)
    with torch.no_grad():
        assert difference(run(loaded.eval(), batch), run(model, batch)).largest == 0.0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_command_exports_a_folder(tmp_path):
    """With what lies beside the model; an unknown format gets a hint."""
    uniformly_pruned("llama").save_pretrained(tmp_path / "pruned")
    (tmp_path / "pruned" / "tokenizer_config.json").write_text("{}")
    words = ["export", str(tmp_path / "pruned"), "--out", str(tmp_path / "plain")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "loads without headprune" in done.stdout
    assert (tmp_path / "plain" / "tokenizer_config.json").is_file()
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["num_attention_heads"] == 2
    with pytest.raises(hp.HeadpruneError, match="Did you mean 'plain'"):
        CliRunner().invoke(app, [*words, "--format", "plan"], catch_exceptions=False)


def test_what_is_something_else_at_the_moment_is_refused(tmp_path):
    """Gates would be lost without a word; masks and adapters are no part of a checkpoint."""
    model = uniformly_pruned("llama")
    hp.attach_gates(model, "hard-concrete")
    with pytest.raises(hp.HeadpruneError, match="The model has gates"):
        hp.export(model, tmp_path / "out")
    other = uniformly_pruned("llama")
    with hp.masked(other, {"decoder.0": torch.zeros(4)}), pytest.raises(hp.HeadpruneError, match="`masked` block"):
        hp.export(other, tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(hp.HeadpruneError, match="is a file; expected a folder"):
        hp.export(other, tmp_path / "file")


def test_every_tensor_keeps_its_precision(tmp_path):
    """Experts are routed by a bias in float32, also in a model that is in half precision."""
    model = uniformly_pruned("deepseek_v3").to(torch.bfloat16)
    kept = [name for name, _ in model.named_buffers() if name.endswith("e_score_correction_bias")]
    for name in kept:
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, torch.rand(4))
    hp.export(model, tmp_path / "plain")
    from safetensors.torch import load_file

    stored = load_file(tmp_path / "plain" / "model.safetensors")
    assert kept
    for name in kept:
        assert stored[name].dtype == torch.float32
        assert torch.equal(stored[name], model.get_buffer(name))
    assert stored["lm_head.weight"].dtype == torch.bfloat16


def test_the_card_of_a_plain_export_says_that_it_is_one(tmp_path):
    """What was removed stays told; what the user wrote stays."""
    uniformly_pruned("llama").save_pretrained(tmp_path / "pruned")
    card = tmp_path / "pruned" / "README.md"
    card.write_text(card.read_text() + "\nMine.\n")
    words = ["export", str(tmp_path / "pruned"), "--out", str(tmp_path / "plain")]
    CliRunner().invoke(app, words, catch_exceptions=False)
    text = (tmp_path / "plain" / "README.md").read_text()
    assert "nothing of headprune is needed" in text
    assert "size error" not in text
    assert "Removed attention heads" in text
    assert "Mine." in text


def test_a_format_of_ones_own_is_one_function(tmp_path, monkeypatch):
    """Registered by name: its card, its options, a hint for names that are nearly right; nothing half written."""
    monkeypatch.setattr(exports, "_items", dict(exports._items))

    @export_format("numbers", loading="Read numbers.json.", weights="*.json")
    def save_numbers(model, folder, example, *, digits=3):
        (folder / "numbers.json").write_text(json.dumps([round(p.mean().item(), digits) for p in model.parameters()]))
        if digits < 0:
            raise OSError("no room left")

    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1"))
    folder = hp.export(model, tmp_path / "out", format="numbers", digits=2)
    assert json.loads((folder / "numbers.json").read_text())
    assert "Read numbers.json." in (folder / "README.md").read_text()
    with pytest.raises(hp.HeadpruneError, match="Did you mean 'numbers'"):
        hp.export(model, tmp_path / "out", format="number")
    with pytest.raises(hp.HeadpruneError, match="digits is for the format numbers; plain"):
        hp.export(model, tmp_path / "out", format="plain", digits=2)
    with pytest.raises(hp.HeadpruneError, match="No format has an option called 'colour'"):
        hp.export(model, tmp_path / "out", format="numbers", colour="blue")
    with pytest.raises(OSError, match="no room"):
        hp.export(model, tmp_path / "other", format="numbers", digits=-1)
    assert not (tmp_path / "other").exists()
