"""Pruned models in transformers' own Trainer."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

import headprune as hp
from tests.families.tiny import tiny_model


class Sentences(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": torch.tensor([3 + index, 4, 5, 6]), "labels": torch.tensor(index % 2)}


def test_a_pruned_model_trains_in_the_ordinary_trainer(tmp_path):
    """Its checkpoints are pruned checkpoints, resuming works."""
    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0", "encoder.1:2"))
    arguments = {
        "output_dir": str(tmp_path), "per_device_train_batch_size": 4, "save_steps": 2, "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "seed": 0, "dataloader_pin_memory": False,
    }  # fmt: skip
    Trainer(model, TrainingArguments(**arguments, max_steps=2), train_dataset=Sentences()).train()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    assert len(hp.find_heads(loaded)) == 3
    trainer = Trainer(loaded, TrainingArguments(**arguments, max_steps=4), train_dataset=Sentences())
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.state.global_step == 4
