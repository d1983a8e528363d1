"""Loading pruned checkpoints: what goes right, and how what goes wrong is told."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, BertModel

import headprune as hp
from headprune.errors import CheckpointError, HeadpruneError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference, run
from tests.families.tiny import full_mask, tiny_config, tiny_model


def answer(model, batch=None):
    with torch.no_grad():
        return run(model.eval(), batch if batch is not None else example_inputs(model))


def test_base_class_and_other_heads_load_the_same_encoder(pruned, folder):
    """A pruned classifier's checkpoint also loads as the bare model and under another head."""
    expected = answer(pruned.bert).last_hidden_state
    for auto in (AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification):
        model = auto.from_pretrained(folder)
        assert torch.equal(answer(model.base_model).last_hidden_state, expected)
        assert len(hp.find_heads(model)) == 3


def test_a_pruned_base_model_loads_under_a_head(tmp_path):
    """The other direction; and saving the inner model of a pruned classifier works too."""
    model = BertModel(tiny_config("bert")).eval()
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1"))
    model.save_pretrained(tmp_path)
    headed = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(answer(headed.bert).last_hidden_state, answer(model).last_hidden_state)
    headed.bert.save_pretrained(tmp_path / "inner")
    again = AutoModel.from_pretrained(tmp_path / "inner")
    assert torch.equal(answer(again).last_hidden_state, answer(model).last_hidden_state)


def test_loading_in_another_dtype(pruned, folder):
    """bf16 on the way in; `.half()` and `.to()` work as on any model."""
    loaded = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    assert difference(answer(loaded).logits, answer(pruned).logits.to(torch.bfloat16)).is_small
    assert loaded.half().dtype == torch.float16


def test_pruning_goes_on_after_loading(pruned, folder):
    """With original indices, and a history of both steps."""
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    full = hp.HeadMask.full(hp.find_heads(loaded))
    assert full.to_dict() == {"encoder.0": [], "encoder.1": [0, 1, 3]}
    hp.prune_(loaded, full.without("encoder.1:3"))
    loaded.save_pretrained(folder)
    again = AutoModelForSequenceClassification.from_pretrained(folder)
    assert hp.HeadMask.full(hp.find_heads(again)).to_dict() == {"encoder.0": [], "encoder.1": [0, 1]}
    assert len(again.config.headprune["history"]) == 2
    assert difference(answer(again), answer(loaded)).largest == 0.0


def test_an_ordinary_model_saves_and_loads_as_ever(tmp_path):
    """No record, no card, no change."""
    model = tiny_model("bert")
    model.save_pretrained(tmp_path)
    assert "headprune" not in (tmp_path / "config.json").read_text()
    assert not (tmp_path / "README.md").exists()
    loaded, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert difference(answer(loaded), answer(model)).largest == 0.0
    with pytest.raises(OSError, match="nowhere"):
        AutoModel.from_pretrained(tmp_path / "nowhere")


def test_a_model_built_from_a_pruned_config_has_its_shapes(pruned):
    """Random weights, pruned structure."""
    fresh = AutoModelForSequenceClassification.from_config(pruned.config)
    assert {n: p.shape for n, p in fresh.named_parameters()} == {n: p.shape for n, p in pruned.named_parameters()}
    assert len(hp.find_heads(fresh)) == 3


def edit_config(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def cut_a_range(config):
    slices = config["headprune"]["edits"]["slices"]
    slices["encoder.layer.1.attention.self.query"]["weight"]["keep"] = [[0, 8]]


def keep_other_heads(config):
    site = config["headprune"]["heads"]["sites"][1]
    site["kept"], site["groups"] = [0, 1, 2], [[0], [1], [2]]


def other_width(config):
    config["hidden_size"] = 64


def newer_version(config):
    config["headprune"]["version"] = 99


def not_a_table(config):
    config["headprune"] = "yes"


def no_edits(config):
    del config["headprune"]["edits"]


def reach_into_python(config):
    config["headprune"]["edits"]["attributes"]["encoder"] = {"__class__": 1}


def set_a_string(config):
    config["headprune"]["edits"]["attributes"]["encoder.layer.1.attention.self"]["num_attention_heads"] = "4"


def huge_range(config):
    slices = config["headprune"]["edits"]["slices"]
    slices["encoder.layer.1.attention.self.query"]["weight"] = {"dim": 0, "size": 10**12, "keep": [[0, 10**12]]}


def fill_the_empty_site(config):
    config["headprune"]["edits"]["stubs"] = {}
    site = config["headprune"]["heads"]["sites"][0]
    site["kept"], site["groups"], site["num_heads"], site["num_kv_heads"] = [0, 1, 2, 3], [[0], [1], [2], [3]], 4, 4


def lead_nowhere(config):
    config["headprune"]["heads"]["sites"][1]["path"] = "encoder.layer.7.attention"


def call_it_otherwise(config):
    config["headprune"]["heads"]["sites"][1]["id"] = "encoder.3"


def turn_the_writing(config):
    config["headprune"]["heads"]["sites"][1]["id"] += "\u202e"


def move_the_cursor(config):
    config["headprune"]["heads"]["sites"][1]["tower"] = "\x1b[2J"
    config["headprune"]["heads"]["sites"][1]["id"] = "\x1b[2J.encoder.1"


EDITS = [
    cut_a_range, keep_other_heads, other_width, newer_version, not_a_table, no_edits, reach_into_python, set_a_string,
    huge_range, fill_the_empty_site, lead_nowhere, call_it_otherwise, turn_the_writing, move_the_cursor,
]  # fmt: skip


@pytest.mark.parametrize("change", EDITS, ids=lambda f: f.__name__)
def test_a_config_edited_by_hand_is_refused(change, folder):
    """With one of our errors, never a wrong model."""
    edit_config(folder, change)
    with pytest.raises(HeadpruneError):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_a_truncated_weight_file_is_refused(folder):
    """The message names the checkpoint and what to do."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"small.*cannot be loaded.*Save the pruned model again"):
        AutoModelForSequenceClassification.from_pretrained(folder)


@pytest.mark.parametrize("ignore", [False, True])
def test_weights_of_another_model_are_refused(folder, ignore):
    """Also where size mismatches are to be ignored, which is meant for new heads."""
    tiny_model("bert").save_pretrained(folder.parent / "whole")
    (folder / "model.safetensors").write_bytes((folder.parent / "whole" / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError):
        AutoModelForSequenceClassification.from_pretrained(folder, ignore_mismatched_sizes=ignore)


def test_a_missing_tensor_of_a_pruned_block_is_refused(folder):
    """transformers would warn and fill in random numbers."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["bert.encoder.layer.1.attention.self.value.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"missing keys.*value\.weight"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_a_new_head_on_a_pruned_body_is_fine(folder):
    """Missing keys outside the pruned blocks are the user's business."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=5, ignore_mismatched_sizes=True)
    assert model.classifier.out_features == 5


def test_from_pretrained_takes_its_argument_by_name(tmp_path):
    """As transformers documents it."""
    tiny_model("bert").save_pretrained(tmp_path)
    assert isinstance(BertModel.from_pretrained(pretrained_model_name_or_path=tmp_path), BertModel)


def test_a_wrong_argument_is_not_called_a_damaged_file(tmp_path):
    """transformers' own error comes through."""
    model = tiny_model("bert")
    hp.prune_(model, full_mask(model).without("encoder.0:1"))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="nope"):
        type(model).from_pretrained(tmp_path, attn_implementation="nope")


@pytest.mark.parametrize("heads", [[0, 1, 2], [0, 1, 77], [0]])
def test_an_edited_bias_cut_is_refused(heads, tmp_path):
    """T5's position bias must be cut to the heads that are left."""
    import json

    model = tiny_model("t5")
    hp.prune_(model, full_mask(model).without("encoder.0:1"))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for entry in config["headprune"]["edits"]["attention"].values():
        entry["bias_heads"] = heads
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="edited by hand"):
        type(model).from_pretrained(tmp_path)


def test_a_model_that_is_replaced_while_it_is_loaded_is_refused(folder, tmp_path):
    """The Auto classes read the config first: heads of one model were counted by the config of the other."""
    config = AutoConfig.from_pretrained(folder)
    other = tiny_model("bert")
    hp.prune_(other, full_mask(other).without("encoder.0", "encoder.1:3")).save_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"Another model was saved into .* Load it again"):
        AutoModelForSequenceClassification.from_pretrained(folder, config=config)
    assert hp.find_heads(AutoModelForSequenceClassification.from_pretrained(folder))["encoder.1"].kept == (0, 1, 2)
