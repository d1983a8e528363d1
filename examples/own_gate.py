"""A gate of your own: defined, put on the heads, trained with GateTrainer, and taken off again.

Run: python examples/own_gate.py
The gate has no noise: it is open where a number is above 0, with the gradient of its sigmoid.
The task: does the first token of a sequence come again?
"""

from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed

import headprune as hp
from headprune.gates import Gate, gates


@gates.add("threshold")
class Threshold(Gate):
    """`self.log_alpha` (heads,) is the base class's parameter. The name is what checkpoints call the gate."""

    kind = "threshold"

    def sample(self, noise: Tensor) -> Tensor:  # while training; this gate makes no use of the noise
        return self.final() + (self.prob_open() - self.prob_open().detach())

    def final(self, rule: str = "paper") -> Tensor:  # afterwards
        return (self.log_alpha > 0).float()

    def prob_open(self) -> Tensor:  # the heads to keep first, where a number of heads is asked for
        return torch.sigmoid(self.log_alpha / self.temperature)

    def decided(self, level: float = 0.9) -> Tensor:  # without noise there is nothing between open and closed
        return torch.ones_like(self.log_alpha, dtype=torch.bool)

    def penalty(self) -> Tensor:  # what Objective(weight=…) weighs
        return self.prob_open().sum()


set_seed(0)
ids = torch.randint(12, (6000, 8))
labels = (ids[:, 1:] == ids[:, :1]).any(1).long()
rows = [{"input_ids": one, "labels": label} for one, label in zip(ids[:5000], labels[:5000], strict=True)]
model = BertForSequenceClassification(BertConfig(
    vocab_size=12, hidden_size=64, num_hidden_layers=2, num_attention_heads=8, intermediate_size=128,
    max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))  # fmt: skip
attached = hp.attach_gates(model, Threshold, temperature=1.0, init=2.0)
with TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=900, per_device_train_batch_size=64, learning_rate=2e-3, lr_scheduler_type="constant",
        use_cpu=True, save_strategy="no", logging_strategy="no", report_to=[])  # fmt: skip
    objective = hp.Objective(weight=0.005, warmup=600)
    hp.GateTrainer(model, arguments, train_dataset=rows, objective=objective, gate_lr=0.005).train()
with torch.no_grad():
    before = model.eval()(ids[5000:]).logits
    attached.remove_()  # closed heads are really gone; the model is an ordinary one again
    after = model(ids[5000:]).logits
right = (after.argmax(1) == labels[5000:]).float().mean()
print(f"{len(hp.find_heads(model))} of {len(attached)} heads left, accuracy {right:.3f}")
print(f"answers with gates and without differ by {(after - before).abs().max():.0e}")
