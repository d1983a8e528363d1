"""What `import headprune` does to transformers: it loads pruned and gated checkpoints and our own models from then on.

Nothing is imported for it. If transformers' modules are loaded already, they are changed at once; otherwise at the
moment at which they are first imported.
"""

from __future__ import annotations

import sys
from types import ModuleType

from headprune.patches import is_loading, patch_config, patch_models, when_imported

TARGET = "transformers.modeling_utils"
AUTO = "transformers.models.auto"
# What our models need, beside TARGET.
MODELS = (f"{AUTO}.modeling_auto", "transformers.modeling_layers", "transformers.generation.utils")


def install() -> None:
    when_imported("transformers.configuration_utils", _patch_configs)
    when_imported(TARGET, _patch_models)
    when_imported(f"{AUTO}.configuration_auto", _register_configs)
    for name in MODELS:
        when_imported(name, _register_models)


def _patch_models(module: ModuleType) -> None:
    from headprune.checkpoint.pretrained import from_pretrained, restore_, save_pretrained
    from headprune.hooks import register_attention_function

    register_attention_function()
    patch_models(module.PreTrainedModel, after_init=restore_, save=save_pretrained, load=from_pretrained)
    _register_models(module)


def _patch_configs(module: ModuleType) -> None:
    from headprune.checkpoint.exchange import finish_interrupted

    patch_config(module.PreTrainedConfig, finish_interrupted)


def _register_configs(module: ModuleType) -> None:
    import headprune.lab.models.configuration  # noqa: F401  # registers at its end


def _register_models(module: ModuleType) -> None:
    """As soon as the Auto classes are loaded and nothing that our models import is half loaded: any of these modules
    may be the one whose import loads the others, and the last to be finished calls this again."""
    half = [name for name in (TARGET, *MODELS) if name != module.__name__ and is_loading(name)]
    if f"{AUTO}.modeling_auto" in sys.modules and not half:
        import headprune.lab.models.modeling  # noqa: F401  # registers at its end
