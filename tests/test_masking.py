"""masked(): numbers, per-example weights, nesting, cleaning up, compiling."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import headprune as hp
from headprune.errors import CheckpointError, MaskError, UnknownNameError
from headprune.hooks.masks import is_compiled
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import difference
from tests.families.tiny import answer_of, full_mask, tiny_model


@pytest.fixture(scope="module")
def bert():
    return tiny_model("bert")


@pytest.fixture(scope="module")
def heads(bert):
    return hp.find_heads(bert)


BATCH = {"input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])}


def logits(model, batch=BATCH):
    with torch.no_grad():
        return model(**batch).logits


def no_hooks(model):
    return not any(m._forward_pre_hooks or m._forward_hooks or "forward" in vars(m) for m in model.modules())


def test_a_factor_multiplies_the_heads_slice(bert, heads):
    """Masking is multiplying the columns of the output projection, bias untouched."""
    weights = {"encoder.1": [0.5, 1.0, -2.0, 0.0]}
    with hp.masked(bert, weights):
        found = logits(bert)
    dense = bert.get_submodule(heads["encoder.1"].output)
    scaled = torch.tensor(weights["encoder.1"]).repeat_interleave(8)
    original = dense.weight.data.clone()
    try:
        dense.weight.data *= scaled
        expected = logits(bert)
    finally:
        dense.weight.data = original
    assert torch.allclose(found, expected, atol=1e-6)


def test_weights_per_example_act_on_their_example(bert):
    """Row i of the weights masks example i alone."""
    per_example = torch.ones(2, 4)
    per_example[1, 2] = 0.0
    with hp.masked(bert, {"encoder.0": per_example}):
        found = logits(bert)
    with hp.masked(bert, {"encoder.0": per_example[1]}):
        second = logits(bert)
    plain = logits(bert)
    assert torch.allclose(found[0], plain[0], atol=1e-6)
    assert torch.allclose(found[1], second[1], atol=1e-6)
    assert not torch.allclose(found[1], plain[1], atol=1e-4)


def test_gradients_of_a_batch_are_those_of_single_examples(bert, heads):
    """One backward of the summed loss gives every example's own gradient."""
    labels = torch.tensor([0, 1])

    def gradients(ids, target):
        masks = {site.id: torch.ones(len(ids), site.num_heads, requires_grad=True) for site in heads}
        with hp.masked(bert, masks):
            total = torch.nn.functional.cross_entropy(bert(input_ids=ids).logits, target, reduction="sum")
        return torch.autograd.grad(total, list(masks.values()))

    together = gradients(BATCH["input_ids"], labels)
    for i in range(2):
        alone = gradients(BATCH["input_ids"][i : i + 1], labels[i : i + 1])
        for a, b in zip(together, alone, strict=True):
            assert torch.allclose(a[i], b[0], atol=1e-6)


def test_masks_nest_and_factors_multiply(bert, heads):
    """The inner block adds to the outer one, and ends before it."""
    full = hp.HeadMask.full(heads)
    a, b = full.without("encoder.0:0"), full.without("encoder.0:1")
    with hp.masked(bert, a & b):
        both = logits(bert)
    with hp.masked(bert, a):
        only_a = logits(bert)
        with hp.masked(bert, b):
            assert torch.equal(logits(bert), both)
        assert torch.equal(logits(bert), only_a)
    with hp.masked(bert, {"encoder.0": [0.5] * 4}), hp.masked(bert, {"encoder.0": [0.5] * 4}):
        quarter = logits(bert)
    with hp.masked(bert, {"encoder.0": [0.25] * 4}):
        assert torch.equal(logits(bert), quarter)


@pytest.mark.parametrize("family", ["bert", "siglip", "t5"])
def test_hooks_are_gone_after_an_exception(family):
    """Also where nn.MultiheadAttention was opened."""
    model = tiny_model(family)
    batch = example_inputs(model)
    with torch.no_grad():
        before = model(**batch).to_tuple()[0]
    with pytest.raises(RuntimeError, match="boom"), hp.masked(model, hp.HeadMask.empty(hp.find_heads(model))):
        raise RuntimeError("boom")
    assert no_hooks(model)
    with torch.no_grad():
        assert torch.equal(model(**batch).to_tuple()[0], before)


def test_a_bad_mask_leaves_no_hook_behind(bert, heads):
    """Refused before anything is registered."""
    with pytest.raises(UnknownNameError, match=r"encoder\.9"), hp.masked(bert, {"encoder.9": [1.0] * 4}):
        pass
    with pytest.raises(MaskError, match="expected 4 in the"), hp.masked(bert, {"encoder.0": [1.0] * 3}):
        pass
    other = hp.HeadMask.full(hp.find_heads(tiny_model("bert", num_attention_heads=2)))
    with pytest.raises(MaskError, match="another model"), hp.masked(bert, other):
        pass
    with pytest.raises(MaskError, match="HeadMask"), hp.masked(bert, [1, 2]):
        pass
    with pytest.raises(MaskError, match="empty_site"), hp.masked(bert, hp.HeadMask.full(heads), empty_site="gone"):
        pass
    assert no_hooks(bert)


def test_weights_per_example_need_the_batch_first():
    """Swin folds windows into the batch: refused by name, not broadcast."""
    model = tiny_model("swin")
    site = hp.find_heads(model).sites[0]
    with pytest.raises(MaskError, match=r"encoder\.0.*not that batch"), hp.masked(model, {site.id: torch.zeros(2, 2)}):
        logits(model, example_inputs(model))


def test_an_emptied_site_may_lose_its_bias_too(bert, heads):
    """`skip` is Budhraja's reading: the block adds nothing at all."""
    mask = hp.HeadMask.full(heads).without("encoder.0")
    with hp.masked(bert, mask):
        with_bias = logits(bert)
    with hp.masked(bert, mask, empty_site="skip"):
        without = logits(bert)
    dense = bert.get_submodule(heads["encoder.0"].output)
    bias = dense.bias.data.clone()
    try:
        dense.bias.data.zero_()
        with hp.masked(bert, mask):
            assert torch.allclose(logits(bert), without, atol=1e-6)
    finally:
        dense.bias.data = bias
    assert not torch.allclose(with_bias, without, atol=1e-4)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_models_are_masked_and_unmasked(bert, heads, fullgraph):
    """A mask is never silently ignored, nor does it stay."""
    mask = hp.HeadMask.full(heads).without("encoder.0:1", "encoder.1:0")
    with hp.masked(bert, mask):
        expected = logits(bert)
    plain = logits(bert)
    compiled = torch.compile(bert, backend="eager", fullgraph=fullgraph)
    assert torch.allclose(logits(compiled), plain, atol=1e-6)
    with hp.masked(compiled, mask):
        assert torch.allclose(logits(compiled), expected, atol=1e-6)
    assert torch.allclose(logits(compiled), plain, atol=1e-6)
    with hp.masked(bert, mask):  # given the inner model, run through the compiled one
        assert torch.allclose(logits(compiled), expected, atol=1e-6)
        inside = torch.compile(bert, backend="eager", fullgraph=fullgraph)
        assert torch.allclose(logits(inside), expected, atol=1e-6)
    assert torch.allclose(logits(inside), plain, atol=1e-6)
    torch._dynamo.reset()


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize("how", ["module", "method", "function", "part"])
def test_a_model_is_known_to_be_compiled_however_it_was(how):
    """By itself, in a function around it, or a part of it; a copy of it was not."""
    model = Two()
    assert not is_compiled(model)
    run = {
        "module": lambda: torch.compile(model, backend="eager"),
        "method": lambda: model.compile(backend="eager") or model,
        "function": lambda: torch.compile(lambda x: model(x), backend="eager"),
        "part": lambda: nn.Sequential(model.first, torch.compile(model.second, backend="eager")),
    }[how]()
    with torch.no_grad():
        run(torch.randn(2, 4))
    assert is_compiled(model)
    assert how == "method" or not is_compiled(copy.deepcopy(model))
    torch._dynamo.reset()


def test_masking_one_model_keeps_what_was_compiled_of_another(heads):
    """The other is not compiled again."""
    bert, other = tiny_model("bert"), torch.compile(Two(), backend="eager")
    other(torch.randn(2, 4))
    before = torch._dynamo.utils.counters["frames"]["total"]
    with hp.masked(bert, hp.HeadMask.full(heads).without("encoder.0:1")):
        other(torch.randn(2, 4))
    other(torch.randn(2, 4))
    assert torch._dynamo.utils.counters["frames"]["total"] == before
    torch._dynamo.reset()


def test_a_masked_model_cannot_be_saved(bert, heads, tmp_path):
    """The mask would be lost without a word."""
    with hp.masked(bert, hp.HeadMask.empty(heads)):
        with pytest.raises(CheckpointError, match="masked"):
            bert.save_pretrained(tmp_path / "x")
        with pytest.raises(CheckpointError, match="masked"):
            bert.bert.save_pretrained(tmp_path / "x")
    assert not (tmp_path / "x").exists()
    bert.save_pretrained(tmp_path / "x")


def test_numbers_on_a_pruned_model_are_by_original_head(heads):
    """One entry per original head; those of removed heads do not matter."""
    model = tiny_model("bert")
    mask = hp.HeadMask.full(heads).without("encoder.0:1")
    with hp.masked(model, mask), hp.masked(model, {"encoder.0": [1.0, 1.0, 0.0, 1.0]}):
        expected = logits(model)
    hp.prune_(model, mask)
    with hp.masked(model, {"encoder.0": [1.0, 123.0, 0.0, 1.0]}):
        assert torch.allclose(logits(model), expected, atol=1e-5)


def test_masking_generation_acts_on_every_step():
    """Also with a cache."""
    model = tiny_model("llama")
    heads = hp.find_heads(model)
    prompt = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    plain = model.generate(**prompt, **settings).tolist()
    with hp.masked(model, hp.HeadMask.empty(heads)):
        masked = model.generate(**prompt, **settings, use_cache=True).tolist()
        assert masked == model.generate(**prompt, **settings, use_cache=False).tolist()
    assert masked != plain


def test_weights_per_example_where_positions_come_first():
    """FSMT's projections see (positions, batch, width): each example keeps its own weights, also with as many
    positions as examples."""
    from tests.tasks.parallel import tiny_fsmt

    model = tiny_fsmt(50)
    heads = hp.find_heads(model)
    assert {site.batch_axis for site in heads} == {1}
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 50, (5, 5), generator=generator)
    batch = {"input_ids": tokens, "decoder_input_ids": tokens.flip(0), "attention_mask": torch.ones_like(tokens)}
    weights = {site.id: torch.rand(5, 4, generator=generator) for site in heads}
    with torch.no_grad(), hp.masked(model, weights):
        together = model(**batch).logits
    for row in range(5):
        alone = {site: numbers[row] for site, numbers in weights.items()}
        with torch.no_grad(), hp.masked(model, alone):
            single = model(**{name: value[row : row + 1] for name, value in batch.items()}).logits
        assert torch.allclose(together[row], single[0], atol=1e-5)


def test_skip_holds_for_numbers_too():
    """All zero is emptied, however it is written."""
    model = tiny_model("bert")
    with hp.masked(model, full_mask(model).without("encoder.0"), empty_site="skip"):
        expected = answer_of(model)
    with hp.masked(model, {"encoder.0": [0.0] * 4}, empty_site="skip"):
        assert difference(answer_of(model), expected).largest == 0.0


def test_a_masked_model_is_not_copied():
    """The copy would stay masked for ever."""
    model = tiny_model("bert")
    with hp.masked(model, full_mask(model).without("encoder.0")), pytest.raises(MaskError, match="copy"):
        copy.deepcopy(model)
