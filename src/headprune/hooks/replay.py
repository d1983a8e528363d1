"""Running a forward pass again from the middle.

One pass is recorded. In a replay, every module call that had ended before the cut (the moment a given projection was
first called) answers at once with what it said then; everything later is computed. The model's own code runs between
the calls, so this works for any architecture whose forward is deterministic.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from headprune.hooks.scope import called_projections, own_scope, settled
from headprune.hooks.tracing import wrapped_attention
from headprune.types import Args, Function


@dataclass
class RecordedCall:
    """One call of a module (or of a module's attention function) and its place in the tree of calls."""

    module: nn.Module
    parent: RecordedCall | None
    begin: int
    end: int = -1
    output: object = None
    is_attention: bool = False
    work: int = 0  # MACs of a linear map


@dataclass
class Recording:
    """All calls of one forward pass."""

    calls: list[RecordedCall] = field(default_factory=list)
    clock: int = 0
    _open: list[RecordedCall] = field(default_factory=list)

    def enter(self, module: nn.Module, *, is_attention: bool = False) -> RecordedCall:
        self.clock += 1
        call = RecordedCall(module, self._open[-1] if self._open else None, self.clock, is_attention=is_attention)
        self.calls.append(call)
        self._open.append(call)
        return call

    def leave(self, output: object) -> None:
        self.clock += 1
        call = self._open.pop()
        call.end, call.output = self.clock, _own(output)
        weight = getattr(call.module, "weight", None)
        if not call.is_attention and isinstance(output, Tensor) and isinstance(weight, Tensor) and weight.dim() == 2:
            call.work = output.numel() * (weight.numel() // max(1, output.shape[-1]))

    def has_called(self, projection: nn.Module) -> bool:
        """Whether the pass came by: one of text alone does not run the part for pictures."""
        return any(call.module is projection and not call.is_attention for call in self.calls)

    def cut_before(self, projection: nn.Module) -> int:
        """When a projection was first called."""
        return min(call.begin for call in self.calls if call.module is projection and not call.is_attention)

    def keep_only(self, projections: Iterable[nn.Module]) -> None:
        """Let go of what no replay from these projections will ask for: memory for layers, not for their insides."""
        cuts = [self.cut_before(projection) for projection in projections]
        for call in self.calls:
            if not any(self._asked(call, cut) for cut in cuts):
                call.output = None

    def size(self) -> int:
        """Bytes of what is kept, each tensor counted once."""
        kept: dict[int, Tensor] = {}
        for call in self.calls:
            for tensor in _tensors(call.output):
                kept[tensor.data_ptr()] = tensor
        return sum(tensor.numel() * tensor.element_size() for tensor in kept.values())

    @staticmethod
    def _asked(call: RecordedCall, cut: int) -> bool:
        """Whether a replay from the cut gets its answer from this call: it was over, and its caller was not."""
        return _is_over(call, cut) and (call.parent is None or not _is_over(call.parent, cut))

    def answers(self, cut: int) -> dict[tuple[nn.Module, bool], list[object]]:
        """What each module said before the cut, as far as the replay will ask it."""
        known: dict[tuple[nn.Module, bool], list[object]] = {}
        for call in self.calls:
            if self._asked(call, cut):
                known.setdefault((call.module, call.is_attention), []).append(call.output)
        return known

    def reused(self, cut: int) -> float:
        """The share of the work in linear maps that a replay saves."""
        total = sum(call.work for call in self.calls)
        return sum(call.work for call in self.calls if _is_over(call, cut)) / total if total else 0.0


def _own(value: object) -> object:
    """An answer that its receiver may write into (Qwen-VL puts its own pictures there) without changing the record."""
    return copy.copy(value) if isinstance(value, dict | list) else value


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))


def _is_over(call: RecordedCall, cut: int) -> bool:
    return 0 <= call.end < cut


@contextmanager
def recorded(model: nn.Module) -> Iterator[Recording]:
    """Record the forward pass inside the block."""
    recording = Recording()

    def enter(module: nn.Module, args: Args) -> None:
        recording.enter(module)

    def leave(module: nn.Module, args: Args, output: object) -> None:
        recording.leave(output)

    with called_projections(model), wrapped_attention(_recorder(recording)), own_scope() as scope:
        for module in model.modules():
            scope.before(module, enter, prepend=True)
            scope.after(module, leave)
        yield recording


def _recorder(recording: Recording) -> Function:
    def attention(function: Function, module: nn.Module, *args: object, **kwargs: object) -> object:
        recording.enter(module, is_attention=True)
        output = function(module, *args, **kwargs)
        recording.leave(output)
        return output

    return attention


@contextmanager
def replayed(model: nn.Module, recording: Recording, projection: nn.Module) -> Iterator[None]:
    """Inside the block, forward passes of the recorded input start, in effect, at `projection`."""
    known = recording.answers(recording.cut_before(projection))
    given: dict[tuple[nn.Module, bool], int] = {}
    patched: list[tuple[nn.Module, Function | None]] = []

    def next_answer(key: tuple[nn.Module, bool]) -> object:
        place = given.get(key, 0)
        given[key] = place + 1
        return _own(known[key][place]) if place < len(known.get(key, ())) else _NOTHING

    def restart(module: nn.Module, args: Args) -> None:
        given.clear()

    def answering(module: nn.Module, forward: Function) -> Function:
        def answer(*args: object, **kwargs: object) -> object:
            found = next_answer((module, False)) if scope.is_here else _NOTHING
            return forward(*args, **kwargs) if found is _NOTHING else found

        return answer

    def attention(function: Function, module: nn.Module, *args: object, **kwargs: object) -> object:
        found = next_answer((module, True))
        return function(module, *args, **kwargs) if found is _NOTHING else found

    with settled(), called_projections(model), wrapped_attention(attention), own_scope() as scope:
        scope.before(model, restart)
        try:
            for module, is_attention in known:
                if not is_attention:
                    patched.append((module, vars(module).get("forward")))
                    module.forward = answering(module, module.forward)
            yield
        finally:
            for module, before in reversed(patched):
                if before is None:
                    del module.forward
                else:
                    module.forward = before


_NOTHING = object()
