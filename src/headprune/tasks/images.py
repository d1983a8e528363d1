"""Image classification: a folder of images for each class, or a data set with images."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from headprune.errors import DataError, MissingExtraError
from headprune.tasks.classification import predictions_and_labels
from headprune.tasks.metrics import Metric, metrics
from headprune.tasks.tables import SPLITS, Source
from headprune.tasks.task import Batch, Examples, Features, LabelledTask, check_classes
from headprune.types import Outputs, Processor

KINDS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # Pillow knows many more, and would try them all


@dataclass(frozen=True, kw_only=True)
class ImageTask(LabelledTask):
    """`train/CLASS/*.png` and `dev/CLASS/*.png`, or the columns `image` and `label` of a data set."""

    name: str = "images"
    metric: Metric = field(default_factory=lambda: metrics["accuracy"])
    image: tuple[str, ...] = ("image", "img")
    label: tuple[str, ...] = ("label", "labels", "fine_label")
    model_class: ClassVar[str] = "AutoModelForImageClassification"
    processor_class: ClassVar[str] = "AutoImageProcessor"

    def rows(self, source: Source, split: str) -> tuple[list[Any], list[Any], str]:
        """Images (or their files), labels as they stand, and where they were found."""
        names = SPLITS.get(split, (split,))
        if source.dataset is not None:
            table = source.table(names)
            return table.column(*self.image), table.column(*self.label), str(table.path)
        assert source.folder is not None, "a source is a data set or a folder"
        folder = next((source.folder / name for name in names if (source.folder / name).is_dir()), None)
        if folder is None:
            raise DataError(f"'{source.folder}' has no folder {' or '.join(names)}. Expected {names[0]}/CLASS/*.png.")
        files = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in KINDS)
        if not files:
            raise DataError(f"'{folder}' has no images in folders of classes. Expected CLASS/*{', *'.join(KINDS)}.")
        return list(files), [path.parent.name for path in files], str(folder)

    def load(self, source: Source, split: str, processor: Processor, max_length: int) -> Examples:
        images, labels, where = self.rows(source, split)
        rows = [
            {"_image": image, "labels": int(self.labels.number(label, f"{where}, example {row}"))}
            for row, (image, label) in enumerate(zip(images, labels, strict=True), 1)
        ]
        return Examples(rows, _Collator(processor))

    def outcome(self, outputs: Outputs, batch: Batch) -> Tensor:
        return predictions_and_labels(outputs, batch)

    def learned_from(self, source: Source, split: str = "train") -> ImageTask:
        _, labels, where = self.rows(source, split)
        return replace(self, labels=self.labels.learned(labels, where))

    def check_training(self, examples: Examples) -> None:
        super().check_training(examples)
        check_classes(self.labels, examples)


@dataclass(frozen=True)
class _Collator:
    """Images are opened when their batch is made."""

    processor: Processor

    def __call__(self, rows: list[Features]) -> dict[str, Any]:
        pixels = self.processor([_opened(row["_image"]) for row in rows], return_tensors="pt")
        return {**pixels, "labels": torch.tensor([row["labels"] for row in rows])}


def _opened(image: Any) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Images need Pillow: pip install 'headprune[tasks]'.") from error
    if not isinstance(image, Path):
        return image.convert("RGB")
    try:
        with Image.open(image, formats=FORMATS) as opened:
            return opened.convert("RGB")
    except Exception as error:  # a damaged file: every kind of image has errors of its own
        raise DataError(f"'{image}' cannot be read as an image: {error}.") from error
