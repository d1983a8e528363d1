"""The only place that registers hooks or wraps attention functions.

Three uses: multiplying heads (masks and gates), watching one forward pass (finding heads), and slicing what a pruned
block receives for all heads although it has only some (position biases made elsewhere in the model).
"""

from headprune.hooks.layers import (
    LayerCall,
    LayerCalls,
    LayerModel,
    NotAStackError,
    answering_zeros,
    layer_calls,
    left_out,
    states_after_first,
)
from headprune.hooks.masks import (
    GateSource,
    HeadFactor,
    StopForward,
    captured_input,
    captured_inputs,
    captured_output,
    captured_outputs,
    fresh_compilation,
    gate_projections_,
    heard_inputs,
    is_gated,
    paused_gates,
    scaled_inputs,
    silent_outputs,
    ungate_projections_,
)
from headprune.hooks.multihead import SlicedMultihead
from headprune.hooks.persistent import (
    PRUNED_ATTENTION,
    SlicedArgument,
    Width,
    arguments_sliced_by,
    follow_width_,
    register_attention_function,
    slice_arguments_,
    width_followed_by,
)
from headprune.hooks.precision import raised_to_double
from headprune.hooks.relevance import relevance_rules
from headprune.hooks.replay import Recording, recorded, replayed
from headprune.hooks.scope import alone_with, called_projections, is_of_hooks, joined_heads, scoped_hooks, settled
from headprune.hooks.tracing import AttentionEvent, Call, SavedCall, Watch, recorded_attention, watched
from headprune.hooks.unfused_attention import FORMS, JOINED_HEADS, JoinedHeads, keep_open_

__all__ = [
    "FORMS",
    "JOINED_HEADS",
    "PRUNED_ATTENTION",
    "AttentionEvent",
    "Call",
    "GateSource",
    "HeadFactor",
    "JoinedHeads",
    "LayerCall",
    "LayerCalls",
    "LayerModel",
    "NotAStackError",
    "Recording",
    "SavedCall",
    "SlicedArgument",
    "SlicedMultihead",
    "StopForward",
    "Watch",
    "Width",
    "alone_with",
    "answering_zeros",
    "arguments_sliced_by",
    "called_projections",
    "captured_input",
    "captured_inputs",
    "captured_output",
    "captured_outputs",
    "follow_width_",
    "fresh_compilation",
    "gate_projections_",
    "heard_inputs",
    "is_gated",
    "is_of_hooks",
    "joined_heads",
    "keep_open_",
    "layer_calls",
    "left_out",
    "paused_gates",
    "raised_to_double",
    "recorded",
    "recorded_attention",
    "register_attention_function",
    "relevance_rules",
    "replayed",
    "scaled_inputs",
    "scoped_hooks",
    "settled",
    "silent_outputs",
    "slice_arguments_",
    "states_after_first",
    "ungate_projections_",
    "watched",
    "width_followed_by",
]
