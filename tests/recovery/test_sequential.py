"""A walk through the sites gives what passes from the beginning give, for less."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.recovery.sequential import Fit, SequentialMoments, recoveries
from headprune.scoring.moments import Moments, moments_of
from tests.families.tiny import tiny_model
from tests.recovery.test_recover import batches_for, half, job_of


def walked(model, memory=1 << 32, change=True):
    """Moments of every site that loses heads, with each output projection changed after it was heard."""
    job, mask = job_of(model, batches_for(model)), half(model)
    losing = [site for site in job.heads if mask.kept(site.id) != site.kept]
    walk = SequentialMoments(job, losing, job.batches, mask, memory=memory)
    found = {}
    with torch.no_grad():
        for site in walk.sites:
            found[site.id] = walk.moments(site)
            if change:
                model.get_submodule(site.output).weight.mul_(1.3)
    return found, walk


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "bart", "t5", "swin", "vit", "albert", "whisper", "bloom"])
def test_going_on_equals_starting_again(family):
    """Although the weights of the sites before have changed in between."""
    quick, walk = walked(tiny_model(family).eval())
    slow, other = walked(tiny_model(family).eval(), memory=0)
    assert list(quick) == list(slow) == [site.id for site in other.sites]
    for site, moments in quick.items():
        assert moments.count == slow[site].count
        torch.testing.assert_close(moments.second, slow[site].second, rtol=1e-5, atol=1e-7)
    assert bool(walk._waiting) == (family != "albert")  # whose layers share one block: from the beginning


def test_a_walk_costs_about_one_pass(monkeypatch):
    """Calls of the feed-forward parts: once for each layer and batch, and a few to check."""
    calls = []
    for memory in (1 << 32, 0):
        model = tiny_model("bert", num_hidden_layers=6).eval()
        count = [0]
        for layer in model.bert.encoder.layer:
            layer.intermediate.register_forward_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        walked(model, memory)
        calls.append(count[0])
    quick, slow = calls
    assert quick < 0.7 * slow


def test_batches_beyond_the_memory_start_again(monkeypatch):
    """A small memory holds some of the batches; the answer is the same."""
    model = tiny_model("bert").eval()
    whole, walk = walked(model)
    sizes = [waiting.size for waiting in walk._waiting.values()]
    some, walk = walked(tiny_model("bert").eval(), memory=max(sizes) + 1)
    assert len(walk._waiting) == 1
    for site, moments in some.items():
        torch.testing.assert_close(moments.second, whole[site].second, rtol=1e-5, atol=1e-7)


def test_a_model_that_cannot_be_resumed_is_run_from_the_beginning():
    """State outside of modules' answers: noticed at the first site that goes on."""
    model = tiny_model("bert", num_hidden_layers=3).eval()
    seen = []
    original = model.bert.encoder.layer[0].forward

    def forward(hidden_states, *args, **kwargs):
        seen.append(hidden_states)
        model.bert.encoder.layer[1].scale = 2.0  # what a later layer reads
        return original(hidden_states, *args, **kwargs)

    second = model.bert.encoder.layer[1].forward

    def reading(hidden_states, *args, **kwargs):
        layer = model.bert.encoder.layer[1]
        scale, layer.scale = getattr(layer, "scale", 1.0), 1.0
        return second(hidden_states * scale, *args, **kwargs)

    model.bert.encoder.layer[0].forward = forward
    model.bert.encoder.layer[1].forward = reading
    job, mask = job_of(model, batches_for(model)), hp.HeadMask.random(hp.find_heads(model), keep=0.5, seed=3)
    walk = SequentialMoments(job, list(job.heads), job.batches, mask)
    for site in walk.sites:
        expected = moments_of(job, [site], job.batches, mask)[site.id]
        torch.testing.assert_close(walk.moments(site).second, expected.second, rtol=1e-5, atol=1e-7)
    assert not walk._goes_on


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_models_that_write_into_what_parts_of_them_answered_are_repaired(kind):
    """Qwen-VL puts its pictures into the answer of its vision tower; the record keeps its own."""
    from tools.families.build_model import build

    built = build(kind)
    heads = hp.find_heads(built.model, built.batch)
    sites = [site for site in heads if "decoder" in site.id][:2]
    gone = [f"{site.id}:{head}" for site in sites for head in site.groups[0]]
    outputs = [built.model.get_submodule(site.output).weight for site in sites]
    before = [weight.detach().clone() for weight in outputs]
    hp.recover_(built.model, hp.HeadMask.full(heads).without(*gone), [dict(built.batch)], heads=heads)
    assert not any(weight.equal(old) for weight, old in zip(outputs, before, strict=True))


def test_how_strongly_it_fits_is_chosen_on_rows_that_the_fit_did_not_see():
    """With hardly more rows than columns a fit by heart is worse on other data than one that is held back."""
    draw = torch.Generator().manual_seed(0)
    full = Fit(torch.randn(6, 24, generator=draw, dtype=torch.float64), torch.zeros(6, dtype=torch.float64))
    mixing = torch.randn(24, 24, generator=draw)
    few, other = (torch.randn(rows, 24, generator=draw) @ mixing for rows in (40, 4000))
    moments, held, elsewhere = Moments(), Moments(), Moments()
    moments.add(few)
    held.add(few[30:])
    moments.held = held
    elsewhere.add(other)
    kept = list(range(16))

    def error(**options):
        fit = recoveries["least-squares"](full, moments, kept, 1, **options)
        return full.error(fit, elsewhere, torch.tensor(kept))

    assert error() < error(ridge=1e-4)
    assert error() <= max(error(ridge=ridge) for ridge in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)) * 0.9
