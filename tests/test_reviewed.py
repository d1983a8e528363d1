"""Ways in which people use pruned models that once went wrong."""

from __future__ import annotations

import copy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BartForCausalLM,
    BertModel,
    CLIPVisionModel,
    EncoderDecoderModel,
)
from typer.testing import CliRunner

import headprune as hp
from headprune.checkpoint.load_model import load_model
from headprune.cli.app import app
from headprune.equality import difference
from headprune.errors import CheckpointError, ExampleError, HeadpruneError, MaskError, UnknownNameError
from headprune.structure.run import run
from tests.families.tiny import tiny_config, tiny_model


def answer(model, batch=None):
    with torch.no_grad():
        return run(model, batch)


def full(model):
    return hp.HeadMask.full(hp.find_heads(model))


@pytest.mark.parametrize("family", ["bert", "mpnet", "gpt2", "t5", "wav2vec2"])
def test_a_model_in_training_mode_can_be_pruned(family):
    """Dropout is off while blocks are compared, and on again afterwards."""
    model = tiny_model(family).train()
    mask = full(model).without(hp.find_heads(model).heads()[0])
    with hp.masked(model, mask):
        expected = answer(model)
    hp.prune_(model, mask)
    assert model.training
    assert difference(answer(model), expected).is_small


def test_inference_mode_hides_nothing():
    """Neither finding nor pruning depends on the caller's gradient mode."""
    model = tiny_model("bert")
    with torch.inference_mode():
        batch = {"input_ids": torch.tensor([[3, 4, 5]])}
        assert len(hp.find_heads(model)) == len(hp.find_heads(model, example=batch)) == 8
        hp.prune_(model, full(model).without("encoder.0:1"))
    model(input_ids=torch.tensor([[3, 4, 5]])).logits.sum().backward()
    assert len(hp.find_heads(model)) == 7


@pytest.mark.parametrize(("family", "targets"), [("bert", ["query", "value"]), ("llama", ["q_proj", "v_proj"])])
def test_lora_passes_over_emptied_sites(family, targets, tmp_path):
    """It trains what is left, merges, and reloads."""
    from peft import LoraConfig, PeftModel, get_peft_model

    model = tiny_model(family)
    site = hp.find_heads(model).sites[0].id
    hp.prune_(model, full(model).without(site))
    model.save_pretrained(tmp_path / "base")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).eval()
    batch = {"input_ids": torch.tensor([[3, 4, 5]])}
    expected = answer(adapted, batch)
    adapted.save_pretrained(tmp_path / "adapter")
    base = type(model).from_pretrained(tmp_path / "base").eval()
    assert difference(answer(PeftModel.from_pretrained(base, tmp_path / "adapter").eval(), batch), expected).is_small
    assert difference(answer(adapted.merge_and_unload(), batch), expected).is_small


def test_from_pretrained_takes_its_argument_by_name(tmp_path):
    """As transformers documents it."""
    tiny_model("bert").save_pretrained(tmp_path)
    assert isinstance(BertModel.from_pretrained(pretrained_model_name_or_path=tmp_path), BertModel)


def test_saving_leaves_foreign_files_and_other_variants(tmp_path):
    """Only weight files of the same save are replaced."""
    model = tiny_model("bert")
    hp.prune_(model, full(model).without("encoder.0:1"))
    model.save_pretrained(tmp_path, variant="fp16")
    (tmp_path / "model_ema.safetensors").write_text("mine")
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    model.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir() if "safetensors" in path.name}
    assert names == {"model.safetensors", "model.fp16.safetensors", "model_ema.safetensors"}


def test_saving_through_a_link_to_another_disk(tmp_path):
    """The files are first written on the disk where they end up: moving across disks is not possible."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here to link to")
    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        (tmp_path / "link").symlink_to(elsewhere)
        model = tiny_model("bert")
        hp.prune_(model, full(model).without("encoder.0:1"))
        model.save_pretrained(tmp_path / "link")
        assert {p.name for p in Path(elsewhere).iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert {p.name for p in tmp_path.iterdir()} == {"link"}


def test_companions_of_a_model_come_along(tmp_path):
    """Weights of its parts, its card, and nothing twice where the target lies inside the source."""
    source = tmp_path / "source"
    tiny_model("bert").save_pretrained(source)
    (source / "2_Dense").mkdir()
    (source / "2_Dense" / "model.safetensors").write_text("dense")
    (source / "README.md").write_text("# Mine\n")
    words = ["prune", str(source), "--heads", "encoder.0:1", "--out", str(source / "small")]
    CliRunner().invoke(app, words, catch_exceptions=False)
    small = source / "small"
    assert (small / "2_Dense" / "model.safetensors").read_text() == "dense"
    assert (small / "README.md").read_text().startswith("# Mine")
    assert "Removed attention heads" in (small / "README.md").read_text()
    assert not (small / "small").exists()


def test_measuring_on_an_example_finds_heads_on_it():
    """Also where none can be made from a config."""
    model = nn.Module()
    model.attention = nn.MultiheadAttention(16, 4, batch_first=True)
    model.forward = lambda x: model.attention(x, x, x)[0]
    assert hp.measure(model.eval(), example={"x": torch.randn(2, 5, 16)}, repeats=0).heads == 4


def test_the_command_line_explains_what_it_cannot_load(tmp_path):
    """A truncated file, and a device that is not there."""
    tiny_model("bert").save_pretrained(tmp_path / "model")
    with pytest.raises(HeadpruneError, match="device 'nowhere'"):
        load_model(str(tmp_path / "model"), "nowhere")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_model(str(tmp_path / "model"), "cpu")


def test_a_wrong_argument_is_not_called_a_damaged_file(tmp_path):
    """transformers' own error comes through."""
    model = tiny_model("bert")
    hp.prune_(model, full(model).without("encoder.0:1"))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="nope"):
        type(model).from_pretrained(tmp_path, attn_implementation="nope")


def test_a_move_that_fails_puts_everything_back(tmp_path):
    """A folder in the place of a file that cannot be moved over."""
    model = tiny_model("bert")
    hp.prune_(model, full(model).without("encoder.0:1"))
    model.save_pretrained(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    hp.prune_(model, full(model).without("encoder.1:1"))
    from headprune.checkpoint import save

    (tmp_path / "x").mkdir()
    new, old = tmp_path / "x" / "new", tmp_path / "x" / "old"
    new.mkdir()
    old.mkdir()
    for name in ("config.json", "model.safetensors"):
        (new / name).write_text("new")
    (old / "model.safetensors").mkdir()  # the second move out of the target fails
    with pytest.raises(OSError, match=r"model\.safetensors"):
        save._exchange(new, old, tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path):
    """transformers would log a line and go on."""
    model = tiny_model("bert")
    hp.prune_(model, full(model).without("encoder.0:1"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is a file"):
        model.save_pretrained(tmp_path / "file")


def test_a_pruned_base_model_is_known_to_the_model_around_it(tmp_path):
    """Original indices, and a checkpoint that loads."""
    model = tiny_model("bert")
    hp.prune_(model.bert, full(model.bert).without("encoder.0:1"))
    site = hp.find_heads(model)["encoder.0"]
    assert (site.kept, site.original_num_heads) == ((0, 2, 3), 4)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert difference(answer(loaded), answer(model)).largest == 0.0


def test_a_part_whose_config_does_not_tell_is_not_saved(tmp_path):
    """A tower of a pruned CLIP, and a model pruned inside a plain module: refused, not unloadable."""
    clip = tiny_model("clip")
    hp.prune_(clip, full(clip).without("vision.encoder.0:1"))
    with pytest.raises(CheckpointError, match="part of another"):
        clip.vision_model.save_pretrained(tmp_path / "tower")
    clip.save_pretrained(tmp_path / "clip")
    with pytest.raises(CheckpointError, match="load the whole and take the part"):
        CLIPVisionModel.from_pretrained(tmp_path / "clip")

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_model("bert")

        def forward(self, input_ids):
            return self.inner(input_ids).logits

    around = Around()
    batch = {"input_ids": torch.tensor([[3, 4, 5]])}
    hp.prune_(around, hp.HeadMask.full(hp.find_heads(around, example=batch)).without("encoder.0:1"), example=batch)
    with pytest.raises(CheckpointError, match="part of another"):
        around.inner.save_pretrained(tmp_path / "inner")


def test_a_pruned_bert_in_an_encoder_decoder_saves_and_loads(tmp_path):
    """Its own config tells, and is part of the whole's."""
    encoder = BertModel(tiny_config("bert")).eval()
    hp.prune_(encoder, full(encoder).without("encoder.0:1"))
    decoder = tiny_model("bert", auto=AutoModelForCausalLM, is_decoder=True, add_cross_attention=True)
    model = EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    batch = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[6, 7]])}
    expected = answer(model, batch).logits
    model.save_pretrained(tmp_path)
    loaded = EncoderDecoderModel.from_pretrained(tmp_path).eval()
    assert torch.equal(answer(loaded, batch).logits, expected)
    names = [site.id for site in hp.find_heads(model, example=batch)]
    assert names == ["encoder.0", "encoder.1", "decoder.0", "decoder.1", "cross.0", "cross.1"]


@pytest.mark.parametrize("heads", [[0, 1, 2], [0, 1, 77], [0]])
def test_an_edited_bias_cut_is_refused(heads, tmp_path):
    """T5's position bias must be cut to the heads that are left."""
    import json

    model = tiny_model("t5")
    hp.prune_(model, full(model).without("encoder.0:1"))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for entry in config["headprune"]["edits"]["attention"].values():
        entry["bias_heads"] = heads
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="edited by hand"):
        type(model).from_pretrained(tmp_path)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "bert"])
@pytest.mark.parametrize("attention", ["eager", None])
def test_left_padding_does_not_change_what_is_found(family, attention):
    """Padded rows attend to everything; real ones are looked at."""
    model = tiny_model(family, **({"attn_implementation": attention} if attention else {}))
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    batch = {"input_ids": torch.randint(3, 99, (2, 5)), "attention_mask": mask}
    found = hp.find_heads(model, example=batch)
    fresh = hp.find_heads(tiny_model(family))
    assert [(s.id, s.groups) for s in found] == [(s.id, s.groups) for s in fresh]


def test_an_example_of_one_position_is_refused():
    """It cannot show what is a key and what is a query."""
    with pytest.raises(ExampleError, match="at least 2 positions"):
        hp.find_heads(tiny_model("llama"), example={"input_ids": torch.tensor([[5]])})


def test_a_pickled_pruned_model_opens_in_a_fresh_process(tmp_path):
    """The attention function of pruned blocks is known as soon as headprune is imported."""
    model = tiny_model("t5")
    hp.prune_(model, full(model).without("encoder.0:1", "decoder.0"))
    torch.save(model, tmp_path / "model.pt")
    code = (
        "import sys, torch, headprune, transformers.models.t5.modeling_t5\n"
        "model = torch.load(sys.argv[1], weights_only=False)\n"
        "ids = torch.tensor([[3, 4, 5]])\n"
        "print(float(model(input_ids=ids, decoder_input_ids=ids).logits.detach().sum()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.pt")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ids = torch.tensor([[3, 4, 5]])
    assert float(done.stdout.split()[-1]) == pytest.approx(
        model(input_ids=ids, decoder_input_ids=ids).logits.sum().item(), rel=1e-4
    )


def test_a_class_that_runs_only_a_part_shows_that_part(tmp_path):
    """BART's decoder alone never runs its cross-attention."""
    model = tiny_model("bart")
    hp.prune_(model, full(model).without("decoder.0:1", "cross.0:2"))
    model.save_pretrained(tmp_path)
    decoder = BartForCausalLM.from_pretrained(tmp_path).eval()
    assert [(s.id, s.kept) for s in hp.find_heads(decoder)] == [("decoder.0", (0, 2, 3)), ("decoder.1", (0, 1, 2, 3))]


def test_without_groups_every_unit_is_a_head():
    """`group` and `query` on plain multi-head attention."""
    heads = hp.find_heads(tiny_model("bert"))
    for unit in ("head", "group", "query"):
        assert len(hp.HeadMask.random(heads, prune=0.25, seed=0, unit=unit)) == 6


def test_two_models_of_a_pruned_config_go_their_own_ways(tmp_path):
    """A second model built from a pruned model's config is pruned without touching the first."""
    first = BertModel(tiny_config("bert")).eval()
    hp.prune_(first, full(first).without("encoder.0:1"))
    second = BertModel(first.config).eval()
    hp.prune_(second, full(second).without("encoder.1:2"))
    first.save_pretrained(tmp_path)
    assert len(hp.find_heads(BertModel.from_pretrained(tmp_path))) == 7
    assert len(hp.find_heads(second)) == 6


@pytest.mark.parametrize("kept", [[1.9], "12", 3, ["a"], [None]])
def test_heads_that_are_not_whole_numbers_are_refused(kept):
    """Never rounded, never read character by character."""
    with pytest.raises(MaskError):
        hp.HeadMask.from_dict(hp.find_heads(tiny_model("bert")), {"encoder.0": kept})


def test_odd_values_get_our_errors():
    """Wherever a person can put one."""
    model = tiny_model("bert")
    heads = hp.find_heads(model)
    with pytest.raises(UnknownNameError):
        hp.HeadMask.full(heads).without(3)
    with pytest.raises(HeadpruneError):
        hp.HeadMask.from_json(None)
    with pytest.raises(HeadpruneError):
        hp.find_heads("bert-base")
    with pytest.raises(HeadpruneError):
        hp.find_heads(model, example=[1, 2])
    for numbers in (0.5, "abcd"):
        with pytest.raises(MaskError), hp.masked(model, {"encoder.0": numbers}):
            pass
    with pytest.raises(MaskError, match="empty_site"):
        hp.prune_(model, hp.HeadMask.empty(heads), empty_site="bogus", verify=False)


def test_skip_holds_for_numbers_too():
    """All zero is emptied, however it is written."""
    model = tiny_model("bert")
    with hp.masked(model, full(model).without("encoder.0"), empty_site="skip"):
        expected = answer(model)
    with hp.masked(model, {"encoder.0": [0.0] * 4}, empty_site="skip"):
        assert difference(answer(model), expected).largest == 0.0


def test_a_masked_model_is_not_copied():
    """The copy would stay masked for ever."""
    model = tiny_model("bert")
    with hp.masked(model, full(model).without("encoder.0")), pytest.raises(MaskError, match="copy"):
        copy.deepcopy(model)


def test_asking_for_the_spec_does_not_use_the_hook_up():
    """Tools probe for transformers without importing it."""
    code = (
        "import headprune, importlib.util, sys\n"
        "importlib.util.find_spec('transformers.modeling_utils')\n"
        "import transformers.modeling_utils as m\n"
        "left = [f for f in sys.meta_path if m.__name__ in getattr(f, 'waiting', ())]\n"
        "print('_headprune_installed' in vars(m.PreTrainedModel), bool(left))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_plain_pytorch_attention_on_raw_inputs():
    """nn.MultiheadAttention fed with the input itself; sequence-first and batch-first."""
    for batch_first in (True, False):

        class Model(nn.Module):
            def __init__(self, batch_first=batch_first):
                super().__init__()
                self.attention = nn.MultiheadAttention(16, 4, batch_first=batch_first)

            def forward(self, x):
                return self.attention(x, x, x)[0]

        torch.manual_seed(0)
        model, x = Model().eval(), torch.randn(3, 3, 16)
        heads = hp.find_heads(model, example={"x": x})
        assert [(s.id, s.num_heads) for s in heads] == [("encoder.0", 4)]
        weights = torch.ones(3, 4)
        weights[1, 2] = 0.0
        with torch.no_grad():
            plain = model(x)
            with hp.masked(model, {"encoder.0": weights}):
                found = model(x)
        changed = (found - plain).abs().sum(-1) > 1e-6
        assert changed.all(1 if batch_first else 0).tolist() == [False, True, False]
        mask = hp.HeadMask.full(heads).without("encoder.0:2")
        with torch.no_grad(), hp.masked(model, mask):
            expected = model(x)
        hp.prune_(model, mask, example={"x": x})
        with torch.no_grad():
            assert torch.allclose(model(x), expected, atol=1e-6)


@pytest.mark.parametrize("family", ["phi3", "llama", "gpt2"])
def test_a_cache_counts_tokens_although_its_first_layer_is_empty(family):
    """In two steps as in one; Phi-3 reads the number of heads from the config while it runs."""
    config = tiny_config(family)
    config.sliding_window = None
    model = AutoModelForCausalLM.from_config(config).eval()
    hp.prune_(model, full(model).without("decoder.0"))
    tokens = torch.tensor([[3, 4, 5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        whole = model(input_ids=tokens).logits[:, 4:]
        first = model(input_ids=tokens[:, :4], use_cache=True)
        assert first.past_key_values.get_seq_length() == 4
        second = model(input_ids=tokens[:, 4:], past_key_values=first.past_key_values)
    assert difference(second.logits, whole).is_small


def test_lora_leaves_out_the_projection_of_an_emptied_site():
    """By its name, as the page of pitfalls says."""
    from peft import LoraConfig, get_peft_model

    model = tiny_model("llama")
    hp.prune_(model, full(model).without("decoder.0"))
    left_out = [site.output for site in hp.find_heads(model) if not site.num_heads]
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "o_proj"], exclude_modules=left_out))
    assert {name.split(".layers.")[1][0] for name, p in adapted.named_parameters() if p.requires_grad} == {"1"}


def test_a_model_that_is_broken_is_not_said_to_be_coupled():
    """Weights that are not finite give answers that equal nothing."""
    model = tiny_model("bert")
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.self.value.weight[0, 0] = float("nan")
    with pytest.raises(HeadpruneError, match="not finite"):
        hp.prune_(model, full(model).without("encoder.0:1"))
    with pytest.raises(HeadpruneError, match="loss is nan"):
        hp.score(model, [{"input_ids": torch.tensor([[3, 4, 5]]), "labels": torch.tensor([1])}])


def test_neurons_of_a_model_that_mixes_precisions_are_found():
    """T5 in half precision keeps the last projection of its feed-forward parts in float32."""
    model = tiny_model("t5").half()
    expected = [site.id for site in hp.find_heads(model, neurons=True).neurons]
    for name, module in model.named_modules():
        if name.endswith(".wo"):
            module.float()
    assert [site.id for site in hp.find_heads(model, neurons=True).neurons] == expected != []
