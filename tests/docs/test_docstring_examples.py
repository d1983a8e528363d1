"""Every exported function shows how it is called, and the example runs."""

from __future__ import annotations

import doctest
import inspect

import pytest
import torch

import headprune as hp
from tests.families.tiny import tiny_model

# Where every example begins: a classifier, its tokenizer, and batches with labels. docs/api.md says so, too.
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "heads", "look", "back")


def exported_functions():
    """The functions of `hp` and of its public modules, by the name that users write."""
    found = {}
    for name in hp.__all__:
        thing = getattr(hp, name)
        if inspect.isfunction(thing):
            found[f"hp.{name}"] = thing
        elif inspect.ismodule(thing):
            own = [(n, f) for n, f in vars(thing).items() if inspect.isfunction(f) and f.__module__ == thing.__name__]
            found |= {f"hp.{name}.{inner}": f for inner, f in own if not inner.startswith("_")}
    return found


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """What the examples take for granted; files go to an empty folder."""
    from transformers import BertTokenizer

    monkeypatch.chdir(tmp_path)
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 7, 5, 6, 3]])
    batches = [
        {"input_ids": ids, "labels": torch.tensor([0, 1])},
        {"input_ids": ids.flip(0), "labels": torch.ones(2).long()},
    ]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})
    return {"hp": hp, "torch": torch, "model": tiny_model("bert"), "batches": batches, "tokenizer": tokenizer}


@pytest.mark.parametrize("name", exported_functions())
def test_the_example_in_the_docstring_runs(name, setting):
    """And prints what it says."""
    text = inspect.getdoc(exported_functions()[name])
    assert "Example:" in text, f"{name} shows no example"
    example = doctest.DocTestParser().get_doctest(text, setting, name, None, None)
    assert example.examples
    told = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=told.append)
    assert not runner.failures, "".join(told)
