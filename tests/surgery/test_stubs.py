"""Sites without heads."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference
from tests.families.tiny import answer_of, full_mask, tiny_config, tiny_model
from tests.surgery.toy import kept


def test_an_emptied_site_keeps_its_output_bias_or_not():
    """`bias` is the default; `skip` is Budhraja's reading. Both equal their masked counterparts and reload."""
    model = tiny_model("bert")
    mask = kept(model, encoder_0=[])
    for empty_site in ("bias", "skip"):
        with hp.masked(model, mask, empty_site=empty_site):
            expected = answer_of(model)
        pruned = hp.prune_(copy.deepcopy(model), mask, empty_site=empty_site)
        assert difference(answer_of(pruned), expected).is_small


def test_a_skipped_site_reloads(tmp_path):
    """Without the bias it dropped."""
    model = tiny_model("siglip")
    heads = hp.find_heads(model)
    hp.prune_(model, hp.HeadMask.empty(heads), empty_site="skip")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert difference(answer_of(loaded), answer_of(model)).largest == 0.0


def test_an_emptied_site_has_no_attention_maps():
    """A layer without heads answers `output_attentions` with zero maps."""
    model = tiny_model("llama", attn_implementation="eager")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0"))
    maps = model(**example_inputs(model), output_attentions=True).attentions
    assert [m.shape[1] for m in maps] == [0, 4]


def test_a_static_cache_works_with_ragged_and_empty_layers():
    """Layers of different widths, one of them a placeholder."""
    model = tiny_model("llama")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0", "decoder.1:0", "decoder.1:1"))
    prompt = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    dynamic = model.generate(**prompt, **settings)
    static = model.generate(**prompt, **settings, cache_implementation="static", disable_compile=True)
    assert dynamic.tolist() == static.tolist()


def test_nothing_of_an_emptied_block_is_left_but_its_output_bias():
    """Persistent vectors, sinks and the like leave with the last head: not counted, not saved."""
    model = tiny_model("all_attention")
    heads = hp.find_heads(model)
    block = f"{heads.sites[0].path}."
    hp.prune_(model, hp.HeadMask.full(heads).without(heads.sites[0].id))
    assert [name for name, _ in model.named_parameters() if name.startswith(block)] == [f"{block}o_proj.bias"]
    assert not [name for name in model.state_dict() if name.startswith(block) and "persistent" in name]


@pytest.mark.parametrize("family", ["phi3", "llama", "gpt2"])
def test_a_cache_counts_tokens_although_its_first_layer_is_empty(family):
    """In two steps as in one; Phi-3 reads the number of heads from the config while it runs."""
    config = tiny_config(family)
    config.sliding_window = None
    model = AutoModelForCausalLM.from_config(config).eval()
    hp.prune_(model, full_mask(model).without("decoder.0"))
    tokens = torch.tensor([[3, 4, 5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        whole = model(input_ids=tokens).logits[:, 4:]
        first = model(input_ids=tokens[:, :4], use_cache=True)
        assert first.past_key_values.get_seq_length() == 4
        second = model(input_ids=tokens[:, 4:], past_key_values=first.past_key_values)
    assert difference(second.logits, whole).is_small
