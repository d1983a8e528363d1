"""Sites are named by tower, component and layer."""

from __future__ import annotations

import torch
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, BertConfig, BertLMHeadModel

import headprune as hp
from tests.families.tiny import tiny_config, tiny_model


def ids(model, **more):
    return [site.id for site in hp.find_heads(model, **more)]


def test_an_encoder_decoder_has_three_components():
    """Cross-attention is told by what its projections read, not by lengths."""
    model = tiny_model("bart")
    same_length = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[3, 4, 5]])}
    expected = ["encoder.0", "encoder.1", "decoder.0", "decoder.1", "cross.0", "cross.1"]
    assert ids(model) == ids(model, example=same_length) == expected


def test_causal_self_attention_is_a_decoder_whatever_the_class():
    """A BERT that is built as a decoder has decoder sites, and cross-attention if it has it."""
    config = tiny_config("bert", is_decoder=True, add_cross_attention=True)
    model = BertLMHeadModel(config).eval()
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "encoder_hidden_states": torch.randn(1, 4, 32)}
    assert ids(model, example=batch) == ["decoder.0", "decoder.1", "cross.0", "cross.1"]
    mask = hp.HeadMask.full(hp.find_heads(model, example=batch)).without("cross.0:1", "decoder.1")
    with torch.no_grad(), hp.masked(model, mask):
        expected = model(**batch).logits
    hp.prune_(model, mask, example=batch)
    with torch.no_grad():
        assert torch.allclose(model(**batch).logits, expected, atol=1e-5)


def test_towers_are_named_only_where_there_are_several():
    """CLIP has a causal text tower and a vision tower; its vision model alone needs no name."""
    clip = tiny_model("clip")
    assert sorted(ids(clip)) == ["text.decoder.0", "text.decoder.1", "vision.encoder.0", "vision.encoder.1"]
    assert ids(clip.vision_model) == ["encoder.0", "encoder.1"]


def test_attention_pooling_is_a_cross_site():
    """SigLIP's pooling head asks with a learned probe."""
    pooling = hp.find_heads(tiny_model("siglip"))["vision.cross.0"]
    assert pooling.path.endswith("head.attention")
    assert pooling.output.endswith("head.attention.out_proj")


def test_a_module_that_several_layers_run_is_one_site():
    """ALBERT: counted once, with all its layers."""
    heads = hp.find_heads(tiny_model("albert", num_hidden_layers=3))
    assert [(site.id, site.layers) for site in heads] == [("encoder.0", (0, 1, 2))]
    assert len(heads) == 4
    grouped = hp.find_heads(tiny_model("albert", num_hidden_layers=4, num_hidden_groups=2))
    assert [(site.id, site.layers) for site in grouped] == [("encoder.0", (0, 1)), ("encoder.2", (2, 3))]


def test_stages_are_counted_through():
    """Swin's second stage goes on where the first ended."""
    heads = hp.find_heads(tiny_model("swin"))
    assert [(site.id, site.num_heads) for site in heads] == [
        ("encoder.0", 2),
        ("encoder.1", 2),
        ("encoder.2", 4),
        ("encoder.3", 4),
    ]


def test_hybrids_have_gaps():
    """Layers without softmax attention keep their numbers; they are not mistaken for attention."""
    config = CONFIG_MAPPING["jamba"](
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=99, attn_layer_period=2, attn_layer_offset=1, num_experts=2, expert_layer_period=4,
        expert_layer_offset=3, use_mamba_kernels=False, mamba_d_state=4,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    assert ids(model) == ["decoder.1", "decoder.3"]


def test_names_of_a_full_size_config_follow_its_layers():
    """Twelve layers count to 11, in order."""
    model = AutoModel.from_config(BertConfig(hidden_size=24, num_attention_heads=2, intermediate_size=8, vocab_size=50))
    assert ids(model) == [f"encoder.{layer}" for layer in range(12)]


def test_names_do_not_depend_on_the_example():
    """A picture of one patch before another, text alone, one text: what a block is called follows from the model."""
    from tools.families.build_model import build

    model = build("qwen2_5_vl").model
    config, sizes = model.config, model.config.vision_config
    width = sizes.in_channels * sizes.temporal_patch_size * sizes.patch_size**2
    tokens = torch.tensor([[config.image_token_id, 7, *[config.image_token_id] * 4, 8, 9]])
    picture = {
        "input_ids": tokens, "attention_mask": torch.ones_like(tokens), "pixel_values": torch.randn(5, width),
        "image_grid_thw": torch.tensor([[1, 1, 1], [1, 2, 2]]),
        "mm_token_type_ids": (tokens == config.image_token_id).long(),
    }  # fmt: skip
    text = {"input_ids": torch.tensor([[7, 8, 9]])}
    every = ["visual.encoder.0", "visual.encoder.1", "language.decoder.0", "language.decoder.1"]
    assert ids(model) == ids(model, example=picture) == every
    assert ids(model, example=text) == every[2:]
