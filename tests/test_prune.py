"""prune_ and plan: grouped-query attention, emptied sites, verification, refusals that leave no trace."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, BertConfig, BertForSequenceClassification, BertModel

import headprune as hp
from headprune.equality import Difference, difference
from headprune.errors import MaskError, UnsupportedModelError, VerificationError
from headprune.structure.example import example_inputs
from headprune.structure.run import run
from headprune.surgery import equivalence
from headprune.surgery.edits import Edits
from headprune.surgery.prune import perform
from tests.families.tiny import tiny_config, tiny_model


def answer(model, batch=None):
    with torch.no_grad():
        return run(model, batch)


def state(model):
    """Everything that a failed pruning must not touch."""
    weights = {name: (tensor.data_ptr(), tuple(tensor.shape)) for name, tensor in model.state_dict().items()}
    counts = {
        (name, key): value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if type(value) is int
    }
    kinds = {name: type(module) for name, module in model.named_modules()}
    configs = {name: id(vars(module).get("config")) for name, module in model.named_modules()}
    hooks = {name: list(module._forward_pre_hooks) for name, module in model.named_modules()}
    return weights, counts, kinds, configs, hooks, getattr(model.config, "headprune", None)


def check_equal(model, mask, **how):
    """Prune a copy; it must answer as the masked model. Returns the copy."""
    with hp.masked(model, mask):
        expected = answer(model)
    pruned = hp.prune_(copy.deepcopy(model), mask, **how)
    assert difference(answer(pruned), expected).is_small
    return pruned


@pytest.fixture(scope="module")
def llama():
    """Six heads in three groups."""
    return tiny_model("llama", num_attention_heads=6, num_key_value_heads=3, hidden_size=48)


def kept(model, **sites):
    return hp.HeadMask.from_dict(hp.find_heads(model), {name.replace("_", "."): heads for name, heads in sites.items()})


def test_whole_groups_go(llama):
    """Fewer KV heads, the same number of heads per group."""
    pruned = check_equal(llama, kept(llama, decoder_0=[0, 1, 4, 5]), gqa="group")
    site = hp.find_heads(pruned)["decoder.0"]
    assert (site.num_heads, site.num_kv_heads, site.kept, site.groups) == (4, 2, (0, 1, 4, 5), ((0, 1), (4, 5)))
    assert pruned.model.layers[0].self_attn.k_proj.weight.shape == (16, 48)


def test_the_same_number_from_each_group(llama):
    """The same KV heads, smaller groups; which head of a group goes may differ."""
    pruned = check_equal(llama, kept(llama, decoder_0=[0, 3, 4]), gqa="query")
    site = hp.find_heads(pruned)["decoder.0"]
    assert (site.num_heads, site.num_kv_heads, site.groups) == (3, 3, ((0,), (3,), (4,)))
    assert pruned.model.layers[0].self_attn.k_proj.weight.shape == (24, 48)


def test_groups_and_then_queries_in_one_mask(llama):
    """Whole groups and the same number of the rest is exact too, and is done unless one way was asked for."""
    mask = kept(llama, decoder_0=[1, 5])
    check_equal(llama, mask)
    for gqa in ("group", "query"):
        with pytest.raises(MaskError, match="grouped-query"):
            hp.prune_(copy.deepcopy(llama), mask, gqa=gqa)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_oss", "phi3"])
def test_expanding_allows_any_heads(family):
    """Every kept head gets its own keys and values; the cache grows, the answers stay."""
    model = tiny_model(family, num_attention_heads=6, num_key_value_heads=3, hidden_size=48)
    mask = kept(model, decoder_0=[0, 1, 2], decoder_1=[5])
    pruned = check_equal(model, mask, gqa="expand")
    site = hp.find_heads(pruned)["decoder.0"]
    assert (site.num_heads, site.num_kv_heads, site.groups) == (3, 3, ((0,), (1,), (2,)))
    second = hp.HeadMask.full(hp.find_heads(pruned)).without("decoder.0:1")
    with hp.masked(model, second):
        expected = answer(model)
    assert difference(answer(hp.prune_(pruned, second)), expected).is_small


def test_an_expanded_model_reloads(llama, tmp_path):
    """Copied rows are part of the record."""
    pruned = hp.prune_(copy.deepcopy(llama), kept(llama, decoder_0=[0, 1, 2]), gqa="expand")
    pruned.save_pretrained(tmp_path)
    loaded = type(llama).from_pretrained(tmp_path).eval()
    assert difference(answer(loaded), answer(pruned)).largest == 0.0


def test_a_mask_that_does_not_fit_the_groups_is_refused_with_the_nearest_that_fit(llama):
    """Never changed silently."""
    model = copy.deepcopy(llama)
    before = state(model)
    with pytest.raises(MaskError) as error:
        hp.prune_(model, kept(model, decoder_1=[0, 1, 2]))
    text = str(error.value)
    assert "decoder.1 uses grouped-query attention (6 heads, 3 groups)" in text
    assert "keeps 2, 1 and 0 heads" in text
    assert "whole groups [0, 1, 2, 3]" in text
    assert "[0, 2, 4]" in text
    assert 'gqa="expand"' in text
    assert state(model) == before


def test_multi_query_attention_loses_any_heads():
    """One group: every mask takes the same number from each."""
    model = tiny_model("falcon", multi_query=True)
    pruned = check_equal(model, kept(model, decoder_0=[1, 3]))
    assert hp.find_heads(pruned)["decoder.0"].num_kv_heads == 1


@pytest.mark.parametrize("variant", [{"new_decoder_architecture": True, "num_kv_heads": 2}, {"alibi": True}])
def test_falcons_other_layouts(variant):
    """Interleaved groups, and ALiBi inside the attention mask."""
    model = tiny_model("falcon", **variant)
    check_equal(model, kept(model, decoder_0=[2, 3], decoder_1=[]))


def test_an_emptied_site_keeps_its_output_bias_or_not():
    """`bias` is the default; `skip` is Budhraja's reading. Both equal their masked counterparts and reload."""
    model = tiny_model("bert")
    mask = kept(model, encoder_0=[])
    for empty_site in ("bias", "skip"):
        with hp.masked(model, mask, empty_site=empty_site):
            expected = answer(model)
        pruned = hp.prune_(copy.deepcopy(model), mask, empty_site=empty_site)
        assert difference(answer(pruned), expected).is_small


def test_a_skipped_site_reloads(tmp_path):
    """Without the bias it dropped."""
    model = tiny_model("siglip")
    heads = hp.find_heads(model)
    hp.prune_(model, hp.HeadMask.empty(heads), empty_site="skip")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert difference(answer(loaded), answer(model)).largest == 0.0


def test_a_mask_that_keeps_everything_changes_nothing():
    """Not even the config."""
    model = tiny_model("bert")
    before = state(model)
    assert hp.prune_(model, hp.HeadMask.full(hp.find_heads(model))) is model
    assert state(model) == before


def test_coupled_heads_are_refused_and_can_still_be_masked():
    """OLMo2 normalises over all heads: removal cannot be exact. The model stays as it was."""
    config = CONFIG_MAPPING["olmo2"](
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, intermediate_size=48,
        vocab_size=99, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    heads = hp.find_heads(model)
    mask = hp.HeadMask.full(heads).without("decoder.0:1")
    before = state(model)
    with pytest.raises(
        UnsupportedModelError, match=r"decoder\.0.*Olmo2Attention.*q_norm normalises the heads together.*masked"
    ):
        hp.prune_(model, mask)
    assert state(model) == before
    plain = answer(model)
    with hp.masked(model, mask):
        assert not difference(answer(model), plain).is_small


def test_a_failed_verification_puts_the_model_back(monkeypatch):
    """Weights, counts, modules, configs and hooks are what they were."""
    for family in ("t5", "mpnet", "siglip", "phi3"):
        model = tiny_model(family)
        heads = hp.find_heads(model)
        before, plain = state(model), answer(model)
        monkeypatch.setattr(equivalence, "difference", lambda a, b: Difference(float("nan"), 1e-5))
        with pytest.raises(VerificationError, match="put back"):
            hp.prune_(
                model,
                hp.HeadMask.full(heads).without(
                    heads.sites[0].id, *(f"{heads.sites[-1].id}:{i}" for i in heads.sites[-1].groups[0])
                ),
            )
        monkeypatch.undo()
        assert state(model) == before
        assert difference(answer(model), plain).largest == 0.0


class CountingBert(BertForSequenceClassification):
    """Its answer depends on the number of heads of its first layer, plainly or by so many units of its precision."""

    units: float | None = None

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        output = super().forward(input_ids, attention_mask, **kwargs)
        heads = self.bert.encoder.layer[0].attention.self.num_attention_heads
        output.logits = output.logits + heads * (self.units * torch.finfo(self.dtype).eps if self.units else 1.0)
        return output


def counting_bert(units=None, dtype=torch.float32):
    torch.manual_seed(0)
    model = CountingBert(tiny_config("bert")).eval().to(dtype)
    model.units = units
    return model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1", "encoder.1:0")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_not_taken_for_a_difference(dtype):
    """Sums in another order may be further apart than models should be: in double precision they are equal."""
    model, mask = counting_bert(1e4, dtype)
    tensors = [*model.parameters(), *model.buffers()]
    outcome = perform(model, mask)
    assert outcome.difference.largest > outcome.difference.allowed
    assert len(hp.find_heads(model)) == len(mask)
    assert {tensor.dtype for tensor in model.parameters()} == {dtype}
    left = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    assert len(left & set(map(id, tensors))) > 10  # the tensors that were not cut are the ones that were there


def test_a_difference_that_is_not_rounding_is_refused():
    """And the model is as it was."""
    model, mask = counting_bert()
    before, plain = state(model), answer(model)
    with pytest.raises(VerificationError, match=r"put back.*not rounding.*hp\.masked"):
        hp.prune_(model, mask)
    assert state(model) == before
    assert difference(answer(model), plain).largest == 0.0


def test_where_double_precision_cannot_tell_nothing_is_cut():
    """A model that does not run so is refused as one that differs, and told why."""
    model, mask = counting_bert(1e4)

    def no_double(self, args):
        if self.weight.dtype == torch.float64:
            raise RuntimeError("no kernel for float64")

    model.classifier.register_forward_pre_hook(no_double)
    before = state(model)
    with pytest.raises(VerificationError, match="Double precision would tell"):
        hp.prune_(model, mask)
    assert state(model) == before


def test_pruning_in_a_masked_block_is_refused():
    """What would the mask mean afterwards?"""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    with hp.masked(model, hp.HeadMask.empty(heads)), pytest.raises(UnsupportedModelError, match="masked"):
        hp.prune_(model, hp.HeadMask.empty(heads))


def test_two_models_of_one_config_object_do_not_share_a_pruning(tmp_path):
    """The record goes into a config of the pruned model's own."""
    config = tiny_config("bert")
    first, second = BertModel(config).eval(), BertModel(config).eval()
    hp.prune_(first, hp.HeadMask.full(hp.find_heads(first)).without("encoder.0:0"))
    assert len(hp.find_heads(second)) == 8
    second.save_pretrained(tmp_path)
    assert len(hp.find_heads(BertModel.from_pretrained(tmp_path))) == 8
    first.set_attn_implementation("eager")
    assert first.encoder.layer[0].attention.self.config._attn_implementation == "eager"


def test_the_attention_implementation_can_be_changed_afterwards():
    """Pruned blocks with a config of their own follow the model's."""
    for family in ("phi3", "t5"):
        model = tiny_model(family)
        heads = hp.find_heads(model)
        gone = [f"{s.id}:{i}" for s in heads for i in s.groups[0]]
        pruned = hp.prune_(copy.deepcopy(model), hp.HeadMask.full(heads).without(*gone))
        expected = answer(pruned)
        pruned.set_attn_implementation("eager")
        assert difference(answer(pruned), expected).is_small
        maps = pruned(**example_inputs(pruned), output_attentions=True)
        assert (maps.get("attentions") or maps.get("encoder_attentions"))[0].shape[1] == heads.sites[0].num_heads - len(
            heads.sites[0].groups[0]
        )


def test_an_emptied_site_has_no_attention_maps():
    """A layer without heads answers `output_attentions` with zero maps."""
    model = tiny_model("llama", attn_implementation="eager")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0"))
    maps = model(**example_inputs(model), output_attentions=True).attentions
    assert [m.shape[1] for m in maps] == [0, 4]


def test_a_static_cache_works_with_ragged_and_empty_layers():
    """Layers of different widths, one of them a placeholder."""
    model = tiny_model("llama")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0", "decoder.1:0", "decoder.1:1"))
    prompt = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    dynamic = model.generate(**prompt, **settings)
    static = model.generate(**prompt, **settings, cache_implementation="static", disable_compile=True)
    assert dynamic.tolist() == static.tolist()


def test_tied_embeddings_stay_tied(tmp_path):
    """Pruning and reloading touch attention only."""
    model = tiny_model("gpt2")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("decoder.0:0"))
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr()


def test_frozen_weights_stay_frozen():
    """requires_grad follows each parameter."""
    model = tiny_model("bert")
    model.bert.encoder.layer[0].requires_grad_(False)
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:0", "encoder.1:0"))
    query = [layer.attention.self.query.weight for layer in model.bert.encoder.layer]
    assert [weight.requires_grad for weight in query] == [False, True]


def test_a_plan_tells_what_pruning_does_and_does_nothing():
    """Parameters and MACs before and after are those of the model before and after."""
    model = tiny_model("llama")
    before = state(model)
    mask = kept(model, decoder_0=[0, 1], decoder_1=[])
    plan = hp.plan(model, mask)
    assert state(model) == before
    pruned = hp.prune_(copy.deepcopy(model), mask)
    assert plan.parameters_before.total == sum(p.numel() for p in model.parameters())
    assert plan.parameters_after.total == sum(p.numel() for p in pruned.parameters())
    assert plan.after.to_dict()["sites"] == hp.find_heads(pruned).to_dict()["sites"]
    assert plan.to_dict()["removed"] == {"decoder.0": [2, 3], "decoder.1": [0, 1, 2, 3]}
    assert "decoder.0: 4 -> 2 heads, 2 -> 1 KV heads" in str(plan)
    assert plan.macs_after.total < plan.macs_before.total


def test_pruning_a_big_model_is_quick():
    """12 x 12 x 768 without verification; the limit is generous here, `make bench` has the figure."""
    import time

    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=100)).eval()
    mask = hp.HeadMask.random(hp.find_heads(model), keep=0.5, seed=0)
    start = time.perf_counter()
    hp.prune_(model, mask, verify=False)
    assert time.perf_counter() - start < 8


def test_edits_done_in_two_steps_are_edits_done_at_once():
    """Composition keeps places in the original."""
    model = tiny_model("gpt2")
    first = hp.prune_(copy.deepcopy(model), kept(model, decoder_0=[0, 2, 3]))
    hp.prune_(first, hp.HeadMask.full(hp.find_heads(first)).without("decoder.0:2"))
    once = hp.prune_(copy.deepcopy(model), kept(model, decoder_0=[0, 3]))
    stepwise, direct = (Edits.from_dict(m.config.headprune["edits"]) for m in (first, once))
    assert stepwise.slices == direct.slices
    assert stepwise.attributes == direct.attributes


@pytest.mark.parametrize("gqa", ["groups", "", 3])
def test_an_unknown_way_of_shrinking_is_refused(llama, gqa):
    """With the ways there are."""
    with pytest.raises(MaskError, match="'group', 'query', 'expand'"):
        hp.prune_(llama, hp.HeadMask.full(hp.find_heads(llama)), gqa=gqa)


def test_nothing_of_an_emptied_block_is_left_but_its_output_bias():
    """Persistent vectors, sinks and the like leave with the last head: not counted, not saved."""
    model = tiny_model("all_attention")
    heads = hp.find_heads(model)
    block = f"{heads.sites[0].path}."
    hp.prune_(model, hp.HeadMask.full(heads).without(heads.sites[0].id))
    assert [name for name, _ in model.named_parameters() if name.startswith(block)] == [f"{block}o_proj.bias"]
    assert not [name for name in model.state_dict() if name.startswith(block) and "persistent" in name]


def test_expanding_one_group_in_a_fused_projection():
    """Its keys and values lie side by side, and all heads own both; Falcon's code knows but one group for all."""
    for family, options in (("phi3", {"num_key_value_heads": 1}), ("falcon", {"multi_query": True})):
        model = AutoModelForCausalLM.from_config(tiny_config(family, **options)).eval()
        mask = hp.HeadMask.full(hp.find_heads(model)).without("decoder.0:1", "decoder.1:0")
        if family == "phi3":
            check_equal(model, mask, gqa="expand")
        else:
            with pytest.raises(UnsupportedModelError, match="cannot expand a projection"):
                hp.prune_(model, mask, gqa="expand")
