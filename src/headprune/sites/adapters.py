"""Knowledge about the few families whose structure does not tell everything. Data, not code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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

    bare: Mapping[str, int] = field(default_factory=dict)
    """Parameters outside any projection with one entry per head, and in which dimension; some are not used by every
    input, so that an example need not show them."""

    other: str = ""
    """What its softmax is for, where it is not attention over positions."""

    unseen: str = ""
    """Why its heads cannot be followed to an output projection, although it is attention with heads."""

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


adapters.add("WavLMAttention")(
    Adapter(bias_of_all_heads=True, keep_whole=("rel_attn_embed",), keep_counts=("num_heads",))
)
adapters.add("XLNetRelativeAttention")(
    Adapter(bare={"r_r_bias": 0, "r_s_bias": 0, "r_w_bias": 0, "q": 1, "k": 1, "v": 1, "r": 1, "seg_embed": 1})
)

adapters.add("CodeGenAttention")(
    Adapter(coupled="its code cuts the fused projection into four blocks of equally many heads (mp_num = 4)")
)
adapters.add("DogeAttention")(Adapter(coupled="its dt_proj makes each head's mask from the values of all heads"))


adapters.add("ProphetNetNgramSelfAttention")(
    Adapter(
        coupled="its predicting stream folds heads and positions in one order and unfolds them in another, so that "
        "heads use each other's relative positions"
    )
)
for _name in ("LongT5LocalAttention", "LongT5TransientGlobalAttention"):
    adapters.add(_name)(
        Adapter(coupled="its first layer makes the position bias of all layers, and adds it where it cannot be cut")
    )
for _name in ("LevitAttention", "LevitAttentionSubsample"):
    adapters.add(_name)(Adapter(coupled="in evaluation mode it keeps the position biases of all its heads, gathered"))
for _name in ("GroundingDinoBiMultiHeadAttention", "MMGroundingDinoBiMultiHeadAttention"):
    adapters.add(_name)(
        Adapter(coupled="its two directions, picture to text and text to picture, are made from the same scores")
    )
adapters.add("DeepseekV4HyperConnection")(Adapter(other="its softmax mixes residual streams, not positions"))
adapters.add("PatchTSMixerGatedAttention")(Adapter(other="a gate: its softmax weighs channels, not positions"))
adapters.add("LiltSelfAttention")(
    Adapter(coupled="its text heads and its layout heads share their scores, so that neither can go without the other")
)
adapters.add("DisentangledSelfAttention")(  # of SEW-D; DeBERTa's was renamed and is seen
    Adapter(unseen="its softmax is inside an autograd function of its own (XSoftmax), where heads cannot be followed")
)
adapters.add("BitNetAttention")(
    Adapter(unseen="its attn_sub_norm normalises all heads together before the output projection")
)
adapters.add("ConvBertSelfAttention")(
    Adapter(unseen="the output of a convolution joins the heads before the output projection")
)
adapters.add("DeepseekV4Attention")(
    Adapter(unseen="its output projection is in two steps, and the first (o_a_proj) works on groups of several heads")
)
adapters.add("JetMoeAttention")(
    Adapter(unseen="its queries and its output projection are experts: which of them hold a head, the router says")
)
adapters.add("SqueezeBertSelfAttention")(
    Adapter(unseen="its projections are convolutions, with channels before positions, not linear layers")
)
adapters.add("ZayaAttention")(
    Adapter(coupled="its queries and keys pass two convolutions in one tensor, with a group for each head of both")
)
adapters.add("NeoMMEAttention")(
    Adapter(coupled="some of its layers get value embeddings of all their key heads, from outside the block")
)
adapters.add("MraSelfAttention")(
    Adapter(unseen="attention is approximated block by block, at two resolutions, without one softmax over the keys")
)
adapters.add("YosoSelfAttention")(
    Adapter(unseen="attention is estimated by locality-sensitive hashing, without a softmax")
)
for _name in ("LSHSelfAttention", "LocalSelfAttention"):
    adapters.add(_name)(
        Adapter(unseen="attention is computed in chunks by logsumexp, in a reversible layer of its own")
    )

# Layers that mix positions without softmax attention: named by `find_heads`, never mistaken for attention.
NO_SOFTMAX = re.compile(
    r"Mamba|SSM|StateSpace|Recurrent|Rwkv|LinearAttention|LightningAttention|Delta(Net|Attention|Rule)|ShortConv|"
    r"Fourier|Retention|LSTM|AdditiveAttention|AutoformerAttention|PoolFormerPooling|FocalModulation|mLSTM|Mixer$"
)
# Modules around such a layer, whose names hold the family's.
AROUND = re.compile(
    r"(Layer|Block|Model|Encoder|Decoder|Norm|MLP|Mlp|Embeddings?|Head|LM|Classification|Cache|Pool\w*)$"
)


def adapter_for(module: nn.Module) -> Adapter:
    return adapters.find(type(module).__name__) or Adapter()
