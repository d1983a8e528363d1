"""The only place that registers hooks or wraps attention functions.

Three uses: multiplying heads (masks and gates), watching one forward pass (finding heads), and slicing what a pruned
block receives for all heads although it has only some (position biases made elsewhere in the model).
"""

from headprune.hooks.gating import (
    GateSource,
    gate_projections_,
    is_gated,
    paused_gates,
    ungate_projections_,
)
from headprune.hooks.relevance import relevance_rules
from headprune.hooks.replaying import Recording, recorded, replayed
from headprune.hooks.reshaping import Width, follow_width_, width_followed_by
from headprune.hooks.scaling import (
    HeadFactor,
    called_projections,
    captured_input,
    captured_inputs,
    captured_output,
    fresh_compilation,
    scaled_inputs,
    silent_outputs,
)
from headprune.hooks.staying import (
    PRUNED_ATTENTION,
    SlicedArgument,
    arguments_sliced_by,
    register_attention_function,
    slice_arguments_,
)
from headprune.hooks.watching import AttentionEvent, Call, Watch, recorded_attention, watched

__all__ = [
    "PRUNED_ATTENTION",
    "AttentionEvent",
    "Call",
    "GateSource",
    "HeadFactor",
    "Recording",
    "SlicedArgument",
    "Watch",
    "Width",
    "arguments_sliced_by",
    "called_projections",
    "captured_input",
    "captured_inputs",
    "captured_output",
    "follow_width_",
    "fresh_compilation",
    "gate_projections_",
    "is_gated",
    "paused_gates",
    "recorded",
    "recorded_attention",
    "register_attention_function",
    "relevance_rules",
    "replayed",
    "scaled_inputs",
    "silent_outputs",
    "slice_arguments_",
    "ungate_projections_",
    "watched",
    "width_followed_by",
]
