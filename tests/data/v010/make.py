"""Makes the files beside it (all but itself and mine.toml), with headprune 0.1.0: run it with commit 44180f0, in an
environment with its extras: PYTHONPATH=that/src python make.py. Later code must load them and answer as they say."""

from __future__ import annotations

import copy
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import headprune as hp

HERE = Path(__file__).parent
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [4, 3, 12, 13, 14, 2]])
DECODED = torch.tensor([[2, 11, 9, 4], [2, 17, 3, 21]])
METHODS = ("sensitivity", "reconstruction", "magnitude", "ablation", "random", "fisher", "entropy", "output-norm")
SENTENCE = "the cat sat on a mat and the dog ran to it while birds sang over old trees in spring"

BERT = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16,
                  max_position_embeddings=16, num_labels=3)  # fmt: skip
GPT2 = GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=4, n_positions=16, n_inner=24, bos_token_id=0,
                  eos_token_id=1)  # fmt: skip
LLAMA = LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=8,
                    num_key_value_heads=4, max_position_embeddings=32)  # fmt: skip
BART = BartConfig(vocab_size=32, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                  decoder_attention_heads=4, encoder_ffn_dim=16, decoder_ffn_dim=16,
                  max_position_embeddings=16)  # fmt: skip
T5 = T5Config(vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_decoder_layers=2, num_heads=4,
              decoder_start_token_id=0)  # fmt: skip
MEMORY = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "memory_length": 6}


def shaken(model: Any) -> Any:
    """Every weight off its first value, so that every head and bias matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def bert() -> Any:
    return shaken(BertForSequenceClassification(copy.deepcopy(BERT)))


def gpt2() -> Any:
    return shaken(GPT2LMHeadModel(copy.deepcopy(GPT2)))


def llama() -> Any:
    return shaken(LlamaForCausalLM(copy.deepcopy(LLAMA)))


def bart() -> Any:
    return shaken(BartForConditionalGeneration(copy.deepcopy(BART)))


def t5() -> Any:
    return shaken(T5ForConditionalGeneration(copy.deepcopy(T5)))


def all_attention() -> Any:
    return shaken(hp.AllAttentionForCausalLM(hp.AllAttentionConfig(**MEMORY, num_persistent=5)))


def transformer_xl() -> Any:
    return shaken(hp.TransformerXLForCausalLM(hp.TransformerXLConfig(**MEMORY, intermediate_size=24)))


def without(model: Any, *gone: str, **ways: Any) -> Any:
    return hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without(*gone), **ways)


def calibration(labels: torch.Tensor | None = None) -> list[dict[str, torch.Tensor]]:
    """A few batches to score and repair on."""
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randint(1, 32, (4, 8), generator=generator) for _ in range(3)]
    return [{"input_ids": ids, "labels": ids if labels is None else labels} for ids in batches]


def kept(model: Any, *, neurons: bool = False) -> dict[str, list[int]]:
    return {site.id: list(site.kept) for site in hp.find_heads(model, neurons=neurons)}


def answer(model: Any, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    with torch.no_grad():
        found = model(**inputs).logits
    return json.loads(json.dumps(found.tolist()), parse_float=lambda text: float(f"{float(text):.9g}"))


def tell(folder: Path, model: Any, auto: str, **more: Any) -> None:
    """What the model answers, beside its checkpoint."""
    inputs = {"input_ids": IDS}
    if auto == "AutoModelForSeq2SeqLM":
        inputs["decoder_input_ids"] = DECODED
    told = {
        "made_with": f"headprune {hp.__version__}, transformers {transformers.__version__}, torch {torch.__version__}",
        "auto": auto, "inputs": {name: ids.tolist() for name, ids in inputs.items()}, "logits": answer(model, inputs),
        "kept": kept(model), **more,
    }  # fmt: skip
    (folder / "answers.json").write_text(json.dumps(told) + "\n")


def checkpoint(name: str, model: Any, auto: str = "AutoModelForCausalLM", **more: Any) -> None:
    model.save_pretrained(HERE / "checkpoints" / name)
    tell(HERE / "checkpoints" / name, model, auto, **more)


def pruned() -> None:
    classifier = "AutoModelForSequenceClassification"
    ragged = without(bert(), "encoder.0:1", "encoder.0:2", "encoder.1", about={"by": "hand", "on": "nothing"})
    checkpoint("bert", ragged, classifier)
    checkpoint("bert-skip", without(bert(), "encoder.0", empty_site="skip"), classifier)
    checkpoint("llama", without(llama(), "decoder.0:2", "decoder.0:3", "decoder.1:0", "decoder.1:1"))
    checkpoint("llama-expand", without(llama(), "decoder.0:1", "decoder.1:0", "decoder.1:7", gqa="expand"))
    checkpoint("bart", without(bart(), "cross.0:1", "cross.1", "encoder.0:3", "decoder.1:0"), "AutoModelForSeq2SeqLM")
    checkpoint("t5", without(t5(), "cross.0:0", "cross.1:2", "encoder.0:1", "decoder.0:3"), "AutoModelForSeq2SeqLM")
    checkpoint("gpt2", without(without(gpt2(), "decoder.0:0", "decoder.1:3"), "decoder.1:1"))  # in two prunings
    checkpoint("all-attention", without(all_attention(), "decoder.0:2", "decoder.1:0", "decoder.1:1"))
    checkpoint("transformer-xl", without(transformer_xl(), "decoder.0:1", "decoder.1:3"))
    thin = gpt2()
    both = hp.find_heads(thin, neurons=True)
    mask = hp.HeadMask.full(both).without("decoder.0:1", "neurons.0:3", "neurons.0:17", "neurons.1:5")
    hp.prune_(thin, mask)
    checkpoint("neurons", thin, neurons=kept(thin, neurons=True))
    folder = hp.export(without(llama(), "decoder.0", "decoder.1:4", "decoder.1:5"), HERE / "standalone", "standalone")
    tell(folder, transformers.AutoModelForCausalLM.from_pretrained(folder).eval(), "AutoModelForCausalLM")


def repaired() -> None:
    for method, make in (("least-squares", gpt2), ("bias", bart)):
        model = make()
        mask = hp.HeadMask.random(hp.find_heads(model), prune=0.5, seed=3)
        batches = calibration()
        hp.recover_(model, mask, batches, method=method)
        auto = "AutoModelForCausalLM" if make is gpt2 else "AutoModelForSeq2SeqLM"
        checkpoint(f"repaired-{method}", hp.prune_(model, mask, about={"by": "chance"}), auto)


def gated() -> None:
    """Gates that are partly closed, by kind; one on a model that had been pruned before."""
    made: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
        "hard-concrete": (bert, {"temperature": 0.5, "rule": "clip"}, "AutoModelForSequenceClassification"),
        "binary-concrete": (llama, {"seed": 7}, "AutoModelForCausalLM"),
        "exact-k": (lambda: without(gpt2(), "decoder.0:2"), {"keep": 4}, "AutoModelForCausalLM"),
    }
    for kind, (make, options, auto) in made.items():
        model = make()
        gates = hp.attach_gates(model, kind, **options)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for parameter in gates.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 3)
        model.eval()
        told: dict[str, Any] = {"kind": kind, "mask": gates.mask().to_dict(), "probabilities": gates.probabilities()}
        told["removed"] = answer(hp.gates_of(copy.deepcopy(model)).remove_(), {"input_ids": IDS})
        checkpoint(f"gates-{kind}", model, auto, gates=told)


def values() -> None:
    """Head maps, scores and masks: of a whole classifier, and of one that was pruned before."""
    labels = torch.tensor([0, 1, 2, 1])
    for name, model in (("whole", bert()), ("pruned", without(bert(), "encoder.0:1", "encoder.1:2"))):
        folder = HERE / "values" / name
        folder.mkdir(parents=True)
        heads = hp.find_heads(model)
        (folder / "heads.json").write_text(heads.to_json())
        for method in METHODS if name == "whole" else METHODS[:1]:
            scores = hp.score(model, calibration(labels), method=method, name="random tokens", seed=5)
            mask = hp.select(scores, heads, prune=0.5, normalize="site")
            (folder / f"scores-{method}.json").write_text(scores.to_json())
            (folder / f"mask-{method}.json").write_text(mask.to_json())


def told(place: Path, *words: str) -> str:
    """What a command prints. Paths are relative, so that none of this machine is stored."""
    done = subprocess.run(
        [sys.executable, "-m", "headprune", *words], cwd=place, capture_output=True, text=True, check=True
    )
    return done.stdout


def texts(folder: Path) -> None:
    folder.mkdir()
    chosen = random.Random(0)
    for part, lines in (("train", 60), ("dev", 12), ("test", 12)):
        text = "\n".join(" ".join(chosen.choice(SENTENCE.split()) for _ in range(8)) for _ in range(lines))
        (folder / f"{part}.txt").write_text(text + "\n")


def commands(place: Path) -> None:
    """What the commands write: a language model and its scores, ablation, curve, prunings and gates."""
    data = ("--task", "stream-lm", "--data-dir", "text", "--max-length", "16")
    told(place, "train-lm", "--data-dir", "text", "--preset", "tiny", "--width", "16", "--persistent", "8",
         "--updates", "12", "--seed", "1", "--out", "writer")  # fmt: skip
    told(place, "inspect", "writer", "--out", "inspected")
    told(place, "score", "writer", *data, "--split", "dev", "--out", "scores")
    told(place, "ablate", "writer", *data, "--out", "ablation")
    told(place, "curve", "writer", *data, "--scores", "scores/scores.json", "--steps", "4", "--random", "1",
         "--out", "curve")  # fmt: skip
    told(place, "prune", "writer", "--scores", "scores/scores.json", "--prune", "50%", "--out", "small")
    told(place, "gates", "writer", *data, "--gate", "binary-concrete", "--keep", "50%", "--updates", "6",
         "--gate-lr", "0.5", "--out", "gated")  # fmt: skip
    told(place, "evaluate", "small", *data, "--out", "evaluated")
    shutil.copytree(place, HERE / "commands", ignore=shutil.ignore_patterns("*.html", "*.svg", "*.js", "checkpoints"))


def run(place: Path) -> None:
    """A run of the preset, without what its trials wrote beside their results, and its report."""
    shutil.copy(HERE / "mine.toml", place)
    given = ("run", "mine.toml", "--input", "text=text")
    folder = HERE / "run"
    folder.mkdir()
    (folder / "planned.txt").write_text(told(place, *given, "--dry-run"))
    told(place, *given, "--out", "runs")
    for path in sorted((place / "runs" / "trials").glob("*.json")):
        content = json.loads(path.read_text())
        content["environment"]["host"] = "here"  # no machine's name
        path.write_text(json.dumps(content, indent=1))
    (folder / "report.json").write_text(told(place, "report", "runs", "-o", "report.md", "--json"))
    shutil.copy(place / "report.md", folder)
    shutil.copytree(place / "runs" / "trials", folder / "runs" / "trials")
    shutil.copy(place / "runs" / "run.json", folder / "runs")


def main() -> None:
    for name in ("checkpoints", "standalone", "values", "commands", "run"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    torch.manual_seed(0)
    pruned()
    repaired()
    gated()
    values()
    with tempfile.TemporaryDirectory() as place:
        texts(Path(place, "text"))
        commands(Path(place))
        run(Path(place))


if __name__ == "__main__":
    main()
