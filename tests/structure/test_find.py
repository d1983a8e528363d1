"""Finding heads: what is found, what is skipped, what is remembered."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoModel

import headprune as hp
from headprune.errors import ExampleError, UnsupportedModelError
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import tiny_config, tiny_model


def ids(model, **more):
    return [site.id for site in hp.find_heads(model, **more)]


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


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "bert"])
@pytest.mark.parametrize("attention", ["eager", None])
def test_left_padding_does_not_change_what_is_found(family, attention):
    """Padded rows attend to everything; real ones are looked at."""
    model = tiny_model(family, **({"attn_implementation": attention} if attention else {}))
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    batch = {"input_ids": torch.randint(3, 99, (2, 5)), "attention_mask": mask}
    found = hp.find_heads(model, example=batch)
    fresh = hp.find_heads(tiny_model(family))
    assert [(s.id, s.groups) for s in found] == [(s.id, s.groups) for s in fresh]


def test_an_example_of_one_position_is_refused():
    """It cannot show what is a key and what is a query."""
    with pytest.raises(ExampleError, match="at least 2 positions"):
        hp.find_heads(tiny_model("llama"), example={"input_ids": torch.tensor([[5]])})


class Wrapped(nn.Module):
    """Any module around a model."""

    def __init__(self, *inner):
        super().__init__()
        self.parts = nn.ModuleList(inner)

    def forward(self, **batch):
        return [part(**batch) for part in self.parts]


@pytest.mark.parametrize("wrap", [nn.DataParallel, Wrapped, torch.compile, lambda model: Wrapped(Wrapped(model))])
def test_heads_keep_their_numbers_behind_wrappers(wrap):
    """Original numbers, and a mask hits the head that it names."""
    model = tiny_model("bert")
    first = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:0", "encoder.0:1", "encoder.1")
    example = example_inputs(model)
    with torch.no_grad(), hp.masked(model, first.without("encoder.0:2")):
        expected = model(**example).logits
    wrapped = wrap(hp.prune_(model, first))
    heads = hp.find_heads(wrapped, example=example)
    assert {site.id: site.kept for site in heads} == {"encoder.0": (2, 3), "encoder.1": ()}
    with torch.no_grad(), hp.masked(wrapped, hp.HeadMask.full(heads).without("encoder.0:2"), heads=heads):
        assert torch.allclose(model(**example).logits, expected, atol=1e-5)


def test_two_pruned_models_in_one_have_the_names_of_the_whole():
    """Each with its own numbers; where sites are empty, their names are not known and it is refused."""
    models = [tiny_model("bert", seed=seed) for seed in (0, 1)]
    for model, gone in zip(models, ("encoder.0:0", "encoder.1:2"), strict=True):
        hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without(gone))
    example = example_inputs(models[0])
    heads = hp.find_heads(Wrapped(*models), example=example)
    assert len({site.id for site in heads}) == 4
    assert {site.path: site.kept for site in heads if site.num_heads == 3} == {
        "parts.0.bert.encoder.layer.0.attention": (1, 2, 3),
        "parts.1.bert.encoder.layer.1.attention": (0, 1, 3),
    }
    hp.prune_(models[0], hp.HeadMask.full(hp.find_heads(models[0])).without("encoder.1"))
    with pytest.raises(UnsupportedModelError, match=r"parts\.0 in Wrapped was pruned by itself"):
        hp.find_heads(Wrapped(*models), example=example)


def test_a_model_around_a_pruned_one_is_not_pruned():
    """The inner config tells of its heads, and would go wrong; nor is one that DDP has taken."""
    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:0"))
    outer, example = Wrapped(model), example_inputs(model)
    mask = hp.HeadMask.full(hp.find_heads(outer, example=example)).without("encoder.1:0")
    with pytest.raises(UnsupportedModelError, match=r"get_submodule\('parts\.0'\)"):
        hp.prune_(outer, mask, example=example)


class Dressed(Wrapped):
    """A wrapper that shows the config of the model in it, as many do."""

    def __init__(self, inner):
        super().__init__(inner)
        self.config = inner.config


def test_a_wrapper_with_the_config_of_its_model_is_no_pruned_model():
    """Its config tells of blocks that are not where it says, and heads were counted anew."""
    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:0", "encoder.1"))
    heads = hp.find_heads(Dressed(model), example=example_inputs(model))
    assert {site.id: site.kept for site in heads} == {"encoder.0": (1, 2, 3), "encoder.1": ()}


def test_a_block_out_of_a_pruned_model_has_no_numbers():
    """A layer in another module, a tower, an encoder by itself: nothing tells which heads are left."""
    bert, clip, t5 = tiny_model("bert"), tiny_model("clip"), tiny_model("t5")
    for model, gone in ((bert, "encoder.0:0"), (clip, "vision.encoder.0:1"), (t5, "encoder.1:1")):
        hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without(gone))
    layer = nn.Sequential(bert.bert.embeddings, bert.bert.encoder.layer[0])
    for part, example in ((layer, {"input": torch.tensor([[3, 4, 5]])}), (clip.vision_model, None), (t5.encoder, None)):
        with pytest.raises(UnsupportedModelError, match="lost heads as a part of another model"):
            hp.find_heads(part, example=example)
    assert len(hp.find_heads(clip.text_model)) == 8
