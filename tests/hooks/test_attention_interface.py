"""Attention functions are seen by the thread that asked, and by no other."""

from __future__ import annotations

import threading

import torch
from transformers.modeling_utils import AttentionInterface

import headprune as hp
from headprune.hooks import recorded
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import tiny_model


def test_attention_of_another_thread_does_not_enter_a_recording():
    """Two models at once: each recording holds the modules of its own."""
    models = [tiny_model("bert"), tiny_model("bert")]
    batch = example_inputs(models[0])
    both = threading.Barrier(2, timeout=60)
    foreign: list[int] = []

    def record(model: torch.nn.Module) -> None:
        own = set(model.modules())
        with torch.no_grad(), recorded(model) as recording:
            both.wait()  # both are watching
            for _ in range(3):
                model(**batch)
            both.wait()
        foreign.append(sum(call.module not in own for call in recording.calls))

    threads = [threading.Thread(target=record, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert foreign == [0, 0]


def test_a_forward_pass_beside_it_does_not_disturb_finding_heads():
    """Another thread runs its model all the while; the heads are those found alone."""
    model, other = tiny_model("llama"), tiny_model("llama")
    batch = example_inputs(other)
    alone = hp.find_heads(tiny_model("llama"))
    stop = threading.Event()

    def run() -> None:
        with torch.no_grad():
            while not stop.is_set():
                other(**batch)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert hp.find_heads(model) == alone
    finally:
        stop.set()
        thread.join()


def test_the_lookup_is_as_before_when_the_last_block_ends():
    """Blocks may end in any order, and overlap."""
    original = AttentionInterface.get_interface
    first, second = recorded(tiny_model("bert")), recorded(tiny_model("bert"))
    first.__enter__()
    second.__enter__()
    assert AttentionInterface.get_interface is not original
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert AttentionInterface.get_interface is original
