"""prune_: what it changes, what it refuses, what it leaves alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils import prune as torch_prune
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, BertConfig, BertModel

import headprune as hp
from headprune.errors import HeadpruneError, UnsupportedModelError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference
from tests.families.tiny import answer_of, full_mask, tiny_config, tiny_model
from tests.surgery.toy import state


def test_a_mask_that_keeps_everything_changes_nothing():
    """Not even the config."""
    model = tiny_model("bert")
    before = state(model)
    assert hp.prune_(model, hp.HeadMask.full(hp.find_heads(model))) is model
    assert state(model) == before


def test_coupled_heads_are_refused_and_can_still_be_masked():
    """OLMo2 normalises over all heads: removal cannot be exact. The model stays as it was."""
    config = CONFIG_MAPPING["olmo2"](
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, intermediate_size=48,
        vocab_size=99, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without("decoder.0:1")
    before = state(model)
    with pytest.raises(
        UnsupportedModelError, match=r"decoder\.0.*Olmo2Attention.*q_norm normalises the heads together.*masked"
    ):
        hp.prune_(model, mask)
    assert state(model) == before
    plain = answer_of(model)
    with hp.masked(model, mask):
        assert not difference(answer_of(model), plain).is_small


def test_pruning_in_a_masked_block_is_refused():
    """What would the mask mean afterwards?"""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    with hp.masked(model, hp.HeadMask.empty(heads)), pytest.raises(UnsupportedModelError, match="masked"):
        hp.prune_(model, hp.HeadMask.empty(heads))


def test_two_models_of_one_config_object_do_not_share_a_pruning(tmp_path):
    """The record goes into a config of the pruned model's own."""
    config = tiny_config("bert")
    first, second = BertModel(config).eval(), BertModel(config).eval()
    hp.prune_(first, hp.HeadMask.full(hp.find_heads(first)).without("encoder.0:0"))
    assert len(hp.find_heads(second)) == 8
    second.save_pretrained(tmp_path)
    assert len(hp.find_heads(BertModel.from_pretrained(tmp_path))) == 8
    first.set_attn_implementation("eager")
    assert first.encoder.layer[0].attention.self.config._attn_implementation == "eager"


def test_the_attention_implementation_can_be_changed_afterwards():
    """Pruned blocks with a config of their own follow the model's."""
    for family in ("phi3", "t5"):
        model = tiny_model(family)
        heads = hp.find_heads(model)
        gone = [f"{s.id}:{i}" for s in heads for i in s.groups[0]]
        pruned = hp.prune_(copy.deepcopy(model), hp.HeadMask.full(heads).without(*gone))
        expected = answer_of(pruned)
        pruned.set_attn_implementation("eager")
        assert difference(answer_of(pruned), expected).is_small
        maps = pruned(**example_inputs(pruned), output_attentions=True)
        assert (maps.get("attentions") or maps.get("encoder_attentions"))[0].shape[1] == heads.sites[0].num_heads - len(
            heads.sites[0].groups[0]
        )


def test_tied_embeddings_stay_tied(tmp_path):
    """Pruning and reloading touch attention only."""
    model = tiny_model("gpt2")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0:0"))
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr()


def test_frozen_weights_stay_frozen():
    """requires_grad follows each parameter."""
    model = tiny_model("bert")
    model.bert.encoder.layer[0].requires_grad_(False)
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:0", "encoder.1:0"))
    query = [layer.attention.self.query.weight for layer in model.bert.encoder.layer]
    assert [weight.requires_grad for weight in query] == [False, True]


def test_pruning_a_big_model_is_quick():
    """12 x 12 x 768 without verification; the limit is generous here, `make bench` has the figure."""
    import time

    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=100)).eval()
    mask = hp.HeadMask.random(hp.find_heads(model), keep=0.5, seed=0)
    start = time.perf_counter()
    hp.prune_(model, mask, verify=False)
    assert time.perf_counter() - start < 8


@pytest.mark.parametrize("family", ["bert", "mpnet", "gpt2", "t5", "wav2vec2"])
def test_a_model_in_training_mode_can_be_pruned(family):
    """Dropout is off while blocks are compared, and on again afterwards."""
    model = tiny_model(family).train()
    mask = full_mask(model).without(hp.find_heads(model).heads()[0])
    with hp.masked(model, mask):
        expected = answer_of(model)
    hp.prune_(model, mask)
    assert model.training
    assert difference(answer_of(model), expected).is_small


def test_two_models_of_a_pruned_config_go_their_own_ways(tmp_path):
    """A second model built from a pruned model's config is pruned without touching the first."""
    first = BertModel(tiny_config("bert")).eval()
    hp.prune_(first, full_mask(first).without("encoder.0:1"))
    second = BertModel(first.config).eval()
    hp.prune_(second, full_mask(second).without("encoder.1:2"))
    first.save_pretrained(tmp_path)
    assert len(hp.find_heads(BertModel.from_pretrained(tmp_path))) == 7
    assert len(hp.find_heads(second)) == 6


def test_a_model_that_is_broken_is_not_said_to_be_coupled():
    """Weights that are not finite give answers that equal nothing."""
    model = tiny_model("bert")
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.self.value.weight[0, 0] = float("nan")
    with pytest.raises(HeadpruneError, match="not finite"):
        hp.prune_(model, full_mask(model).without("encoder.0:1"))
    with pytest.raises(HeadpruneError, match="loss is nan"):
        hp.score(model, [{"input_ids": torch.tensor([[3, 4, 5]]), "labels": torch.tensor([1])}])


def _sparse(projection):
    projection.weight = torch.nn.Parameter(projection.weight.detach().to_sparse(), requires_grad=False)


def _computed(projection):
    torch_prune.l1_unstructured(projection, "weight", 0.3)


@pytest.mark.parametrize("change", [_sparse, _computed], ids=["sparse", "made anew in every run"])
@pytest.mark.parametrize(("family", "path"), [("bert", "layer.0.attention.self.query"), ("gpt2", "h.0.attn.c_attn")])
def test_weights_that_are_no_plain_matrix_are_refused_by_name(family, path, change):
    """Sparse ones stopped with an error of torch."""
    model = tiny_model(family)
    projection = next(module for name, module in model.named_modules() if name.endswith(path))
    if family == "gpt2" and change is _sparse:
        pytest.skip("its layer does not run with a sparse weight")
    change(projection)
    site = hp.find_heads(model).sites[0].id
    with pytest.raises(UnsupportedModelError, match=rf"{path}: the weight of this .* is no plain matrix"):
        hp.prune_(model, full_mask(model).without(f"{site}:1"))
