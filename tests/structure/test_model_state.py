"""Running a model on an example leaves nothing behind in it."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from transformers import BigBirdConfig, BigBirdForSequenceClassification

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from headprune.structure.run import ModelState, difference, run, same_attributes
from tests.families.tiny import answer_of, labelled_batches, tiny_model


class Careless(nn.Module):
    """Changes whatever a forward pass can reach, and draws at random."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(1))
        self.config = SimpleNamespace(kind="sparse", inner=SimpleNamespace(sizes=[1, 2]))
        self.cache: dict[str, list[int]] = {"tokens": [1]}
        self.plain = torch.zeros(2)

    def forward(self, x):
        self.seen += 1
        self.config.kind = "full"
        self.config.inner.sizes.append(3)
        self.cache["tokens"].append(2)
        self.cache["more"] = []
        self.plain.add_(1)
        self.last = x
        self.inner = nn.Linear(2, 2)
        return self.inner(x) + torch.rand(1) + numpy.random.rand() + random.random()


def test_what_a_run_changes_is_put_back():
    """Attributes, configs inside configs, lists inside tables, buffers, tensors, modules and random states."""
    model, x = Careless(), torch.ones(1, 2)
    state, before, inner = ModelState(model), vars(model).copy(), model.inner
    drawn = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    run(model, {"x": x})
    assert state.changes() == []
    assert vars(model) == before
    assert model.inner is inner
    assert (model.seen.item(), model.plain.tolist(), model.cache) == (0.0, [0.0, 0.0], {"tokens": [1]})
    assert (model.config.kind, model.config.inner.sizes) == ("sparse", [1, 2])
    assert torch.get_rng_state().equal(drawn[0])
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == drawn[1:]


def test_what_is_changed_is_named():
    """And a failing run is put back, too."""
    model = Careless()
    state, changed = ModelState(model), []

    def fails() -> None:
        with same_attributes(model) as inside:
            model(torch.ones(1, 2))
            changed.extend([*inside.changes(), *inside.replaced_modules()])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    names = ("_buffers.seen", "config.kind", "config.inner.sizes", "cache.tokens", "plain", "last", "_modules.inner")
    assert {f"Careless.{name}" for name in (*names, "inner")} <= set(changed)
    assert state.changes() == []


@pytest.fixture(scope="module")
def big_bird():
    """With sparse attention, which gives way to full attention on texts of at most 14 tokens."""
    torch.manual_seed(0)
    config = BigBirdConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64, block_size=2, num_random_blocks=1,
    )  # fmt: skip
    return BigBirdForSequenceClassification(config).eval()


def test_looking_at_a_model_does_not_switch_its_attention(big_bird):
    """BigBird takes another attention for good when it meets a short text: not because of ours."""
    long = example_inputs(big_bird, length=60)
    state, before = ModelState(big_bird), answer_of(big_bird, long)
    heads = hp.find_heads(big_bird)
    mask = hp.HeadMask.full(heads).without("encoder.0:1")
    hp.find_heads(big_bird, example=example_inputs(big_bird, length=5))
    with hp.masked(big_bird, mask):
        answer_of(big_bird)
    hp.score(big_bird, labelled_batches(big_bird))
    hp.plan(big_bird, mask)
    hp.measure(big_bird, length=5, repeats=1)
    assert state.changes() == []
    with torch.no_grad():
        assert difference(big_bird(**long), before).largest == 0.0


@pytest.mark.parametrize("emptied", [False, True])
def test_a_pruned_model_runs_with_both_kinds_of_attention(big_bird, tmp_path, emptied):
    """Reloaded, too: the attention for short texts is built only when one comes, with the heads that are left."""
    import copy

    mask = hp.HeadMask.full(hp.find_heads(big_bird)).without("encoder.0" if emptied else "encoder.0:1", "encoder.1:3")
    pruned = hp.prune_(copy.deepcopy(big_bird), mask)
    pruned.save_pretrained(tmp_path)
    loaded = BigBirdForSequenceClassification.from_pretrained(tmp_path).eval()
    for length in (60, 5, 60):  # as a user runs it: from the short text on, attention is full
        batch = example_inputs(big_bird, length=length)
        with torch.no_grad(), hp.masked(big_bird, mask):
            expected = answer_of(big_bird, batch) if length == 5 else None
        for model in (pruned, loaded):
            with torch.no_grad():
                found = model(**batch)
            assert expected is None or difference(found, expected).is_small


def test_looking_keeps_gradients_and_modes():
    """A model in training stays in training, with its gradients and frozen weights."""
    model = tiny_model("bert").train()
    model.bert.embeddings.requires_grad_(False)
    model(**example_inputs(model)).logits.sum().backward()
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    state = ModelState(model)
    hp.find_heads(model, neurons=True)
    assert state.changes() == []
    after = [p.grad for p in model.parameters()]
    assert all((a is None and b is None) or a.equal(b) for a, b in zip(after, grads, strict=True))


def test_what_other_threads_put_on_a_model_is_theirs():
    """A mask that is opened beside a long run stays when the run ends, one that is closed stays closed, and who waits
    for a model is woken up."""
    model = tiny_model("bert")
    full = hp.HeadMask.full(hp.find_heads(model))
    first, second = hp.masked(model, full.without("encoder.0:1")), hp.masked(model, full.without("encoder.1"))
    plain = answer_of(model)
    with first:
        expected_first = answer_of(model)
    first = hp.masked(model, full.without("encoder.0:1"))
    second.__enter__()
    with same_attributes(model) as state:
        first.__enter__()
        second.__exit__(None, None, None)
        assert state.changes() == []
    assert difference(answer_of(model), expected_first).largest == 0.0
    first.__exit__(None, None, None)
    assert difference(answer_of(model), plain).largest == 0.0
    assert not any(module._forward_pre_hooks for module in model.modules())
    over = threading.Event()
    model.bert.register_forward_pre_hook(Waits(over))
    with same_attributes(model):
        waiting = threading.Thread(target=over.wait, args=(30,))
        waiting.start()
        while not over._cond._waiters:
            time.sleep(0.01)
    over.set()
    waiting.join(5)
    assert not waiting.is_alive()


class Waits:
    """A hook that makes others wait."""

    def __init__(self, over: threading.Event) -> None:
        self.over = over

    def __call__(self, module, args):
        pass
