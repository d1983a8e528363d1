"""Masks belong to the context that opened them: several threads, tasks, and threads that torch starts."""

from __future__ import annotations

import asyncio
import copy
import importlib
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

import headprune as hp
from headprune.errors import MaskError, UnsupportedModelError
from headprune.hooks.scope import carried
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import tiny_model

BATCH = {"input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])}


@pytest.fixture
def model():
    return tiny_model("bert")


def logits(model):
    with torch.no_grad():
        return model(**BATCH).logits


def masks_of(model, count=4):
    every = hp.HeadMask.full(hp.find_heads(model))
    sites = [site.id for site in hp.find_heads(model)]
    return [every.without(f"{sites[n % 2]}:{n % 4}") for n in range(count)]


def xlnet():
    """Its output projection is a bare parameter, which is a module only while somebody masks."""
    torch.manual_seed(0)
    config = transformers.XLNetConfig(vocab_size=50, d_model=32, n_layer=2, n_head=4, d_inner=32)
    return transformers.XLNetForSequenceClassification(config).eval()


def no_hooks(model):
    return not any(m._forward_pre_hooks or m._forward_hooks or "forward" in vars(m) for m in model.modules())


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_threads_with_different_masks_get_their_own_answers(family):
    """300 answers from four threads, masked and not, all as alone; no hook is left."""
    model = tiny_model("bert") if family == "bert" else xlnet()
    masks = [None, *masks_of(model, 3)]
    with torch.no_grad():
        alone = []
        for mask in masks:
            with hp.masked(model, mask if mask is not None else {}):
                alone.append(_answer(model))
    begin = threading.Barrier(len(masks))

    def answers(number):
        begin.wait()
        wrong = 0
        for _ in range(75):
            if masks[number] is None:
                found = _answer(model)
            else:
                with hp.masked(model, masks[number]):
                    found = _answer(model)
            wrong += not torch.allclose(found, alone[number], atol=1e-6)
        return wrong

    with ThreadPoolExecutor(len(masks)) as pool:
        assert list(pool.map(answers, range(len(masks)))) == [0, 0, 0, 0]
    assert no_hooks(model)
    assert len({tuple(a.flatten().tolist()) for a in alone}) == 4, "the masks tell apart"


def _answer(model):
    with torch.no_grad():
        found = model(**BATCH)
    return found.logits if hasattr(found, "logits") else found[0]


def test_two_threads_that_ask_first_examine_the_model_once_and_both_are_right(model):
    """Nobody has looked for heads before."""
    expected = []
    for mask in masks_of(twin := copy.deepcopy(model), 2):
        with hp.masked(twin, mask):
            expected.append(logits(twin))
    begin = threading.Barrier(2)

    def answer(mask):
        begin.wait()
        with hp.masked(model, mask):
            return logits(model)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(answer, masks_of(twin, 2)))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_tasks_of_one_thread_have_their_own_masks(model):
    """A mask stays with its task while others run."""
    masks = masks_of(model, 2)
    alone = []
    for mask in masks:
        with hp.masked(model, mask):
            alone.append(logits(model))

    async def answer(mask):
        with hp.masked(model, mask):
            await asyncio.sleep(0)
            return logits(model)

    async def both():
        return await asyncio.gather(*map(answer, masks))

    assert all(torch.equal(a, b) for a, b in zip(asyncio.run(both()), alone, strict=True))


def test_replicas_of_data_parallel_have_the_mask_of_who_asked(model, monkeypatch):
    """Their threads are torch's: here with its own way of starting them, on the processor."""
    replicas = importlib.import_module("torch.nn.parallel.data_parallel")

    def on_threads(modules, inputs, kwargs_tup=None, devices=None):
        found = [None] * len(modules)

        def run(place):
            with torch.no_grad():
                found[place] = modules[place](**kwargs_tup[place])

        threads = [threading.Thread(target=run, args=(place,)) for place in range(len(modules))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    monkeypatch.setattr(replicas, "parallel_apply", on_threads)
    plain = logits(model)
    with hp.masked(model, masks_of(model)[1]):
        expected = logits(model)
        twins = [model._replicate_for_data_parallel(), model]
        found = replicas.parallel_apply(twins[1:] * 2, [(), ()], [BATCH, BATCH])
        beside = ThreadPoolExecutor(1).submit(logits, model).result()
    assert all(torch.equal(one.logits, expected) for one in found)
    assert torch.equal(beside, plain), "a thread of one's own has no mask"
    assert not torch.equal(expected, plain)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_computed_again_in_the_backward_pass_is_masked(model, reentrant, elsewhere):
    """Also in another thread, as autograd does for devices; gradients are those without checkpointing."""
    mask = masks_of(model)[1]
    layer = model.bert.encoder.layer[1]
    inputs = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0))

    def gradients(run, thread):
        model.zero_grad()
        with hp.masked(model, mask):
            total = run(inputs.clone().requires_grad_()).square().sum()
            if thread:
                worker = threading.Thread(target=total.backward)
                worker.start()
                worker.join()
            else:
                total.backward()
        return [p.grad.clone() for p in layer.parameters()]

    expected = gradients(lambda x: _first(layer(x)), False)
    found = gradients(lambda x: checkpoint(lambda y: _first(layer(y)), x, use_reentrant=reentrant), elsewhere)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


def _first(found):
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("reentrant", [False, True])
def test_computing_again_after_the_block_is_refused(model, reentrant):
    """The mask is gone by then: before, gradients were wrong or torch stopped with a riddle."""
    layer = model.bert.encoder.layer[1]
    with hp.masked(model, masks_of(model)[1]):
        inputs = torch.randn(2, 4, 32, requires_grad=True)
        total = checkpoint(lambda y: _first(layer(y)), inputs, use_reentrant=reentrant).sum()
    with pytest.raises(MaskError, match="backward pass inside the block"):
        total.backward()


def test_a_model_that_another_thread_runs_is_not_pruned(model):
    """It is refused at once, and the model is as it was."""
    mask, before = masks_of(model)[0], logits(model)
    inside, go_on = threading.Event(), threading.Event()

    def wait(module, args):
        inside.set()
        go_on.wait(30)

    handle = model.bert.encoder.layer[1].register_forward_pre_hook(wait)
    with ThreadPoolExecutor(1, thread_name_prefix="server") as pool:
        running = pool.submit(logits, model)
        inside.wait(30)
        try:
            with pytest.raises(UnsupportedModelError, match=r"prune_ was called while the thread 'server_0' runs"):
                hp.prune_(model, mask)
        finally:
            go_on.set()
        assert torch.equal(running.result(), before)
    handle.remove()
    assert no_hooks(model)
    hp.prune_(model, mask)


def test_a_model_that_another_thread_masks_is_not_pruned(model):
    """Nor masked with the heads that it had, while it is pruned."""
    mask, opened, close = masks_of(model)[0], threading.Event(), threading.Event()

    def hold():
        with hp.masked(model, mask):
            opened.set()
            close.wait(30)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        opened.wait(30)
        try:
            with pytest.raises(UnsupportedModelError, match="of this or another thread"):
                hp.prune_(model, mask)
        finally:
            close.set()
        held.result()
    hp.prune_(model, mask)


def test_answers_beside_a_pruning_are_those_of_the_old_or_the_new_model(model):
    """Whoever comes while heads go waits; nobody meets half a model."""
    mask = masks_of(model)[0]
    old = logits(model)
    new = logits(hp.prune_(copy.deepcopy(model), mask))
    stop, wrong, pruned = threading.Event(), [], []

    def serve():
        while not stop.is_set():
            found = logits(model)
            if not (torch.allclose(found, old, atol=1e-6) or torch.allclose(found, new, atol=1e-6)):
                wrong.append(found)

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(2000):
        try:
            pruned.append(hp.prune_(model, mask))
            break
        except UnsupportedModelError:
            continue
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    if not pruned:  # the others were always in it
        hp.prune_(model, mask)
    assert torch.allclose(logits(model), new, atol=1e-6)


def test_two_threads_run_a_pruned_model_whose_code_counts_on_its_width():
    """What such blocks remember of a run belongs to the thread that runs them."""
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}  # fmt: skip
    model = transformers.FSMTModel(transformers.FSMTConfig(src_vocab_size=50, tgt_vocab_size=50, **sizes)).eval()
    batch = example_inputs(model)
    heads = hp.find_heads(model)
    hp.prune_(model, hp.HeadMask.full(heads).without(*(f"{site.id}:0" for site in heads)))
    with torch.no_grad():
        expected = model(**batch)[0]

    def answers(_):
        with torch.no_grad():
            return sum(not torch.allclose(model(**batch)[0], expected, atol=1e-5) for _ in range(20))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(answers, range(3))) == [0, 0, 0]


def test_a_masked_model_is_neither_copied_nor_pickled(model):
    """The file or the copy would stay masked for ever."""
    with hp.masked(model, masks_of(model)[0]):
        for action in (copy.deepcopy, pickle.dumps):
            with pytest.raises(MaskError, match="Leave the block first"):
                action(model)
    pickle.loads(pickle.dumps(model))


def test_without_a_block_nothing_is_carried():
    """A function of an ordinary thread stays the very function."""
    function = nn.Linear(1, 1)
    assert carried(function) is function


def test_a_block_that_another_thread_ended_is_over(model):
    """Also for what gradient checkpointing computes again: the thread that opened it has nothing left of it."""
    block, layer = hp.masked(model, masks_of(model)[1]), model.bert.encoder.layer[1]
    block.__enter__()
    other = threading.Thread(target=block.__exit__, args=(None, None, None))
    other.start()
    other.join()
    with hp.masked(model, masks_of(model)[0]):
        inputs = torch.randn(2, 4, 32, requires_grad=True)
        checkpoint(lambda y: _first(layer(y)), inputs, use_reentrant=False).sum().backward()
    assert inputs.grad is not None
