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

    paired: str = ""
    """Why its heads are left alone: they are two at a time, and what is seen of one would leave out the other."""

    reshapes_to_width: bool = False
    """Its code reshapes to the width of what comes in, not to that of its own heads: pruned, it is helped to the right
    shape (hooks/reshape.py)."""

    unfused: str = ""
    """How its output projection can be called as a module, where its own code only uses the weights: one of the forms
    in hooks/unfused_attention.py."""

    rebuilds: bool = False
    """It builds its attention anew from its config when the length of the input asks for another kind: its config must
    say how many heads are left."""

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

for _name in (
    "Aimv2AttentionPoolingHead",
    "Attention",  # FSMT's
    "Blip2Attention",
    "BlipAttention",
    "DetrAttention",
    "GroupViTAttention",
    "InstructBlipAttention",
    "LEDDecoderAttention",
    "LEDEncoderSelfAttention",
    "LongformerSelfAttention",
    "LxmertAttention",
    "MgpstrAttention",
    "PPOCRV6SmallRecAttention",
    "PegasusXGlobalLocalAttention",
    "ProphetNetAttention",
    "PvtV2SelfAttention",
    "TableTransformerAttention",
    "TimesformerSelfAttention",
    "TrOCRAttention",
    # By their code alone: no tiny model of these could be made to see it.
    "EfficientLoFTRAttention",
    "Florence2VisionWindowAttention",
    "InstructBlipVideoAttention",
    "Mask2FormerAttention",
    "OneFormerAttention",
    "OneFormerTextMapperAttention",
    "PPOCRV5MobileRecAttention",
    "PPOCRV5ServerRecAttention",
):
    adapters.add(_name)(Adapter(reshapes_to_width=True))

for _name in ("BigBirdAttention", "BigBirdPegasusEncoderAttention"):
    adapters.add(_name)(Adapter(rebuilds=True))

adapters.add("WavLMAttention")(
    Adapter(bias_of_all_heads=True, keep_whole=("rel_attn_embed",), keep_counts=("num_heads",), unfused="gated_bias")
)
adapters.add("XLNetRelativeAttention")(
    Adapter(
        bare={"r_r_bias": 0, "r_s_bias": 0, "r_w_bias": 0, "q": 1, "k": 1, "v": 1, "r": 1, "seg_embed": 1},
        unfused="bare_output",
    )
)

adapters.add("CodeGenAttention")(
    Adapter(
        coupled="its code cuts the fused projection into four blocks of equally many heads (mp_num = 4): only a "
        "multiple of four could be left, and headprune does not move heads between blocks"
    )
)
adapters.add("DogeAttention")(
    Adapter(
        coupled="its dt_proj makes the mask of each key-value head from the values of all of them, so that none can go"
    )
)
adapters.add("ProphetNetNgramSelfAttention")(
    Adapter(
        coupled="its predicting stream folds heads and positions in one order and unfolds them in another, so that "
        "heads use each other's relative positions"
    )
)
for _name in ("LongT5LocalAttention", "LongT5TransientGlobalAttention"):
    adapters.add(_name)(
        Adapter(
            coupled="its first layer makes the position bias of all layers, and each adds it in its own code and hands "
            "it on, so that only the same heads of all layers could go, which headprune does not do"
        )
    )
for _name in ("LevitAttention", "LevitAttentionSubsample"):
    adapters.add(_name)(
        Adapter(
            coupled="in evaluation mode it keeps the gathered position biases of all its heads, and headprune does not "
            "follow what a block keeps"
        )
    )
for _name in ("GroundingDinoBiMultiHeadAttention", "MMGroundingDinoBiMultiHeadAttention"):
    adapters.add(_name)(
        Adapter(
            paired="its two directions, picture to text and text to picture, are made from the same scores, so that a "
            "head can go only from both at once, which headprune does not do"
        )
    )
adapters.add("LiltSelfAttention")(
    Adapter(
        paired="its text heads and its layout heads share their scores, so that they can go only in pairs, which "
        "headprune does not do"
    )
)
adapters.add("DeepseekV4HyperConnection")(Adapter(other="its softmax mixes residual streams, not positions"))
adapters.add("PatchTSMixerGatedAttention")(
    Adapter(other="a gate: its softmax weighs channels or patches one by one, without queries and keys")
)
adapters.add("AutoformerAttention")(Adapter(other="its softmax weighs time delays, which all heads share"))
adapters.add("DisentangledSelfAttention")(  # of SEW-D; DeBERTa's was renamed and is seen
    Adapter(unseen="its softmax is inside an autograd function of its own (XSoftmax), which headprune does not watch")
)
adapters.add("BitNetAttention")(
    Adapter(
        unseen="its attn_sub_norm stands between the heads and the output projection, and its mean counts all heads: "
        "headprune does not rescale it"
    )
)
adapters.add("ConvBertSelfAttention")(
    Adapter(
        unseen="its convolution kernels are made from the queries of all heads, and one count of heads serves the "
        "attention and the convolution beside it"
    )
)
adapters.add("DeepseekV4Attention")(
    Adapter(unseen="its output projection is in two steps, and the first (o_a_proj) works on groups of several heads")
)
adapters.add("JetMoeAttention")(
    Adapter(
        unseen="its queries and its output projection are experts that a router chooses, which headprune does not "
        "follow to single heads"
    )
)
adapters.add("SqueezeBertSelfAttention")(
    Adapter(unseen="its projections are convolutions, with channels before positions, not linear layers")
)
adapters.add("ZayaAttention")(
    Adapter(
        coupled="a key head is made from the queries of its whole group, and both pass convolutions that headprune "
        "does not cut"
    )
)
adapters.add("NeoMMEAttention")(
    Adapter(
        coupled="its first and last layers of full attention get value embeddings of all key-value heads from outside "
        "the block; headprune prunes none of its layers"
    )
)
adapters.add("MraSelfAttention")(
    Adapter(
        unseen="attention is approximated block by block, without one softmax over the keys, and without its CUDA "
        "kernel the block answers zeros, so that nothing could be checked"
    )
)
adapters.add("YosoSelfAttention")(
    Adapter(unseen="attention weights are powers of angles, or hashed, in an autograd function and without a softmax")
)
for _name in ("LSHSelfAttention", "LocalSelfAttention"):
    adapters.add(_name)(
        Adapter(unseen="attention is computed by logsumexp instead of a softmax, in a reversible layer of its own")
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


MULTIHEAD = "multihead"  # the form of PyTorch's own attention


def unfused_attention(model: nn.Module) -> dict[nn.Module, str]:
    """Attention whose code uses the weights of its output projection without calling it, and the form of each."""
    forms = {module: unfused_form(module) for module in model.modules()}
    return {module: form for module, form in forms.items() if form}


def unfused_form(module: nn.Module) -> str:
    return MULTIHEAD if type(module) is nn.MultiheadAttention else adapter_for(module).unfused
