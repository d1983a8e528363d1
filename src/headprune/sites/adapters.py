"""Knowledge about the few families whose structure does not tell everything. Data, not code."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from headprune.registry import Registry


@dataclass(frozen=True)
class Adapter:
    """What is special about an attention class."""

    bias_of_all_heads: bool = False
    """The block makes or receives a `position_bias` for all heads of the original model and passes it on to later
    layers: it must stay whole, and is cut to the heads left where attention is computed."""

    keep_whole: tuple[str, ...] = ()
    """Children that other layers use too and that are never sliced."""

    keep_counts: tuple[str, ...] = ()
    """Attributes that go on counting the original heads."""

    coupled: str = ""
    """Why heads cannot be removed exactly, where the code says so and the structure does not show it."""


adapters: Registry[Adapter] = Registry("adapter")

_T5 = Adapter(bias_of_all_heads=True, keep_whole=("relative_attention_bias",), keep_counts=("n_heads",))
for _name in (
    "T5Attention",
    "MT5Attention",
    "LongT5Attention",
    "SwitchTransformersAttention",
    "Pop2PianoAttention",
    "UdopAttention",
    "Pix2StructTextAttention",
):
    adapters.add(_name)(_T5)


adapters.add("CodeGenAttention")(
    Adapter(coupled="its code cuts the fused projection into four blocks of equally many heads (mp_num = 4)")
)
adapters.add("DogeAttention")(
    Adapter(coupled="its dt_proj makes each head's mask from the values of all heads")
)


def adapter_for(module: nn.Module) -> Adapter:
    return adapters.find(type(module).__name__) or Adapter()
