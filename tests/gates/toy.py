"""Gated models, and a task for them."""

from __future__ import annotations

import warnings

import torch
from torch.utils.data import Dataset
from transformers import BertForSequenceClassification, PrinterCallback, TrainingArguments

import headprune as hp
from tests.families.tiny import tiny_config

KINDS = ("hard-concrete", "binary-concrete", "exact-k")


def set_gates(gates, seed=0, low=-4.0, high=4.0):
    """Every gate far from the middle, some open and some closed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for site in gates.places:
            alpha = gates.gate(site).log_alpha
            alpha.copy_(torch.where(torch.rand(len(alpha), generator=generator) < 0.5, low, high))
    return gates


def answer(model, batch):
    with torch.no_grad():
        out = model(**batch)
    return next(out[name] for name in ("logits", "last_hidden_state", "logits_per_image") if name in out)


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


class Words(Dataset):
    """Whether token 7 is in the sentence: easy enough for a few steps."""

    def __init__(self, count=64):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(10, 60, (count, 8), generator=generator)
        self.labels = torch.arange(count) % 2
        self.ids[self.labels == 1, 3] = 7

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {"input_ids": self.ids[row], "labels": self.labels[row]}


def gated_bert(**options):
    torch.manual_seed(0)
    model = BertForSequenceClassification(tiny_config("bert", num_labels=2))
    hp.attach_gates(model, **options)
    return model


def trainer(model, folder, objective, *, steps=12, **more):
    gate_ways = {name: more.pop(name) for name in ("gate_lr", "gate_lr_scale") if name in more}
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=8, learning_rate=1e-3, logging_steps=1,
        report_to=[], use_cpu=True, disable_tqdm=True, seed=0, dataloader_pin_memory=False,
        **{"save_strategy": "no", **more},
    )  # fmt: skip
    made = hp.GateTrainer(model=model, args=arguments, train_dataset=Words(), objective=objective, **gate_ways)
    made.remove_callback(PrinterCallback)
    return made


def alphas(model):
    gates = hp.gates_of(model)
    return torch.cat([gates.gate(site).log_alpha.detach() for site in gates.places])


def with_alpha(gate, *values):
    with torch.no_grad():
        gate.log_alpha.copy_(torch.tensor(values))
    return gate
