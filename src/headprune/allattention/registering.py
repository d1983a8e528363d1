"""Making the Auto classes of transformers know our models, as soon as they are loaded and not before."""

from __future__ import annotations

from typing import Any


def register_configs(configuration_auto: Any) -> None:
    """For `transformers.models.auto.configuration_auto`."""
    from headprune.allattention.configuration import AllAttentionConfig, TransformerXLConfig

    for config in (AllAttentionConfig, TransformerXLConfig):
        configuration_auto.AutoConfig.register(config.model_type, config, exist_ok=True)


def register_models(modeling_auto: Any) -> None:
    """For `transformers.models.auto.modeling_auto`."""
    from headprune.allattention import modeling
    from headprune.allattention.configuration import AllAttentionConfig, TransformerXLConfig

    for config, base, causal in (
        (AllAttentionConfig, modeling.AllAttentionModel, modeling.AllAttentionForCausalLM),
        (TransformerXLConfig, modeling.TransformerXLModel, modeling.TransformerXLForCausalLM),
    ):
        modeling_auto.AutoModel.register(config, base, exist_ok=True)
        modeling_auto.AutoModelForCausalLM.register(config, causal, exist_ok=True)
