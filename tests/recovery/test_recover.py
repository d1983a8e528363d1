"""Recovery without training: the fits, and what they do to a model."""

from __future__ import annotations

import copy

import pytest
import torch
from tools.families import build_model
from torch import nn
from transformers import AutoModelForSeq2SeqLM

import headprune as hp
from headprune.errors import CheckpointError, DataError, MaskError, UnknownNameError, UnsupportedModelError
from headprune.hooks import captured_inputs
from headprune.recovery import Fit, recoveries, repair
from headprune.recovery.sequential import columns_of
from headprune.scoring.context import ExampleLoss, ScoringContext
from headprune.scoring.moments import Moments
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import half_of, labelled_batch, tiny_model

METHODS = ("bias", "least-squares", "rescale")
FAMILIES = ("bert", "gpt2", "llama", "bart", "t5", "vit", "swin")  # with and without biases, grouped, crossed, windows


def batches_for(model: nn.Module, count: int = 3) -> list[dict[str, torch.Tensor]]:
    from headprune.structure.dummy_inputs import example_inputs

    return [example_inputs(model, seed=seed) for seed in range(count)]


def job_of(model: nn.Module, batches: list[dict[str, torch.Tensor]]) -> ScoringContext:
    return ScoringContext(model=model, heads=hp.find_heads(model), batches=batches, loss=ExampleLoss("mean"))


def half(model: nn.Module) -> hp.HeadMask:
    return hp.HeadMask.random(hp.find_heads(model), keep=0.5, seed=3, unit="group")


def rows_and_fit(seed: int = 0, *, bias: bool) -> tuple[torch.Tensor, Fit, Moments]:
    """300 rows of 4 heads of width 3, of which the last two depend on the first two and on noise."""
    torch.manual_seed(seed)
    first = torch.randn(300, 6, dtype=torch.float64) + 0.5
    rows = torch.cat([first, first @ torch.randn(6, 6, dtype=torch.float64) + torch.randn(300, 6).double()], dim=1)
    moments = Moments()
    for part in rows.split(70):
        moments.add(part)
    return rows, Fit(torch.randn(5, 12).double(), torch.randn(5).double() if bias else None), moments


@pytest.mark.parametrize("bias", [True, False])
def test_least_squares_is_the_closed_form(bias):
    """As torch's own solver finds it on the rows themselves."""
    rows, full, moments = rows_and_fit(bias=bias)
    fit = recoveries["least-squares"](full, moments, [0, 2], 3, ridge=0.0)
    columns = columns_of([0, 2], 3)
    target = rows @ full.weight.T + (full.bias if bias else 0)
    inputs = torch.cat([rows[:, columns], torch.ones(300, 1).double()], dim=1) if bias else rows[:, columns]
    solution = torch.linalg.lstsq(inputs, target).solution.T
    torch.testing.assert_close(fit.weight[:, columns], solution[:, :6])
    if bias:
        torch.testing.assert_close(fit.bias, solution[:, 6])
    error = (rows[:, columns] @ fit.weight[:, columns].T + (fit.bias if bias else 0) - target).square().sum(1).mean()
    assert full.error(fit, moments, columns) == pytest.approx(float(error))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kept", [[0], [1, 3], [0, 1, 2], []])
@pytest.mark.parametrize("bias", [True, False])
def test_no_method_raises_the_error_on_what_it_was_fitted_to(method, kept, bias):
    """Whatever it is allowed to change, leaving it alone was allowed, too."""
    for seed in range(5):
        _, full, moments = rows_and_fit(seed, bias=bias)
        columns = columns_of(kept, 3)
        fit = recoveries[method](full, moments, kept, 3)
        assert full.error(fit, moments, columns) <= full.error(full, moments, columns) * (1 + 1e-12)


def test_mask_tuning_aims_at_the_stream_of_the_whole_model():
    """One factor a head, as torch's own solver finds them on the rows: what the stream lacks is asked of them, too."""
    rows, full, _ = rows_and_fit(bias=True)
    drift = rows[:, :5] * 0.2 + 0.1
    moments = Moments()
    moments.add(rows, drift)
    kept = [0, 2]
    fit = recoveries["mask-tuning"](full, moments, kept, 3, ridge=0.0)
    written = torch.stack([rows[:, columns_of([h], 3)] @ full.weight[:, columns_of([h], 3)].T for h in kept], dim=-1)
    target = rows @ full.weight.T + drift
    factors = torch.linalg.lstsq(written.flatten(0, 1), target.flatten()[:, None]).solution[:, 0]
    for head, factor in zip(kept, factors, strict=True):
        columns = columns_of([head], 3)
        torch.testing.assert_close(fit.weight[:, columns], full.weight[:, columns] * factor, rtol=1e-5, atol=1e-6)
    assert fit.bias is full.bias


def test_mask_tuning_leaves_a_site_alone_whose_factors_cannot_be_trusted():
    """Beyond ±10, as in the paper: here the one head would have to write a hundred times as much."""
    rows, full, _ = rows_and_fit(bias=False)
    moments = Moments()
    moments.add(rows, 100 * rows @ full.weight.T)
    fit = recoveries["mask-tuning"](full, moments, [0, 1, 2, 3], 3)
    torch.testing.assert_close(fit.weight, full.weight)


def test_rescaling_is_the_best_factor_for_each_head():
    """Moving any factor a little makes it worse."""
    _, full, moments = rows_and_fit(bias=False)
    fit = recoveries["rescale"](full, moments, [0, 3], 3, ridge=0.0)
    columns = columns_of([0, 3], 3)
    best = full.error(fit, moments, columns)
    for head in (0, 3):
        for factor in (0.99, 1.01):
            moved = fit.weight.clone()
            moved[:, columns_of([head], 3)] *= factor
            assert full.error(Fit(moved, None), moments, columns) > best


def test_copies_of_kept_heads_are_replaced_exactly():
    """A head whose queries, keys and values are another's: without it, the repaired model is the original."""
    model = tiny_model("bert")
    attention = model.get_submodule(hp.find_heads(model)["encoder.0"].path).self
    with torch.no_grad():
        for projection in (attention.query, attention.key, attention.value):
            width = projection.out_features // 4
            projection.weight[width : 2 * width] = projection.weight[:width]
            projection.bias[width : 2 * width] = projection.bias[:width]
    batches = batches_for(model)
    expected = model(**batches[0]).logits
    mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1")
    hp.recover_(model, mask, batches, ridge=1e-12)
    hp.prune_(model, mask)
    torch.testing.assert_close(model(**batches[0]).logits, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_masked_equals_pruned_equals_reloaded(family, method, tmp_path):
    """A repaired model is as exact as any; a bias that a projection did not have is in the checkpoint."""
    model = tiny_model(family)
    batches = batches_for(model)
    mask = half(model)
    found = repair(job_of(model, batches), mask, method)
    assert all(found.after[site] <= found.before[site] * (1 + 1e-9) for site in found.before)
    with torch.no_grad():
        with hp.masked(model, mask):
            expected = model(**batches[0])[0]
        hp.prune_(model, mask)
        torch.testing.assert_close(model(**batches[0])[0], expected, atol=2e-5, rtol=1e-4)
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path).eval()
        assert torch.equal(loaded(**batches[0])[0], model(**batches[0])[0])
    assert model.config.headprune["history"][-1]["recovered"] == method


@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_least_squares_comes_nearer_to_the_original(family):
    """On the calibration data, the whole model's answer; layer by layer on what the repaired layers give."""
    model = tiny_model(family)
    batches = batches_for(model)
    mask = half(model)
    with torch.no_grad():
        expected = model(**batches[0])[0]
        with hp.masked(model, mask):
            broken = (model(**batches[0])[0] - expected).square().mean()
        hp.recover_(model, mask, batches)
        with hp.masked(model, mask):
            repaired = (model(**batches[0])[0] - expected).square().mean()
    assert repaired < broken / 2


def test_later_sites_are_fitted_to_what_repaired_ones_give():
    """The moments of the second layer are those of the model with the first repaired."""
    model = tiny_model("bert")
    batches = batches_for(model)
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without("encoder.0:1", "encoder.1:2")
    first_only = hp.HeadMask.full(heads).without("encoder.0:1")
    once = hp.recover_(copy.deepcopy(model), first_only, batches)
    module = {"x": once.get_submodule(heads["encoder.1"].output)}
    moments = Moments()
    for batch in batches:
        with torch.no_grad(), captured_inputs(once, module) as seen, hp.masked(once, first_only):
            once(**batch)
        moments.add(seen["x"][0][batch["attention_mask"] > 0])
    weight = module["x"].weight.detach().double()
    fit = recoveries["least-squares"](Fit(weight, module["x"].bias.detach().double()), moments, [0, 1, 3], 8)
    both = hp.recover_(model, mask, batches).get_submodule(heads["encoder.1"].output)
    torch.testing.assert_close(both.weight.double(), fit.weight, atol=1e-5, rtol=1e-4)


def test_a_second_repair_and_another_mask_are_refused():
    """The weights are no longer the original's; pruning makes the model one that can be repaired again."""
    model = tiny_model("bert")
    batches = batches_for(model)
    mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1")
    hp.recover_(model, mask, batches)
    with pytest.raises(MaskError, match="repaired before"):
        hp.recover_(model, mask, batches)
    with pytest.raises(MaskError, match="another mask"):
        hp.prune_(model, mask.without("encoder.1:0"))
    hp.prune_(model, mask)
    again = hp.HeadMask.full(hp.find_heads(model)).without("encoder.1:0")
    hp.prune_(hp.recover_(model, again, batches), again)
    assert [step["recovered"] for step in model.config.headprune["history"]] == ["least-squares"] * 2


def test_bad_input_changes_nothing():
    """A wrong name, no data, a failing batch: a clear error, and the weights as they were."""
    model = tiny_model("llama")
    batches = batches_for(model)
    mask = half(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnknownNameError, match="least-squares"):
        hp.recover_(model, mask, batches, method="least-square")
    with pytest.raises(DataError, match="no batch"):
        hp.recover_(model, mask, [])
    broken = [*batches, {"input_ids": torch.full((1, 3), 10**6)}]
    with pytest.raises(IndexError):
        hp.recover_(model, mask, broken, method="bias")
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)
    hp.prune_(model, mask)


def test_a_bias_has_no_place_in_a_plain_checkpoint(tmp_path):
    """Llama's config cannot say that the output projection has one."""
    model = tiny_model("llama")
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without(*(f"{site.id}:{head}" for site in heads for head in site.groups[0]))
    hp.prune_(hp.recover_(model, mask, batches_for(model), method="bias"), mask)
    with pytest.raises(UnsupportedModelError):
        hp.export(model, tmp_path / "plain", format="plain")
    fitted = tiny_model("llama")
    hp.prune_(hp.recover_(fitted, mask, batches_for(fitted)), mask)
    hp.export(fitted, tmp_path / "fitted", format="plain")


def test_layers_that_share_a_projection_are_refused():
    """Zamba's attention is one for several layers."""
    from tools.families.build_model import build

    built = build("zamba")
    with pytest.raises(UnsupportedModelError, match="share one output projection"):
        hp.recover_(built.model, half(built.model), [dict(built.batch)])


def test_a_projection_that_another_site_uses_is_not_touched():
    """Zamba again: the other layer loses nothing, and would be changed all the same."""
    from tools.families.build_model import build

    built = build("zamba")
    heads = hp.find_heads(built.model, built.batch)
    first = heads.sites[0]
    mask = hp.HeadMask.full(heads).without(*(f"{first.id}:{head}" for head in first.groups[0]))
    with pytest.raises(UnsupportedModelError, match="share one output projection"):
        hp.recover_(built.model, mask, [dict(built.batch)])


def test_masked_and_gated_models_are_refused():
    """Their heads would be heard as silent."""
    model = tiny_model("bert")
    batches, mask = batches_for(model), half(model)
    with hp.masked(model, mask), pytest.raises(UnsupportedModelError, match="masked"):
        hp.recover_(model, mask, batches)
    gates = hp.attach_gates(model, "hard-concrete")
    with pytest.raises(UnsupportedModelError, match="gates"):
        hp.recover_(model, mask, batches)
    with pytest.raises(UnsupportedModelError, match="gates"):
        hp.search(model, batches, prune=1)
    assert gates is not None


def test_a_repaired_model_is_pruned_before_it_is_saved(tmp_path):
    """Neither the original nor the pruned one; a part that was repaired is pruned as a part."""
    model = tiny_model("llama")
    batches, mask = batches_for(model), half(model)
    full = hp.HeadMask.full(hp.find_heads(model))
    hp.recover_(model, full, batches)  # nothing to do, nothing to remember
    hp.recover_(model, mask, batches, method="bias")
    with pytest.raises(CheckpointError, match="repaired"):
        model.save_pretrained(tmp_path / "x")
    hp.prune_(model, mask).save_pretrained(tmp_path / "x")
    whole = tiny_model("llama")
    inner = whole.model
    part = half(inner)
    hp.recover_(inner, part, batches)
    with pytest.raises(MaskError, match="by itself"):
        hp.prune_(whole, half(whole))


def test_a_new_bias_can_be_trained_after_inference_mode():
    """It is an ordinary parameter, wherever it was made."""
    model = tiny_model("llama")
    batches, mask = batches_for(model), half(model)
    with torch.inference_mode():
        hp.recover_(model, mask, batches, method="bias")
    hp.prune_(model, mask)
    bias = model.get_submodule(hp.find_heads(model).sites[0].output).bias
    before = bias.detach().clone()
    model(**batches[0], labels=batches[0]["input_ids"]).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not bias.equal(before)


def test_xlnet_has_no_place_for_a_bias():
    """Said, and nothing changed; least squares works."""
    from tools.families.build_model import build

    built = build("xlnet")
    heads = hp.find_heads(built.model, built.batch)
    mask = hp.HeadMask.full(heads).without(f"{heads.sites[0].id}:1")
    before = {name: value.clone() for name, value in built.model.state_dict().items()}
    with pytest.raises(UnsupportedModelError, match="cannot be given one"):
        hp.recover_(built.model, mask, [dict(built.batch)], method="bias")
    assert all(value.equal(before[name]) for name, value in built.model.state_dict().items())
    hp.prune_(hp.recover_(built.model, mask, [dict(built.batch)]), mask, example=built.batch)


def test_sites_that_the_data_does_not_reach_are_named():
    """A decoder that is never run cannot be repaired."""
    model = tiny_model("bart")
    mask = hp.HeadMask.full(hp.find_heads(model)).without("decoder.1:0")
    job = job_of(model, batches_for(model))
    object.__setattr__(job, "answer", lambda batch: model.get_encoder()(input_ids=batch["input_ids"]))
    with pytest.raises(DataError, match=r"decoder\.1 is not reached"):
        repair(job, mask, "least-squares")


def test_targets_are_padded_by_their_own_mask():
    """Source and target of one length: the rows of the decoder are those of the labels."""
    from headprune.scoring.moments import real_positions

    source, labels = torch.tensor([[1, 1, 0, 0]]), torch.tensor([[5, 6, 7, -100]])
    like = torch.zeros(1, 4, 2)
    batch = {"attention_mask": source, "labels": labels}
    assert real_positions(batch, "encoder", like, has_encoder=True).tolist() == [[1, 1, 0, 0]]
    assert real_positions(batch, "cross", like, has_encoder=True).tolist() == [[1, 1, 1, 0]]
    assert real_positions(batch, "decoder", like, has_encoder=True).tolist() == [[1, 1, 1, 0]]
    assert real_positions(batch, "decoder", like, has_encoder=False).tolist() == [[1, 1, 0, 0]]  # alone, it reads it


def test_calibration_data_that_is_not_finite_is_refused():
    """One number would be in every weight; the model stays as it was."""
    model = tiny_model("bert")
    before = copy.deepcopy(model.state_dict())
    bad = torch.randn(1, 8, model.config.hidden_size)
    bad[0, 3, 0] = float("inf")
    with pytest.raises(DataError, match=r"encoder\.0 write on the calibration data is not finite"):
        hp.recover_(model, half(model), [*batches_for(model), {"inputs_embeds": bad}])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_bias_that_is_added_to_a_frozen_model_is_frozen():
    """As it is when the model is loaded again."""
    for frozen in (True, False):
        model = tiny_model("llama").requires_grad_(not frozen)
        hp.recover_(model, half(model), batches_for(model), method="bias")
        biases = [p for name, p in model.named_parameters() if name.endswith("o_proj.bias")]
        assert biases
        assert all(bias.requires_grad is not frozen for bias in biases)


def test_a_repair_of_neurons_alone_can_be_pruned():
    """Whichever map was given: what counts is which sites lose what."""
    model = tiny_model("bert")
    both = hp.find_heads(model, neurons=True)
    for mask, map_ in ((half_of(both.neurons), both.neurons), (half_of(both.attention), both)):
        pruned = copy.deepcopy(model)
        hp.recover_(pruned, mask, [labelled_batch(model)], heads=map_)
        other = half_of(both.neurons if map_ is both.neurons else both.attention, seed=5)
        with pytest.raises(MaskError, match="for another mask"):
            hp.prune_(pruned, other)
        hp.prune_(pruned, mask)
        assert len(hp.find_heads(pruned, neurons=True)) < len(both)


def test_tokens_that_go_to_experts_are_of_no_example():
    """Neurons of experts are repaired and scored all the same, from all rows that come by."""
    sizes = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 2}
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(build_model.tiny_config("switch_transformers", **sizes)).eval()
    build_model.enlarge_(model, 0)
    neurons = hp.find_heads(model, neurons=True).neurons
    assert any("expert" in site.output for site in neurons)
    batches = [example_inputs(model, batch=3, length=7, seed=seed) for seed in range(3)]
    batches = [{**batch, "labels": batch["decoder_input_ids"]} for batch in batches]
    for method in ("output-norm", "curvature", "residual", "reconstruction"):
        scores = hp.score(model, batches, heads=neurons, method=method)
        assert all(len(row) == neurons[site].num_heads for site, row in scores.scores.items())
    hp.recover_(model, hp.HeadMask.random(neurons, keep=0.5, seed=0), batches)


def test_a_skipped_site_without_heads_is_only_refused_after_a_repair_if_there_is_one():
    """`empty_site="skip"` drops biases, where a site is emptied; elsewhere it means nothing."""
    model = tiny_model("bert")
    some = half_of(hp.find_heads(model))
    emptied = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0")
    for mask in (some, emptied):
        repaired = copy.deepcopy(model)
        hp.recover_(repaired, mask, [labelled_batch(model)])
        if mask is emptied:
            with pytest.raises(MaskError, match="empty_site='skip' drops them"):
                hp.prune_(repaired, mask, empty_site="skip")
        else:
            hp.prune_(repaired, mask, empty_site="skip")
    hp.prune_(model, emptied)  # what was emptied before is not emptied again
    rest = hp.HeadMask.full(hp.find_heads(model)).without("encoder.1:0")
    hp.recover_(model, rest, [labelled_batch(model)])
    hp.prune_(model, rest, empty_site="skip")
    assert len(hp.find_heads(model)) == 3
