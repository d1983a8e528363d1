"""What a model gives to each of its layers besides the states, found without running them; and one layer as a model.

Many models run a list of layers one after another, each on what the last one gave. Such a model can be worked through
layer by layer: the states of the data are kept, and one layer is run at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headprune.hooks.masks import StopForward
from headprune.types import Args, Function, Kwargs

STATES = "hidden_states"


class NotAStackError(Exception):
    """Why a model cannot be run layer by layer."""


@dataclass(frozen=True)
class LayerCall:
    """What a layer is called with besides the states."""

    args: Args
    kwargs: Mapping[str, Any]
    by_name: bool  # whether the states are given by their name
    rows: int

    def given(self, states: Tensor) -> tuple[list[Any], Kwargs]:
        """Everything for these states; for fewer examples, for the first of them."""
        args, kwargs = [*self.args], dict(self.kwargs)
        if len(states) < self.rows:
            args = [self._first(value, len(states)) for value in args]
            kwargs = {name: self._first(value, len(states)) for name, value in kwargs.items()}
        if self.by_name:
            return args, {STATES: states, **kwargs}
        return [states, *args], kwargs

    def _first(self, value: object, rows: int) -> Any:
        if isinstance(value, Tensor) and value.dim() and len(value) == self.rows:
            return value[:rows]
        if type(value) is tuple:
            return tuple(self._first(item, rows) for item in value)
        return value


@dataclass(frozen=True)
class LayerCalls:
    """For one batch: the states before the first layer, and what each layer is called with."""

    states: Tensor
    calls: tuple[LayerCall, ...]
    as_tuple: bool = False  # what the model takes from a layer: the first of what it returns


@contextmanager
def left_out(layers: Sequence[nn.Module], *, as_tuple: bool) -> Iterator[None]:
    """Inside the block these layers hand on the states that they get."""

    def hand_on(*args: object, **kwargs: object) -> Any:
        states = args[0] if args else kwargs[STATES]
        return (states,) if as_tuple else states

    with _patched(dict.fromkeys(layers, hand_on)):
        yield


@contextmanager
def answering_zeros(module: nn.Linear) -> Iterator[None]:
    """Inside the block a linear map does not compute: of a vocabulary nobody reads."""

    def zeros(inputs: Tensor) -> Tensor:
        return inputs.new_zeros(*inputs.shape[:-1], module.weight.shape[0])

    with _patched({module: zeros}):
        yield


def layer_calls(layers: Sequence[nn.Module], answer: Callable[[], object]) -> LayerCalls:
    """Run a model with its layers left out. Refused where something happens to the states between them, where a layer
    is not called once and in order, or gets what another one made."""
    try:
        return _calls(layers, answer, as_tuple=False)
    except NotAStackError:
        return _calls(layers, answer, as_tuple=True)  # the model takes the first of what a layer returns


def _calls(layers: Sequence[nn.Module], answer: Callable[[], object], *, as_tuple: bool) -> LayerCalls:
    found: list[LayerCall] = []
    first: list[Tensor] = []

    def passing(place: int) -> Function:
        def forward(*args: object, **kwargs: object) -> Any:
            states = args[0] if args else kwargs.get(STATES)
            if not isinstance(states, Tensor) or states.dim() != 3 or place != len(found):
                raise NotAStackError("its layers are not called one after another on the states alone")
            if first and states is not first[0]:
                raise NotAStackError("something happens to the states between its layers")
            first[:] = [states]
            rest = {name: value for name, value in kwargs.items() if name != STATES}
            if any(value is states for value in (*args[1:], *rest.values())):
                raise NotAStackError("its layers get the states twice")
            found.append(LayerCall(args[1:], rest, not args, len(states)))
            if place == len(layers) - 1:
                raise StopForward
            return (states,) if as_tuple else states

        return forward

    with _patched({layer: passing(place) for place, layer in enumerate(layers)}), suppress(StopForward):
        try:
            answer()
        except (NotAStackError, StopForward):
            raise
        except Exception as error:  # whatever code stumbles over that expects more of a layer
            raise NotAStackError(f"it does not run without its layers ({type(error).__name__}: {error})") from error
    if len(found) < len(layers):
        raise NotAStackError("not all of its layers are called")
    return LayerCalls(first[0], tuple(found), as_tuple)


def states_after_first(layers: Sequence[nn.Module], answer: Callable[[], object]) -> Tensor | None:
    """What a whole pass hands to the second layer: to be compared with what is made layer by layer."""
    seen: list[Tensor] = []

    def stop(*args: object, **kwargs: object) -> None:
        states = args[0] if args else kwargs.get(STATES)
        seen.extend([states] if isinstance(states, Tensor) else [])
        raise StopForward

    with _patched({layers[1]: stop}), suppress(StopForward):
        answer()
    return seen[0] if seen else None


@contextmanager
def _patched(forwards: Mapping[nn.Module, Function]) -> Iterator[None]:
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            vars(module).pop("forward", None)
            if own is not None:
                vars(module)["forward"] = own


class LayerModel(nn.Module):
    """One layer of a model as a model of its own. Its modules have the paths that they have in the whole, so that sites
    and masks of the whole mean the same here."""

    def __init__(self, layer: nn.Module, path: str, config: object) -> None:
        super().__init__()
        self.config = config
        self.layer_path = path
        *around, name = path.split(".")
        place: nn.Module = self
        for part in around:
            inner = nn.Module()
            place.add_module(part, inner)
            place = inner
        place.add_module(name, layer)
        self.train(layer.training)

    def forward(self, *, layer_states: Tensor, layer_call: LayerCall, **batch: object) -> Tensor:
        """The states behind the layer. What else is in the batch says which positions are real."""
        args, kwargs = layer_call.given(layer_states)
        found = self.get_submodule(self.layer_path)(*args, **kwargs)
        states = found if isinstance(found, Tensor) else found[0]
        assert isinstance(states, Tensor), "a layer gives states"
        return states
