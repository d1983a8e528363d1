"""Figures that need no training: formulas alone."""

from __future__ import annotations

import math
from typing import Any

from headprune.lab.experiments.work import Context, Result, work


@work("densities", exact=True)
def densities(context: Context) -> Result:
    """Concrete and Hard Concrete distributions with their point masses (Voita et al., Figure 6)."""
    import torch

    from headprune.gates import HardConcrete

    found: dict[str, Any] = {}
    temperature = float(context.params["options"].get("temperature", 0.5))
    for mean in context.params["options"].get("log-alpha", [-1.0, 0.0, 1.0]):
        gate = HardConcrete(1, temperature=temperature, init=float(mean))
        points = torch.linspace(0.01, 0.99, 99)
        with torch.no_grad():
            stretched = gate.density(points)[:, 0].tolist()
            zero, one = float(gate.prob_zero()[0]), float(gate.prob_one()[0])
            inside = float(gate.density(torch.linspace(0.0005, 0.9995, 1000)).mean())
        found[str(mean)] = {
            "points": points.tolist(), "density": stretched, "zero": zero, "one": one, "between": 1 - zero - one,
            "between_by_area": inside,
            "concrete": [_concrete(point, float(mean), temperature) for point in points.tolist()],
        }  # fmt: skip
    return {"log_alpha": found, "temperature": temperature}


def _concrete(point: float, log_alpha: float, temperature: float) -> float:
    """The density of sigmoid((logit(u) + log_alpha) / temperature), u uniform."""
    logit = math.log(point / (1 - point))
    u = 1 / (1 + math.exp(-(temperature * logit - log_alpha)))
    return u * (1 - u) * temperature / (point * (1 - point))


@work("savings", exact=True)
def savings(context: Context) -> Result:
    """Parameters and MACs left by share of heads pruned, All-attention and Transformer-XL (Shim et al., Figure 1)."""
    from headprune.lab.models.configuration import AllAttentionConfig, TransformerXLConfig
    from headprune.lab.models.sizes import macs_per_token, parameters

    options = context.params["options"]
    layers, heads, length = int(options["layers"]), int(options["heads"]), int(options["length"])
    sizes: dict[str, Any] = {
        "hidden_size": int(options["width"]), "num_hidden_layers": layers, "num_attention_heads": heads,
        "memory_length": length,
    }  # fmt: skip
    models = {
        "all-attention": AllAttentionConfig(num_persistent=int(options["inner"]), **sizes),
        "transformer-xl": TransformerXLConfig(intermediate_size=int(options["inner"]), **sizes),
    }
    found: dict[str, Any] = {"parameters": {name: parameters(config).layers for name, config in models.items()}}
    for left in range(heads, -1, -1):
        kept = [left] * layers
        found[f"{100 * (heads - left) / heads:g}%"] = {
            name: {
                "parameters": parameters(config, kept).layers / parameters(config).layers,
                "macs": macs_per_token(config, kept) / macs_per_token(config),
            }
            for name, config in models.items()
        }
    return found
