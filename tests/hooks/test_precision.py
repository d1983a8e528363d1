"""Double precision, one module at a time."""

from __future__ import annotations

import pytest
import torch

from headprune.hooks import raised_to_double
from headprune.structure.run import difference, run
from headprune.surgery.remove import double_precision
from tests.families.tiny import padded_batch, tiny_model


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "bert", "phi3", "gpt_neox"])
def test_a_raised_model_answers_as_its_copy_in_double_precision(family):
    """And nothing of it is left afterwards."""
    model = tiny_model(family)
    batch, before = padded_batch(model), dict(model.state_dict())
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        plain = run(model, batch)
        with double_precision(model):
            copied = run(model, batch)
        with raised_to_double(model):
            raised = run(model, batch)
    gap, usual = difference(raised, copied).largest, difference(plain, copied).largest
    assert next(iter(raised.values())).dtype == torch.float64
    assert gap <= usual / 2 or gap < 1e-7
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == places
    assert all(value.dtype == before[name].dtype for name, value in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_failure_leaves_weights_as_they_were():
    """Whatever module it happens in."""
    model = tiny_model("llama")
    dtypes = {parameter.dtype for parameter in model.parameters()}

    def fail(module, args, output):
        raise RuntimeError("on purpose")

    model.model.layers[1].mlp.act_fn.register_forward_hook(fail)
    with pytest.raises(RuntimeError), raised_to_double(model), torch.no_grad():
        model(**padded_batch(model))
    assert {parameter.dtype for parameter in model.parameters()} == dtypes
    assert all(not torch.is_tensor(b) or b.dtype != torch.float64 for b in model.buffers())
