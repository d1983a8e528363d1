"""What `shrink_` did: the model before and after, and the price on data that nothing was fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headprune.cost.measurement import Measurement
from headprune.heads import HeadMap
from headprune.heads.show import frame, table
from headprune.scoring.closeness import Closeness
from headprune.typed_json import to_plain


@dataclass(frozen=True)
class Size:
    """How large a model is, and what a forward pass takes."""

    heads: int
    neurons: int
    parameters: int
    macs: int
    memory: int | None  # bytes that a forward pass allocates at most, weights not included

    @classmethod
    def of(cls, heads: HeadMap, measured: Measurement) -> Size:
        return cls(
            len(heads.attention), len(heads.neurons), measured.parameters.total, measured.macs.total,
            measured.peak_memory,
        )  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """How many times as fast the smaller model is, measured in interleaved rounds with the whole one, with quartiles;
    and the same model against itself."""

    speedup: float
    spread: tuple[float, float]
    control: float
    control_spread: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Retrained:
    """Training after the cut, with the whole model as teacher. Where it did not help, the untrained model was kept."""

    epochs: float
    examples: int
    untrained: Closeness  # the price before it
    helped: bool

    def __str__(self) -> str:
        told = f"trained {self.epochs:g} epochs on {self.examples} examples with the whole model as teacher"
        if not self.helped:
            return f"{told}: no state was nearer to it, so the untrained model is kept"
        if self.untrained.agreement is None or self.untrained.kl is None:
            return f"{told}; before: squared error of its states {self.untrained.distance or 0:.1%}"
        return f"{told}; before: {self.untrained.agreement:.1%} of its answers as before, KL {self.untrained.kl:.4f}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Shrunk:
    """Before and after. `str` is for people, `to_dict` for programs."""

    before: Size
    after: Size
    price: tuple[Closeness, Closeness]  # of the whole model and of the smaller one, on held-out calibration data
    kept: dict[str, list[int]]  # heads and neurons of each site
    budget: str  # what was asked for
    by: str  # how it was chosen and repaired
    batch: int
    length: int
    speed: Speed | None = None
    difference: float | None = None  # of the pruned from the masked model; None before it is removed
    notes: tuple[str, ...] = ()
    training: Retrained | None = None

    @property
    def macs_left(self) -> float:
        return self.after.macs / max(1, self.before.macs)

    def __repr__(self) -> str:
        before, after = self.before, self.after
        return f"Shrunk({self.budget}: {before.heads} -> {after.heads} heads, {1 - self.macs_left:.0%} fewer MACs)"

    def _sizes(self) -> list[dict[str, object]]:
        names = ("heads", "neurons", "parameters", "macs")
        pairs = [(name, getattr(self.before, name), getattr(self.after, name)) for name in names]
        return [{"what": name, "before": old, "after": new} for name, old, new in pairs]

    def _repr_html_(self) -> str:
        rows = [(row["what"], f"{row['before']:,}", f"{row['after']:,}") for row in self._sizes()]
        return table(rows, ("", "before", "after"), f"{self.budget}; {self.price_text()}")

    def to_frame(self) -> Any:
        """A frame of pandas: sizes before and after."""
        return frame(self._sizes())

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain

    def __str__(self) -> str:
        before, after = self.before, self.after
        rows = {
            "heads": (before.heads, after.heads),
            "neurons": (before.neurons, after.neurons),
            "parameters": (before.parameters, after.parameters),
            "MACs": (before.macs, after.macs),
            "bytes of a pass": (before.memory or 0, after.memory or 0),
        }
        lines = [
            f"{name:<17}{_short(old):>10} -> {_short(new):>9}  {1 - new / old:.0%} fewer"
            for name, (old, new) in rows.items()
            if old
        ]
        if self.speed is not None:
            low, high = self.speed.spread
            lines.append(
                f"{'speed':<17}{self.speed.speedup:.2f} times as fast ({low:.2f} to {high:.2f}; the same model against "
                f"itself {self.speed.control:.2f}), batch {self.batch}, length {self.length}"
            )
        trained = [str(self.training)] if self.training is not None else []
        return "\n".join([*lines, self.price_text(), *trained, *self.notes])

    def price_text(self) -> str:
        """What it costs, in one line."""
        whole, small = self.price
        told = []
        if small.agreement is not None:
            told.append(f"{small.agreement:.1%} of its answers as before")
        if small.kl is not None:
            told.append(f"KL {small.kl:.4f}")
        if small.distance is not None:
            told.append(f"squared error of its states {small.distance:.1%}")
        if whole.loss is not None and small.loss is not None:
            told.append(f"loss {whole.loss:.4f} -> {small.loss:.4f}")
        return f"price: {', '.join(told)}, on {small.examples} examples that nothing was fitted to"


def _short(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f}"
