"""Classes of pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from transformers import ViTConfig

from headprune.errors import DataError
from headprune.tasks import Source, evaluate, find_task
from headprune.tasks.finetune import Recipe, finetune
from tests.tasks.toy import TINY


def write_digits(folder, train=400, dev=100):
    """Real handwritten digits, as files in folders of classes."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    kept = [i for i, label in enumerate(digits.target) if label < 3]
    for split, rows in (("train", kept[:train]), ("dev", kept[train : train + dev])):
        for row in rows:
            place = folder / split / ("zero", "one", "two")[digits.target[row]]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.images[row] * 15.9).astype(np.uint8)).save(place / f"{row}.png")
    return folder


def test_images_are_learned(tmp_path):
    """A small vision transformer tells digits apart; classes are the folders' names."""
    source = Source(write_digits(tmp_path / "digits"))
    task = find_task("images").learned_from(source)
    assert task.labels.names == ("one", "two", "zero")
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(
        ViTConfig(image_size=8, patch_size=2, **TINY, **task.model_options())
    )
    train, dev = (task.load(source, split, processor, 0) for split in ("train", "dev"))
    recipe = Recipe(epochs=6, learning_rate=3e-3, batch_size=20, seed=0)
    finetune(model, processor, task, train, tmp_path / "out", recipe, quiet=True)
    found = evaluate(model, list(dev.batches(32)), find_task("images").for_model(model.config))
    assert found.score > 0.8
    (tmp_path / "digits" / "dev" / "one" / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot be read as an image"):
        list(task.load(source, "dev", processor, 0).batches(32))
    with pytest.raises(DataError, match="has no folder test"):
        task.load(source, "test", processor, 0)
