"""What a worker can be asked to do. The same code for every tool; only the tool's own calls differ."""

from __future__ import annotations

import copy
import importlib.metadata
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reference import masked, removed
from torch import Tensor, nn

from families import FAMILIES, answer

SHARE = 0.5
BERT = FAMILIES["bert"].outputs
EQUAL = 1e-4  # of the largest output, or of 1 if that is larger


class Jobs:
    """The jobs of one tool, and the model that they have in common."""

    def __init__(self, tool: Any) -> None:
        self.tool = tool
        self.whole: Any = None
        self.batches: list[dict[str, Tensor]] = []
        self.scored: tuple[Any, Any] | None = None
        self.pruned: Any = None

    def about(self) -> dict[str, Any]:
        """Versions."""
        import transformers

        return {
            "version": importlib.metadata.version(self.tool.PACKAGE),
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "ways": list(self.tool.WAYS),
            "note": getattr(self.tool, "NOTE", ""),
        }

    def load(self, checkpoint: str, data: str) -> dict[str, Any]:
        """The model and the batches that timings are taken on."""
        self.whole, self.batches = _classifier(checkpoint), _batches(data, "train")
        return {"parameters": _count(self.whole)}

    def warm(self) -> dict[str, Any]:
        """Everything once, on one batch, so that the first round pays for no imports or first allocations."""
        batches, self.batches = self.batches, self.batches[:1]
        try:
            self.score()
            self.prune()
            self.speed()
        finally:
            self.batches, self.scored = batches, None
        return {}

    def score(self) -> dict[str, Any]:
        """Score all heads of a fresh copy; a tool that cannot score alone also prunes here."""
        model = copy.deepcopy(self.whole)
        if hasattr(self.tool, "score_and_prune"):
            seconds, self.pruned = _timed(lambda: self.tool.score_and_prune(model, self.batches, SHARE))
            return {"seconds": seconds, "also": "prune"}
        seconds, scores = _timed(lambda: self.tool.score(model, self.batches))
        self.scored = model, scores
        return {"seconds": seconds}

    def prune(self) -> dict[str, Any]:
        """Remove half of the heads of the copy that was scored last."""
        if hasattr(self.tool, "score_and_prune"):
            return {"seconds": 0.0, "with": "score"}
        model, scores = self._taken()
        seconds, self.pruned = _timed(lambda: self.tool.prune(model, scores, SHARE))
        return {"seconds": seconds}

    def prune_unchecked(self) -> dict[str, Any]:
        """The same without the tool's own check of the result, where it makes one."""
        if not hasattr(self.tool, "prune_unchecked"):
            return {"missing": True}
        model = copy.deepcopy(self.whole)
        scores = self.tool.score_by_weights(model)  # which heads go does not matter for the time
        return {"seconds": _timed(lambda: self.tool.prune_unchecked(model, scores, SHARE))[0]}

    def score_by_weights(self) -> dict[str, Any]:
        """Scores that need no data."""
        if not hasattr(self.tool, "score_by_weights"):
            return {"missing": True}
        model = copy.deepcopy(self.whole)
        return {"seconds": _timed(lambda: self.tool.score_by_weights(model))[0]}

    def speed(self) -> dict[str, Any]:
        """One forward pass of the whole model and of the pruned one, in both orders."""
        times: dict[str, float] = {"whole": 0.0, "pruned": 0.0}
        for name in ("whole", "pruned", "pruned", "whole"):
            times[name] += _timed(lambda name=name: answer(getattr(self, name), self.batches[0]))[0]  # type: ignore[misc]
        return times

    def facts(self) -> dict[str, Any]:
        """What is gone, whether the rest answers as the masked model, and whether a fresh process can load it."""
        before, after = _count(self.whole), _count(self.pruned)
        heads = self.whole.config.num_attention_heads
        found = _compared(self.whole, self.pruned, self.batches[0], BERT, heads)
        return {"before": before, "after": after, **found, "reload": self._reloaded()}

    def case(self, name: str) -> dict[str, Any]:
        """Half of the heads of a small model of another kind."""
        family = FAMILIES[name]
        whole, batches = family.build(), family.batches()
        pruned = self.tool.prune_family(copy.deepcopy(whole), batches, SHARE)
        return _compared(whole, pruned, batches[0], family.outputs, family.heads, family.asked)

    def empty(self) -> dict[str, Any]:
        """All heads of the first layer."""
        family = FAMILIES["bert"]
        whole, batches = family.build(), family.batches()
        pruned = self.tool.empty_layer(copy.deepcopy(whole), batches, 0)
        found = _compared(whole, pruned, batches[0], family.outputs, family.heads)
        emptied = any(len(gone) == family.heads for gone in found["heads"].values())
        return {**found, "verdict": found["verdict"] if emptied else "kept"}

    def quality(self, checkpoint: str, data: str, way: str) -> dict[str, Any]:
        """Which dev sentences a model with half of its heads gets right; '' is the whole model."""
        model = _classifier(checkpoint)
        seconds = 0.0
        before = copy.deepcopy(model)
        if way:
            train = _batches(data, "train")
            seconds, model = _timed(lambda: self.tool.WAYS[way](model, train, SHARE))
        right: list[int] = []
        for batch in _batches(data, "dev"):
            right += (answer(model.eval(), batch).argmax(-1) == batch["labels"]).int().tolist()
        left = _heads_left(model) if way else _heads_left(before)
        return {"right": "".join(map(str, right)), "heads": left, "seconds": seconds}

    def _taken(self) -> tuple[Any, Any]:
        if self.scored is None:
            raise RuntimeError("Nothing was scored since the last pruning; ask for `score` first.")
        taken, self.scored = self.scored, None
        return taken

    def _reloaded(self) -> dict[str, Any]:
        """Saved as the tool's documentation says, loaded by it in a fresh process."""
        expected = answer(self.pruned, self.batches[0])
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            try:
                self.tool.save(self.pruned, folder)
            except Exception as error:
                return {"equal": False, "error": told(error)}
            torch.save(self.batches[0], f"{place}/batch.pt")
            command = [sys.executable, sys.argv[0], sys.argv[1], "--reload", place]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                return {"equal": False, "error": _last_error(done.stderr)}
            difference = float((torch.load(f"{place}/answer.pt") - expected).abs().max())
        return {"equal": difference <= EQUAL * max(1.0, float(expected.abs().max())), "difference": difference}


def reload(tool: Any, place: Path) -> None:
    """In a fresh process: load, answer, write the answer."""
    model = tool.load(place / "model").eval()
    torch.save(answer(model, torch.load(place / "batch.pt")), place / "answer.pt")


def told(error: BaseException) -> str:
    """An error in one line or a few."""
    return _shortened(f"{type(error).__name__}: {error}")


def _last_error(text: str) -> str:
    """The error at the end of a traceback, without the traceback."""
    lines = text.strip().splitlines()
    starts = [i for i, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return _shortened("\n".join(lines[starts[-1] :] if starts else lines[-3:]))


def _shortened(text: str) -> str:
    """Without the folders of this machine, and no longer than a paragraph."""
    text = re.sub(r"(?<![\w:/])/(?:[\w.+-]+/)+", "", text.strip())
    return text if len(text) <= 600 else f"{text[:600]} […]"


def _compared(
    whole: Any, pruned: Any, batch: dict[str, Tensor], outputs: tuple[str, ...], heads: int, asked: str = ""
) -> dict[str, Any]:
    gone = removed(whole, pruned, outputs, heads)
    lost = gone.heads()
    found: dict[str, Any] = {"heads": lost, "removed": gone.count, "whole_heads": gone.is_whole}
    if not any(columns for name, columns in gone.columns.items() if asked in name):
        return {**found, "verdict": "kept"}
    after = answer(pruned.eval(), batch)
    with masked(whole, gone):
        expected = answer(whole, batch)
    scale = max(1.0, float(expected.abs().max()))
    found["difference"] = float((after - expected).abs().max())
    found["effect"] = float((answer(whole, batch) - expected).abs().max())  # of masking: what a wrong cut would miss
    found["scale"] = scale
    near = found["difference"] <= min(EQUAL * scale, 0.01 * found["effect"])  # much nearer than the whole model
    right = near and gone.is_whole and not gone.changed
    return {**found, "verdict": "works" if right else "wrong"}


def _classifier(checkpoint: str) -> Any:
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()


def _batches(data: str, part: str, size: int = 32) -> list[dict[str, Tensor]]:
    stored = np.load(data)
    ids, mask, labels = (torch.from_numpy(stored[f"{part}_{name}"]).long() for name in ("ids", "mask", "labels"))
    return [
        {"input_ids": ids[i : i + size], "attention_mask": mask[i : i + size], "labels": labels[i : i + size]}
        for i in range(0, len(ids), size)
    ]


def _heads_left(model: Any) -> int:
    """By the width of the output projections, at the width of a head in the config."""
    width = model.config.hidden_size // model.config.num_attention_heads
    named = [part for name, part in model.named_modules() if name.endswith(BERT)]
    return sum(part.weight.shape[1] // width for part in named if isinstance(part.weight, nn.Parameter))


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _timed(task: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = task()
    return time.perf_counter() - began, result
