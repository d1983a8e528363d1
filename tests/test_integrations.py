"""Pruned models in the hands of the libraries that people use with them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.data import Dataset
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

import headprune as hp
from headprune.equality import difference
from headprune.errors import UnsupportedModelError
from headprune.structure.example import example_inputs
from headprune.structure.run import run
from tests.families.tiny import tiny_model

SENTENCES = ["A gripping film with a clever script.", "Attention heads are cheap to mask."]


@pytest.fixture(scope="module")
def minilm_model(minilm):
    return AutoModel.from_pretrained(minilm).eval()


def half(model):
    return hp.HeadMask.random(hp.find_heads(model), keep=0.5, seed=0).without("encoder.2")


def test_a_real_trained_model_keeps_every_equality(minilm_model, minilm, tmp_path):
    """MiniLM on real sentences: masked = pruned = reloaded, with an emptied layer."""
    batch = dict(AutoTokenizer.from_pretrained(minilm)(SENTENCES, padding=True, return_tensors="pt"))
    mask = half(minilm_model)
    with torch.no_grad(), hp.masked(minilm_model, mask):
        expected = minilm_model(**batch).last_hidden_state
    pruned = hp.prune_(copy.deepcopy(minilm_model), mask, example=batch)
    with torch.no_grad():
        found = pruned(**batch).last_hidden_state
    assert difference(found, expected).is_small
    pruned.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(AutoModel.from_pretrained(tmp_path).eval()(**batch).last_hidden_state, found)


def test_sentence_transformers_gives_the_masked_models_embeddings(minilm_model, minilm, tmp_path):
    """`SentenceTransformer(folder)` on a pruned MiniLM, made by the command line."""
    from sentence_transformers import SentenceTransformer

    from headprune.checkpoint.companions import copy_companions

    whole = SentenceTransformer(str(minilm), device="cpu")
    mask = half(minilm_model)
    inner = next(m for m in whole.modules() if type(m).__name__ == "BertModel")
    with hp.masked(inner, mask):
        expected = whole.encode(SENTENCES)
    pruned = hp.prune_(copy.deepcopy(minilm_model), mask)
    pruned.save_pretrained(tmp_path / "small")
    copy_companions(minilm, tmp_path / "small")
    found = SentenceTransformer(str(tmp_path / "small"), device="cpu").encode(SENTENCES)
    assert abs(found - expected).max() < 1e-5


def lora_model(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, target_modules=["query", "value", "dense"], init_lora_weights=False))


def test_lora_on_a_pruned_model_trains_and_reloads(tmp_path):
    """The adapter sees layers of the pruned widths."""
    from peft import PeftModel

    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:0", "encoder.0:3", "encoder.1:1"))
    model.save_pretrained(tmp_path / "base")
    adapted = lora_model(model)
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "labels": torch.tensor([1])}
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(3):
        loss = adapted(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    adapted.eval().save_pretrained(tmp_path / "adapter")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    again = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        assert torch.allclose(again(**batch).logits, adapted(**batch).logits, atol=1e-6)


def test_pruning_under_lora_asks_to_merge_first():
    """The adapted model and its inner model; merged, it can be pruned."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without("encoder.0:1")
    adapted = lora_model(model)
    for target in (adapted, adapted.base_model.model):
        with pytest.raises(UnsupportedModelError, match="merge_and_unload"):
            hp.prune_(target, hp.HeadMask.full(hp.find_heads(target)).without("encoder.0:1"))
    with hp.masked(adapted.base_model.model, mask):
        expected = run(adapted.base_model.model)
    merged = hp.prune_(adapted.merge_and_unload(), mask)
    with torch.no_grad():
        assert difference(run(merged).logits, expected.logits.detach()).is_small


class Sentences(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": torch.tensor([3 + index, 4, 5, 6]), "labels": torch.tensor(index % 2)}


def test_a_pruned_model_trains_in_the_ordinary_trainer(tmp_path):
    """Its checkpoints are pruned checkpoints, resuming works."""
    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0", "encoder.1:2"))
    arguments = {
        "output_dir": str(tmp_path), "per_device_train_batch_size": 4, "save_steps": 2, "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "seed": 0, "dataloader_pin_memory": False,
    }  # fmt: skip
    Trainer(model, TrainingArguments(**arguments, max_steps=2), train_dataset=Sentences()).train()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    assert len(hp.find_heads(loaded)) == 3
    trainer = Trainer(loaded, TrainingArguments(**arguments, max_steps=4), train_dataset=Sentences())
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.state.global_step == 4


def test_a_quantised_model_is_refused():
    """Dynamic int8 layers are not linear layers any more."""
    model = tiny_model("bert")
    mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1")

    class Int8Linear(torch.nn.Module):
        """As quantisation libraries keep them: integers and a scale."""

        def __init__(self, linear):
            super().__init__()
            self.in_features, self.out_features = linear.in_features, linear.out_features
            self.scale = linear.weight.abs().max().item() / 127
            self.weight = torch.nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)
            self.bias = linear.bias

        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)

    attention = model.bert.encoder.layer[0].attention.self
    attention.value = Int8Linear(attention.value)
    before = run(model)
    with pytest.raises(UnsupportedModelError, match="quantise"):
        hp.prune_(model, mask)
    assert torch.equal(run(model).logits, before.logits)


@pytest.mark.parametrize("family", ["bert", "t5", "mpnet", "bloom", "llama"])
def test_pruned_models_compile(family):
    """With ragged and emptied sites."""
    model = tiny_model(family)
    heads = hp.find_heads(model)
    hp.prune_(
        model,
        hp.HeadMask.full(heads).without(
            heads.sites[0].id, *(f"{heads.sites[-1].id}:{i}" for i in heads.sites[-1].groups[0])
        ),
    )
    batch = example_inputs(model)
    with torch.no_grad():
        assert difference(torch.compile(model, backend="eager")(**batch), model(**batch)).is_small
    torch._dynamo.reset()


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
@pytest.mark.parametrize("emptied", [False, True])
def test_a_pruned_checkpoint_is_quantised_while_it_is_loaded(family, emptied, tmp_path):
    """The ordinary call with torchao's int8 weights: near the whole numbers, and smaller."""
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    model = tiny_model(family)
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without(*(f"{site.id}:{head}" for site in heads for head in site.groups[0]))
    hp.prune_(model, mask.without(heads.sites[0].id) if emptied else mask)
    model.save_pretrained(tmp_path)
    batch = example_inputs(model)
    quantised = type(model).from_pretrained(tmp_path, quantization_config=TorchAoConfig(Int8WeightOnlyConfig())).eval()
    with torch.no_grad():
        expected, found = (one(**batch)[0] for one in (model, quantised))
    assert type(quantised.get_submodule(heads.sites[-1].output).weight).__module__.startswith("torchao")
    assert 0 < float((found - expected).abs().max()) < 0.1 * float(expected.abs().max())
    assert [site.kept for site in hp.find_heads(quantised)] == [site.kept for site in hp.find_heads(model)]
