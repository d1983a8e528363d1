"""Finding heads: names, components, towers, shared modules, what is skipped."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, BertConfig, BertLMHeadModel

import headprune as hp
from headprune.errors import ExampleError, UnsupportedModelError
from headprune.structure.example import example_inputs
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


@pytest.mark.parametrize(
    ("family", "kv", "groups"),
    [
        ("llama", 2, ((0, 1), (2, 3))),
        ("gpt2", 4, ((0,), (1,), (2,), (3,))),
        ("deepseek_v3", 4, ((0,), (1,), (2,), (3,))),
    ],
)
def test_groups_are_the_heads_that_share_keys_and_values(family, kv, groups):
    """GQA, MHA and latent attention, by gradients."""
    site = hp.find_heads(tiny_model(family)).sites[0]
    assert (site.num_kv_heads, site.groups) == (kv, groups)


def test_multi_query_attention_is_one_group():
    """Falcon's fused projection with a single KV head."""
    site = hp.find_heads(tiny_model("falcon", multi_query=True)).sites[0]
    assert (site.num_heads, site.num_kv_heads, site.groups) == (4, 1, ((0, 1, 2, 3),))


def test_frozen_weights_do_not_hide_heads():
    """And stay frozen, as training mode stays training mode and random numbers are not consumed."""
    model = tiny_model("bert").train().requires_grad_(False)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    assert len(hp.find_heads(model)) == 8
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_result_is_remembered_until_the_model_changes():
    """The second call costs nothing; a changed model is looked at again."""
    model = tiny_model("bert")
    first = hp.find_heads(model)
    assert hp.find_heads(model) is first
    model.bert.encoder.layer = model.bert.encoder.layer[:1]
    assert ids(model) == ["encoder.0"]


def test_heads_are_found_inside_a_masked_block():
    """A mask does not hide what it masks."""
    model = tiny_model("gpt2")
    heads = hp.find_heads(model)
    with hp.masked(model, hp.HeadMask.empty(heads)):
        batch = example_inputs(model)
        assert hp.find_heads(model, example=batch) == heads
        with torch.no_grad():
            masked = model(**batch).logits
    with torch.no_grad():
        assert not torch.equal(model(**batch).logits, masked)


class TwoMixers(nn.Module):
    """Plain PyTorch: one ordinary attention, and one whose heads are mixed before the projection."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.qkv2, self.mix, self.out2 = nn.Linear(16, 48), nn.Parameter(torch.randn(4, 4)), nn.Linear(16, 16)

    def forward(self, x):
        return x + self.out(self.attend(self.qkv(x))) + self.talking(x)

    def attend(self, qkv, mix=None):
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in qkv.chunk(3, -1))
        context = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        if mix is not None:
            context = torch.einsum("bhtd,hg->bgtd", context, mix)
        return context.transpose(1, 2).flatten(2)

    def talking(self, x):
        return self.inner(x)

    def inner(self, x):
        return self.out2(self.attend(self.qkv2(x), self.mix))


def test_mixed_heads_are_skipped_with_the_reason():
    """What is not one slice per head is named, not guessed."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = TwoMixers()

        def forward(self, x):
            return self.block.inner(x)

    heads = hp.find_heads(Mixed(), example={"x": torch.randn(2, 5, 16)})
    assert len(heads) == 0
    assert "mixes heads" in heads.skipped[0].reason


def test_a_plain_pytorch_model_works_with_an_example():
    """No transformers class and no config needed."""

    class Layer(TwoMixers):
        def forward(self, x):
            return x + self.out(self.attend(self.qkv(x)))

    model = nn.Sequential(Layer(), Layer()).eval()
    batch = {"input": torch.randn(2, 5, 16)}
    heads = hp.find_heads(model, example=batch)
    assert [site.id for site in heads] == ["encoder.0", "encoder.1"]
    with pytest.raises(ExampleError, match="example="):
        hp.find_heads(nn.Linear(2, 2))


def test_a_batch_that_does_not_fit_is_explained():
    """With the model's own error and what to do."""
    with pytest.raises(ExampleError, match="cannot be run on the given example"):
        hp.find_heads(tiny_model("bert"), example={"pixel_values": torch.zeros(1)})


def test_a_model_without_weights_in_memory_is_refused():
    """Meta device: it cannot be run."""
    with torch.device("meta"):
        model = AutoModel.from_config(tiny_config("bert"))
    with pytest.raises(UnsupportedModelError, match="meta device"):
        hp.find_heads(model)


def test_names_of_a_full_size_config_follow_its_layers():
    """Twelve layers count to 11, in order."""
    model = AutoModel.from_config(BertConfig(hidden_size=24, num_attention_heads=2, intermediate_size=8, vocab_size=50))
    assert ids(model) == [f"encoder.{layer}" for layer in range(12)]


def test_a_site_of_one_head_keeps_its_projections_and_its_direction():
    """Whatever belongs to the only head belongs to all heads: that is no reason to look elsewhere for it."""
    model = tiny_model("gpt2", n_head=1)
    heads = hp.find_heads(model)
    assert [site.id for site in heads] == ["decoder.0", "decoder.1"]
    before = sum(p.numel() for p in model.parameters())
    hp.prune_(model, hp.HeadMask.full(heads).without("decoder.0"))
    assert before - sum(p.numel() for p in model.parameters()) >= 32 * 96 + 32 * 32  # c_attn and c_proj


def test_examples_obey_their_seed():
    """Pictures and sounds as well as tokens."""
    for family in ("bert", "vit", "wav2vec2", "whisper", "clip"):
        model = tiny_model(family)
        first, again, other = (example_inputs(model, seed=seed) for seed in (0, 0, 1))
        assert all(first[name].equal(again[name]) for name in first)
        assert any(not first[name].equal(other[name]) for name in first), family
        assert all(not first[name].equal(other[name]) for name in first if first[name].is_floating_point()), family


def test_looking_at_a_model_leaves_its_modes_and_its_draws_alone():
    """No module is switched to training on the way, and the caller's random numbers go on as they would have."""
    model = tiny_model("bert")
    seen = []
    model.bert.encoder.layer[0].attention.train = lambda mode=True: seen.append(mode)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    hp.find_heads(model)
    assert torch.rand(3).equal(expected)
    assert True not in seen
