"""LoRA on pruned models."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import UnsupportedModelError
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference, run
from tests.families.tiny import answer_of, full_mask, tiny_model


def lora_model(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, target_modules=["query", "value", "dense"], init_lora_weights=False))


def test_lora_on_a_pruned_model_trains_and_reloads(tmp_path):
    """The adapter sees layers of the pruned widths."""
    from peft import PeftModel

    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:0", "encoder.0:3", "encoder.1:1"))
    model.save_pretrained(tmp_path / "base")
    adapted = lora_model(model)
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "labels": torch.tensor([1])}
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(3):
        loss = adapted(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    adapted.eval().save_pretrained(tmp_path / "adapter")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    again = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        assert torch.allclose(again(**batch).logits, adapted(**batch).logits, atol=1e-6)


def test_pruning_under_lora_asks_to_merge_first():
    """The adapted model and its inner model; merged, it can be pruned."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without("encoder.0:1")
    adapted = lora_model(model)
    for target in (adapted, adapted.base_model.model):
        with pytest.raises(UnsupportedModelError, match="merge_and_unload"):
            hp.prune_(target, hp.HeadMask.full(hp.find_heads(target)).without("encoder.0:1"))
    with hp.masked(adapted.base_model.model, mask):
        expected = run(adapted.base_model.model, example_inputs(adapted.base_model.model))
    merged = hp.prune_(adapted.merge_and_unload(), mask)
    with torch.no_grad():
        assert difference(run(merged, example_inputs(merged)).logits, expected.logits.detach()).is_small


@pytest.mark.parametrize(("family", "targets"), [("bert", ["query", "value"]), ("llama", ["q_proj", "v_proj"])])
def test_lora_passes_over_emptied_sites(family, targets, tmp_path):
    """It trains what is left, merges, and reloads."""
    from peft import LoraConfig, PeftModel, get_peft_model

    model = tiny_model(family)
    site = hp.find_heads(model).sites[0].id
    hp.prune_(model, full_mask(model).without(site))
    model.save_pretrained(tmp_path / "base")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).eval()
    batch = {"input_ids": torch.tensor([[3, 4, 5]])}
    expected = answer_of(adapted, batch)
    adapted.save_pretrained(tmp_path / "adapter")
    base = type(model).from_pretrained(tmp_path / "base").eval()
    assert difference(answer_of(PeftModel.from_pretrained(base, tmp_path / "adapter").eval(), batch), expected).is_small
    assert difference(answer_of(adapted.merge_and_unload(), batch), expected).is_small


def test_lora_that_names_the_projection_of_an_emptied_site_is_told_what_to_write():
    """peft shows the layer that it does not know, and the layer says it."""
    from peft import LoraConfig, get_peft_model

    model = tiny_model("llama")
    hp.prune_(model, full_mask(model).without("decoder.0"))
    with pytest.raises(ValueError, match=r"for LoRA: exclude_modules=\[s\.output for s in hp\.find_heads\(model"):
        get_peft_model(model, LoraConfig(target_modules=["q_proj", "o_proj"]))


def test_lora_leaves_out_the_projection_of_an_emptied_site():
    """By its name, as the page of pitfalls says."""
    from peft import LoraConfig, get_peft_model

    model = tiny_model("llama")
    hp.prune_(model, full_mask(model).without("decoder.0"))
    left_out = [site.output for site in hp.find_heads(model) if not site.num_heads]
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "o_proj"], exclude_modules=left_out))
    assert {name.split(".layers.")[1][0] for name, p in adapted.named_parameters() if p.requires_grad} == {"1"}
