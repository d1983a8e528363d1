"""The two language models: the formula, memory, masks, vocabulary, saving, generating."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

import headprune as hp
from headprune.lab.models.attention import RelativeAttention, shifted
from headprune.lab.models.vocabulary import AdaptiveSoftmax
from headprune.structure.run import difference
from tests.lab.models.toy import tiny

KINDS = ("all_attention", "transformer_xl")


def text(rows: int = 2, length: int = 26, seed: int = 1):
    return torch.randint(0, 40, (rows, length), generator=torch.Generator().manual_seed(seed))


def by_hand(attention: RelativeAttention, source, queries: int, distances, span: int):
    """The docstring's formula, one number at a time."""
    heads, width = attention.num_heads, attention.head_dim
    q, k, v = (p(source).unflatten(-1, (heads, width)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    r = attention.r_proj(distances).unflatten(-1, (heads, width))
    keys, batch = source.shape[1], source.shape[0]
    context = torch.zeros(batch, queries, heads, width, dtype=source.dtype)
    for b in range(batch):
        for h in range(heads):
            for place, i in enumerate(range(keys - queries, keys)):
                scores, values = [], []
                for j in range(max(0, i - span), i + 1):
                    content = (q[b, i, h] + attention.u[h]) @ k[b, j, h]
                    position = (q[b, i, h] + attention.v[h]) @ r[i - j, h]
                    scores.append((content + position) / math.sqrt(width))
                    values.append(v[b, j, h])
                for n in range(attention.num_persistent):
                    scores.append(q[b, i, h] @ attention.persistent_keys[h, n])
                    values.append(math.sqrt(attention.num_persistent) * attention.persistent_values[h, n])
                context[b, place, h] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return attention.o_proj(context.flatten(2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_equals_the_formula_worked_out_by_hand(kind, implementation):
    """With memory, relative positions, a span and (for All-attention) persistent vectors."""
    model = tiny(kind, attn_implementation=implementation).double()
    attention = model.model.layers[1].attention
    source = torch.randn(2, 10, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    distances = torch.randn(7, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model.set_attn_implementation(implementation)
    found, _ = attention(source[:, 6:], source, distances)
    torch.testing.assert_close(found, by_hand(attention, source, 4, distances, span=6), rtol=0, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(queries=st.integers(1, 7), memory=st.integers(0, 7), span=st.integers(0, 9))
def test_a_query_sees_what_lies_within_its_span_and_nothing_later(queries, memory, span):
    """By property: every pair of query and key is there if and only if the distance is from 0 to the span."""
    memory = min(memory, span)
    keys = queries + memory
    reach = min(span, keys - 1) + 1
    raw = torch.arange(reach - 1, -1, -1.0).expand(queries, reach)  # the score is the distance
    found = shifted(raw, keys)
    for query in range(queries):
        for key in range(keys):
            distance = memory + query - key
            expected = float(distance) if 0 <= distance <= span else -math.inf
            assert found[query, key] == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_memory_gives_the_same_loss_as_one_long_segment(kind, positions, implementation):
    """Whatever the cuts between segments."""
    model = tiny(kind, positions=positions)
    model.set_attn_implementation(implementation)
    ids = text()
    with torch.no_grad():
        whole = model(ids, labels=ids)
        memory, parts = None, []
        for start, end in ((0, 3), (3, 4), (4, 15), (15, 26)):
            output = model(ids[:, start:end], past_key_values=memory)
            memory = output.past_key_values
            parts.append(output.logits)
    logits = torch.cat(parts, dim=1)
    torch.testing.assert_close(logits, whole.logits, rtol=0, atol=2e-6)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(loss, whole.loss)
    assert len(memory) == 6
    assert memory.seen == 26


def test_without_the_memory_the_answer_is_another():
    """The equality above is not empty."""
    model, ids = tiny(), text()
    with torch.no_grad():
        memory = model(ids[:, :13]).past_key_values
        assert not difference(model(ids[:, 13:]).logits, model(ids[:, 13:], past_key_values=memory).logits).is_small


def test_no_gradient_flows_into_the_memory():
    """A segment trains on itself."""
    model, ids = tiny(), text()
    memory = model(ids[:, :13]).past_key_values
    assert not any(layer.requires_grad for layer in memory.layers)


def test_a_memory_of_zeros_is_attended_to():
    """The start of Shim et al.'s code differs from a start without memory."""
    model, ids = tiny(), text()
    zeros = hp.SegmentMemory.zeros(model.config, 2)
    with torch.no_grad():
        assert not difference(model(ids).logits, model(ids, past_key_values=zeros).logits).is_small


def test_without_a_span_a_token_sees_all_of_memory_and_segment():
    """`same_length=False`: the first of 4 tokens is still seen by the last, the memory too."""
    model = tiny(num_hidden_layers=1, memory_length=3, same_length=False)
    ids = text(1, 11)
    with torch.no_grad():
        memory = model(ids[:, :7]).past_key_values
        other = copy.deepcopy(memory)
        other.layers[0][:, 0] = torch.randn(24)
        plain, changed = (model(ids[:, 7:], past_key_values=m).logits for m in (memory, other))
    assert (plain - changed).abs().amax(dim=(0, 2)).min() > 1e-5  # all four positions moved


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 3])
def test_generating_with_memory_equals_without(kind, beams):
    """Prompts of different lengths, padded on the left; greedy and beam search."""
    model = tiny(kind)
    ids, mask = text(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    ways = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    with_memory = model.generate(ids, **ways)
    assert with_memory.tolist() == model.generate(ids, **ways, use_cache=False).tolist()
    alone = model.generate(ids[1:, 4:], **{**ways, "attention_mask": mask[1:, 4:]})
    assert with_memory[1, 9:].tolist() == alone[0, 5:].tolist()


def test_padding_changes_nothing_for_real_tokens():
    """On either side."""
    model, ids = tiny(), text(1, 8)
    with torch.no_grad():
        plain = model(ids).logits
        for left, right in ((3, 0), (0, 3)):
            mask = F.pad(torch.ones_like(ids), (left, right))
            found = model(F.pad(ids, (left, right)), attention_mask=mask).logits[:, left : left + 8]
            torch.testing.assert_close(found, plain, rtol=0, atol=2e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_adaptive_softmax_is_a_distribution_and_its_loss_is_its_own(tied):
    """Probabilities sum to one; the quick loss of training equals that of the full logits, gradients included."""
    model = tiny(cutoffs=[8, 20], cutoff_divisor=2, tie_word_embeddings=tied, embedding_dropout=0, hidden_dropout=0,
                 attention_dropout=0)  # fmt: skip
    ids = text()
    output = model(ids, labels=ids)
    torch.testing.assert_close(output.logits.exp().sum(-1), torch.ones(2, 26), rtol=0, atol=1e-5)
    torch.testing.assert_close(output.logits.log_softmax(-1), output.logits, rtol=0, atol=1e-5)
    output.loss.backward()
    slow = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    quick = model.train()(ids, labels=ids)
    assert quick.logits is None
    torch.testing.assert_close(quick.loss, output.loss)
    quick.loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, slow[name], rtol=1e-4, atol=1e-6)
    assert isinstance(model.lm_head, AdaptiveSoftmax)
    assert (model.lm_head.tables[1].weight is model.model.embeddings.tables[1].weight) == tied
    assert model.lm_head.projections[0].weight is not model.model.embeddings.projections[0].weight


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cutoffs", [[], [8, 20]])
def test_a_saved_model_loads_as_it_was(kind, cutoffs, tmp_path):
    """Through the Auto classes, tied and adaptive weights included."""
    model, ids = tiny(kind, cutoffs=cutoffs), text()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model)
    with torch.no_grad():
        assert difference(loaded(ids).logits, model(ids).logits).largest == 0.0
    assert loaded.num_parameters() == model.num_parameters()


@pytest.mark.parametrize("first", [
    "import headprune\nimport transformers", "import transformers\nimport headprune",
    "import transformers.models.auto.modeling_auto\nimport headprune",
    "import headprune\nimport transformers.modeling_layers", "import headprune\nimport transformers.generation.utils",
    "import headprune\nimport transformers.modeling_utils", "import headprune\nfrom transformers import Trainer",
    "import transformers.modeling_layers\nimport headprune", "import headprune.lab.models.modeling",
])  # fmt: skip
def test_the_auto_classes_know_the_models_in_every_order_of_imports(first, tmp_path):
    """In a fresh process, with `from_pretrained` as the very first call."""
    tiny().save_pretrained(tmp_path)
    load = f"m = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})\nprint(type(m).__name__)"
    code = f"{first}\nimport transformers\n{load}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip().endswith("AllAttentionForCausalLM"), done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_gives_the_same_gradients(kind):
    """With memory."""
    model, ids = tiny(kind, embedding_dropout=0, hidden_dropout=0, attention_dropout=0).train(), text()
    memory = model(ids[:, :13]).past_key_values
    found = []
    for checkpointing in (False, True):
        model.zero_grad()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(ids[:, 13:], labels=ids[:, 13:], past_key_values=memory).loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_runs_with_memory(kind):
    """bf16 answers near the float32 ones, and finite."""
    model, ids = tiny(kind), text()
    half = copy.deepcopy(model).to(torch.bfloat16)
    with torch.no_grad():
        memory = half(ids[:, :13]).past_key_values
        found = half(ids[:, 13:], past_key_values=memory).logits
        expected = model(ids[:, 13:], past_key_values=model(ids[:, :13]).past_key_values).logits
    assert memory.layers[0].dtype == torch.bfloat16
    assert difference(found, expected.to(torch.bfloat16)).is_small


def test_pruned_equals_masked_with_memory(tmp_path):
    """Segment after segment, one layer without heads, also after loading; and the memory keeps its shape."""
    model, ids = tiny(), text()
    heads = hp.find_heads(model)
    mask = hp.HeadMask.from_dict(heads, {"decoder.0": [1, 3], "decoder.1": [], "decoder.2": [0]})
    pruned = hp.prune_(copy.deepcopy(model), mask)
    pruned.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    memories: list = [None, None, None]
    for segment in ids.split(9, dim=1):
        with torch.no_grad():
            with hp.masked(model, mask):
                wanted = model(segment, past_key_values=memories[0])
            found = [m(segment, past_key_values=past) for m, past in zip((pruned, loaded), memories[1:], strict=True)]
        assert all(difference(one.logits, wanted.logits).is_small for one in found)
        memories = [one.past_key_values for one in (wanted, *found)]


BAD = [
    ({"hidden_size": 25}, "does not divide among 4 heads"),
    ({"positions": "absolute"}, "expected 'learned'"),
    ({"memory_length": -1}, "memory_length is -1"),
    ({"position_rows": 4}, "at least 7 rows"),
    ({"cutoffs": [30, 20]}, "rising numbers"),
    ({"cutoffs": [10, 50]}, "rising numbers"),
    ({"num_persistent": 0}, "at least 1"),
    ({"num_hidden_layers": 0}, "Found 0 layers"),
    ({"cutoff_divisor": 0}, "cutoff_divisor of 0"),
    ({"position_rows": -3, "same_length": False}, "position_rows -3"),
]


@pytest.mark.parametrize(("more", "told"), BAD, ids=[str(more) for more, _ in BAD])
def test_impossible_shapes_are_refused(more, told):
    """With what was found and what was expected."""
    with pytest.raises(hp.HeadpruneError, match=told):
        tiny(**more)


def test_a_memory_that_does_not_fit_is_refused():
    """Another batch, another model, another kind of cache, a mask that is too short, a table that is too small."""
    model, ids = tiny(), text()
    memory = model(ids).past_key_values
    with pytest.raises(hp.HeadpruneError, match="expected 3 layers for a batch of 1"):
        model(ids[:1], past_key_values=memory)
    with pytest.raises(hp.HeadpruneError, match="expected 3 layers"):
        model(ids, past_key_values=hp.SegmentMemory(memory.layers[:2]))
    from transformers import DynamicCache

    with pytest.raises(hp.HeadpruneError, match="DynamicCache"):
        model(ids, past_key_values=DynamicCache())
    with pytest.raises(hp.HeadpruneError, match="at least 26 positions"):
        model(ids, attention_mask=torch.ones(2, 5))
    with pytest.raises(hp.HeadpruneError, match="13 rows"):
        tiny(same_length=False)(ids)
    with pytest.raises(hp.HeadpruneError, match="one of them"):
        model()


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_goes_on_from_a_memory(beams):
    """The tokens that follow and the memory of those before say what the whole prompt says."""
    model, ids = tiny(), text(2, 15)
    ways = {"max_new_tokens": 8, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    with torch.no_grad():
        memory = model(ids[:, :9]).past_key_values
    whole, rest = model.generate(ids, **ways), model.generate(ids[:, 9:], past_key_values=memory, **ways)
    assert rest[:, 6:].tolist() == whole[:, 15:].tolist()


def test_vectors_of_tokens_may_be_given_instead_of_tokens():
    """As the table of the model gives them."""
    model, ids = tiny(), text()
    with torch.no_grad():
        given = model(inputs_embeds=model.get_input_embeddings()(ids)).logits
        assert difference(given, model(ids).logits).largest == 0.0


@pytest.mark.parametrize("cutoffs", [[], [8, 20]])
def test_numbers_that_are_no_tokens_are_refused(cutoffs):
    """As input and as target, by an adaptive vocabulary too."""
    model, ids = tiny(cutoffs=cutoffs).train(), text()
    for wrong in (40, 77):
        other = ids.clone()
        other[0, 3] = wrong
        with pytest.raises((IndexError, RuntimeError)):
            model(other)
        with pytest.raises((IndexError, RuntimeError)):
            model(ids, shift_labels=other)


def test_mixed_precision_leaves_the_residual_stream_wide():
    """Adaptive vectors do not make every layer add in bf16."""
    for cutoffs in ([], [8, 20]):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = tiny(cutoffs=cutoffs)(text(), output_hidden_states=True).hidden_states
        assert all(state.dtype == torch.float32 for state in hidden)


def test_the_stock_trainer_trains_and_evaluates(tmp_path):
    """With labels, and with a loss that is told."""
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in text(6, 10)]
    arguments = TrainingArguments(tmp_path, max_steps=2, report_to=[], use_cpu=True, save_strategy="no",
                                  disable_tqdm=True)  # fmt: skip
    trainer = Trainer(tiny(), arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.predict(rows).predictions.shape == (6, 10, 40)


def test_what_cannot_be_asked_is_refused():
    """Two kinds of labels; another size of an adaptive vocabulary."""
    model, ids = tiny(cutoffs=[8, 20]), text()
    with pytest.raises(hp.HeadpruneError, match="one of them"):
        model(ids, labels=ids, shift_labels=ids)
    with pytest.raises(hp.HeadpruneError, match="cannot be resized"):
        model.resize_token_embeddings(50)


def test_losses_of_every_position_are_told():
    """Aligned targets, with some left out; the same for plain and adaptive vocabularies and their logits."""
    for cutoffs in ([], [8, 20]):
        model, ids = tiny(cutoffs=cutoffs), text()
        targets = ids.roll(-1, dims=1)
        targets[:, -1] = -100
        with torch.no_grad():
            found, logits = model(ids, shift_labels=targets), model(ids).logits
        expected = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=-100)
        torch.testing.assert_close(found.losses, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.loss, expected.sum() / 50)
        assert (found.logits is None) == bool(cutoffs)


def test_the_room_of_the_models_exports_them_by_name():
    """As `hp` does, without naming the files they are in."""
    from headprune.lab import models

    assert models.AllAttentionForCausalLM is hp.AllAttentionForCausalLM
    assert all(getattr(models, name).__name__ == name for name in models.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Reformer'"):
        models.Reformer  # noqa: B018
