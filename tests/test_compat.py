"""What people who come from transformers v4 expect, seen from the outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import headprune as hp
from tests.families.tiny import tiny_model

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [4, 3, 12, 13, 14, 2, 1]])


@pytest.mark.parametrize("family", ["bert", "gpt2", "vit", "distilbert"])
def test_prune_heads_takes_layers_as_in_v4(family):
    """The model is smaller, its attention maps have fewer heads, and its config says what is gone."""
    model = tiny_model(family, attn_implementation="eager")
    before = sum(p.numel() for p in model.parameters())
    assert hp.prune_heads(model, {0: [1, 2], 1: [3]}) is model
    assert sum(p.numel() for p in model.parameters()) < before
    assert model.config.pruned_heads == {0: [1, 2], 1: [3]}
    from headprune.structure.dummy_inputs import example_inputs

    with torch.no_grad():
        maps = model(**example_inputs(model), output_attentions=True).attentions
    assert [m.shape[1] for m in maps] == [2, 3]
    hp.prune_heads(model, {0: [1, 3]})  # 1 is gone already
    assert model.config.pruned_heads == {0: [1, 2, 3], 1: [3]}
    heads = hp.find_heads(model)
    hp.prune_(model, hp.HeadMask.full(heads).without(f"{heads.sites[1].id}:0"))
    assert model.config.pruned_heads == {0: [1, 2, 3], 1: [0, 3]}  # by whatever way heads went


def test_numbers_of_other_libraries_and_of_files_are_numbers():
    """numpy's and torch's, and layers as a config.json has them."""
    import numpy as np

    model = tiny_model("bert")
    hp.prune_heads(model, {"0": np.array([1, 2]), np.int64(1): torch.tensor([3])})
    assert model.config.pruned_heads == {0: [1, 2], 1: [3]}


def test_a_model_without_heads_or_with_several_in_a_layer_says_so():
    """Neither is called ambiguous by mistake."""
    from headprune.checkpoint.config_entry import has_plain_layers, sites_by_layer
    from headprune.heads import HeadMap, Skipped

    with pytest.raises(hp.HeadpruneError, match=r"No heads were found in this model \(x: odd\)"):
        sites_by_layer(HeadMap(skipped=(Skipped("x", "odd"),)))
    heads = hp.find_heads(tiny_model("bert"))
    from dataclasses import replace

    twice = HeadMap((heads.sites[0], replace(heads.sites[1], layers=(0,))))
    assert has_plain_layers(heads)
    assert not has_plain_layers(twice)


def test_an_encoder_decoder_wants_names():
    """Layer 0 could be three blocks."""
    model = tiny_model("bart")
    with pytest.raises(hp.HeadpruneError, match="a layer number alone is ambiguous"):
        hp.prune_heads(model, {0: [1]})
    hp.prune_heads(model, {"cross.0": [1], "encoder.1": [0, 2]})
    heads = hp.find_heads(model)
    assert (heads["cross.0"].kept, heads["encoder.1"].kept) == ((0, 2, 3), (1, 3))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({5: [0]}, "No layer 5: this model has attention in layers 0, 1"),
        ({0: [4]}, "encoder.0 has heads 0 to 3; found 4"),
        ({0: [True]}, "Found True; expected the number"),
        ({True: [0]}, "Found True; expected the number"),
        ({0: 1}, "encoder.0: found 1; expected a list of heads"),
        ({0: [1.5]}, "Found 1.5"),
        ({"encoder.9": [0]}, "no site 'encoder.9'"),
        ([0], "expected layers or sites with heads"),
    ],
)
def test_wrong_heads_are_told_and_nothing_is_removed(asked, told):
    """Before anything is touched."""
    model = tiny_model("bert")
    with pytest.raises(hp.HeadpruneError, match=told):
        hp.prune_heads(model, asked)
    assert len(hp.find_heads(model)) == 8


def test_head_mask_is_the_old_argument():
    """(layers, heads) or (heads,), with gradients; equal to `masked`."""
    model = tiny_model("bert")
    tensor = torch.tensor([[1.0, 0.0, 1.0, 0.5], [0.0, 1.0, 1.0, 1.0]], requires_grad=True)
    with hp.compat.head_mask(model, tensor):
        found = model(input_ids=IDS % 90).logits
    with hp.masked(model, {"encoder.0": tensor[0].detach(), "encoder.1": tensor[1].detach()}):
        assert torch.equal(found, logits_of(model))
    found.sum().backward()
    assert tensor.grad.abs().min() > 0
    row = torch.tensor([1.0, 0.0, 1.0, 1.0])
    with hp.compat.head_mask(model, row):
        first = logits_of(model)
    with hp.compat.head_mask(model, row.expand(2, 4)):
        assert torch.equal(first, logits_of(model))
    for wrong in (torch.ones(3, 4), torch.ones(2, 3), torch.ones(5)):
        with (
            pytest.raises(hp.HeadpruneError, match=r"expected \(2, 4\): layers, heads"),
            hp.compat.head_mask(model, wrong),
        ):
            pass


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=IDS % 90).logits


def test_head_masks_of_an_encoder_decoder_are_three():
    """As v4's head_mask, decoder_head_mask and cross_attn_head_mask."""
    from headprune.structure.dummy_inputs import example_inputs

    model = tiny_model("bart")
    batch = example_inputs(model)
    mask = torch.ones(2, 4)
    mask[1, 2] = 0.0
    with torch.no_grad():
        for name, kind in (("mask", "encoder"), ("decoder", "decoder"), ("cross", "cross")):
            with hp.compat.head_mask(model, **{name: mask}):
                found = model(**batch).logits
            with hp.masked(model, {f"{kind}.1": mask[1]}):
                assert torch.equal(found, model(**batch).logits)
    with (
        pytest.raises(hp.HeadpruneError, match="has no cross attention"),
        hp.compat.head_mask(tiny_model("bert"), cross=mask),
    ):
        pass
    gpt2 = tiny_model("gpt2")
    with torch.no_grad(), hp.compat.head_mask(gpt2, mask.tolist()):  # a decoder's one mask; lists are taken, too
        found = gpt2(input_ids=IDS).logits
    with torch.no_grad(), hp.masked(gpt2, {"decoder.1": mask[1]}):
        assert torch.equal(found, gpt2(input_ids=IDS).logits)
    with pytest.raises(hp.HeadpruneError, match="has one mask"), hp.compat.head_mask(gpt2, mask, decoder=mask):
        pass


def test_a_module_that_runs_in_every_layer_has_one_row():
    """ALBERT: rows that differ cannot be."""
    model = tiny_model("albert")
    with hp.compat.head_mask(model, torch.tensor([1.0, 0.0, 1.0, 1.0])):
        pass
    mask = torch.ones(2, 4)
    mask[1, 2] = 0.0
    with pytest.raises(hp.HeadpruneError, match="runs in 2 layers"), hp.compat.head_mask(model, mask):
        pass


def test_the_small_functions_of_v4_are_as_they_were():
    """The heads that are left to prune, the entries that stay, and layers cut to them."""
    gone, index = hp.compat.find_pruneable_heads_and_indices([1, 3], n_heads=3, head_size=2, already_pruned_heads={1})
    assert gone == {3}
    assert index.tolist() == [0, 1, 2, 3]  # heads 0 and 2 are left of 0, 2, 3
    layer = nn.Linear(6, 4)
    rows = hp.compat.prune_linear_layer(layer, torch.tensor([0, 2]))
    assert torch.equal(rows.weight, layer.weight[[0, 2]])
    assert torch.equal(rows.bias, layer.bias[[0, 2]])
    columns = hp.compat.prune_linear_layer(layer, torch.tensor([1, 5]), dim=1)
    assert torch.equal(columns.weight, layer.weight[:, [1, 5]])
    assert torch.equal(columns.bias, layer.bias)
    assert columns.weight.requires_grad
    assert (
        hp.compat.prune_linear_layer(nn.Linear(6, 4, bias=False).half(), torch.tensor([1])).weight.dtype == torch.half
    )
    from transformers.pytorch_utils import Conv1D

    conv = Conv1D(4, 6)
    cut = hp.compat.prune_conv1d_layer(conv, torch.tensor([0, 3]))
    assert torch.equal(cut.weight, conv.weight[:, [0, 3]])
    assert cut.bias.shape == (2,)
    assert cut(torch.randn(1, 6)).shape == (1, 2)
