"""Two processes train a pruned model as one does: DDP, Trainer, gradient checkpointing, FSDP2; with emptied sites."""

from __future__ import annotations

import os
import socket
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainingArguments

import headprune as hp
from headprune.structure.dummy_inputs import example_inputs
from tests.families.tiny import full_mask, tiny_model

FAMILIES = ("bert", "llama", "t5")  # an encoder, a decoder, an encoder-decoder


def subject(family):
    """The first site of each component emptied, one group of the second gone; no dropout."""
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = tiny_model(family, **{"bert": rates, "t5": {"dropout_rate": 0.0}}.get(family, {}))
    heads = hp.find_heads(model)
    firsts = {site.component: site.id for site in reversed(heads.sites)}
    model = hp.prune_(model, full_mask(model).without(*firsts.values()))
    batch = example_inputs(model, batch=4)
    batch["labels"] = torch.tensor([0, 1, 1, 0]) if family == "bert" else batch["input_ids"]
    return model.train(), {name: value for name, value in batch.items() if name != "decoder_input_ids"}


def part(batch, rank):
    return {name: value[2 * rank : 2 * rank + 2] for name, value in batch.items()}


def gradients(model):
    found = {name.removeprefix("module."): parameter.grad for name, parameter in model.named_parameters()}
    return {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in found.items() if g is not None}


def backward(model, batch, steps=2):
    for _ in range(steps):  # the second step is where DDP notices what was left out of the first
        model.zero_grad()
        model(**batch).loss.backward()
    return gradients(model)


def trained(family, checkpointing):
    """Weights after two steps of the Trainer, which has both halves in every step."""
    model, batch = subject(family)
    rows = [{name: value[row] for name, value in batch.items()} for row in (0, 2, 1, 3)] * 2
    each = 4 // int(os.environ.get("WORLD_SIZE", "1"))
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, max_steps=2, per_device_train_batch_size=each, learning_rate=0.1, optim="sgd", report_to=[],
            save_strategy="no", disable_tqdm=True, use_cpu=True, gradient_checkpointing=checkpointing, max_grad_norm=0,
            ddp_find_unused_parameters=False, average_tokens_across_devices=False,
            train_sampling_strategy="sequential",
        )  # fmt: skip
        Trainer(model, options, train_dataset=rows).train()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def worker(rank, port, results):
    """Every case in one pair of processes."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = {}
    for family in FAMILIES:
        for case in ("ddp", "checkpointing", "fsdp"):
            model, batch = subject(family)
            if case == "checkpointing":
                model.gradient_checkpointing_enable({"use_reentrant": False})
            if case == "fsdp":
                mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
                whole = fully_shard(model, mesh=mesh)
            else:
                whole = DistributedDataParallel(model)
            found[family, case] = backward(whole, part(batch, rank))
        for checkpointing in (False, True):
            found[family, f"trainer {checkpointing}"] = trained(family, checkpointing)
    if rank == 0:
        torch.save(found, results)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    results = tmp_path_factory.mktemp("processes") / "found.pt"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, (port, str(results)), nprocs=2)
    return torch.load(results)


def alone(family):
    """The mean of the gradients of both halves."""
    model, batch = subject(family)
    halves = [{n: g.clone() for n, g in backward(model, part(batch, rank), 1).items()} for rank in (0, 1)]
    return {name: (halves[0][name] + halves[1][name]) / 2 for name in halves[0]}


@pytest.mark.parametrize("case", ["ddp", "checkpointing", "fsdp"])
@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_have_the_gradients_of_one(family, case, together):
    """Of every parameter that is not frozen."""
    expected, found = alone(family), together[family, case]
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_of_the_trainer_take_the_steps_of_one(family, checkpointing, together):
    """With DDP, as the Trainer starts it."""
    expected, found = trained(family, checkpointing), together[family, f"trainer {checkpointing}"]
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-4, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
