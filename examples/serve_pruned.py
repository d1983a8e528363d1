"""Export a pruned model in three formats, and answer with it in a process that has no headprune.

Run: python examples/serve_pruned.py [MODEL]        (needs the extra onnx)
MODEL is an encoder for `standalone` and `onnx`; without it, the MiniLM of the demo extra. `plain` is for families whose
config can say how wide a head is, so that a small Llama is exported that way.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def export(folder: Path) -> None:
    """The side that prunes. Masks are made without data here; yours come from scores on your data."""
    import headprune as hp

    name = sys.argv[1] if len(sys.argv) > 1 else hp.demo_model()
    encoder, tokenizer = AutoModel.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)
    hp.prune_(encoder, hp.select(hp.score(encoder, method="magnitude"), prune=0.5))
    hp.export(encoder, folder / "standalone", format="standalone")
    hp.export(encoder, folder / "onnx", format="onnx")
    llm = LlamaForCausalLM(LlamaConfig(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                       num_attention_heads=8, num_key_value_heads=4)).eval()  # fmt: skip
    same = hp.select(hp.score(llm, method="magnitude"), hp.find_heads(llm), prune=0.5, per="site", unit="group")
    hp.export(hp.prune_(llm, same), folder / "plain", format="plain")
    batch, ids = dict(tokenizer(["some heads", "are gone"], padding=True, return_tensors="pt")), torch.arange(9)[None]
    with torch.no_grad():
        answers = {"batch": batch, "ids": ids, "encoder": encoder(**batch)[0], "llm": llm(ids).logits}
    torch.save(answers, folder / "answers.pt")


def serve(folder: Path) -> None:
    """The side that answers."""
    import onnxruntime

    sys.modules["headprune"] = None  # as if it were not installed: importing it would fail from here on
    told = torch.load(folder / "answers.pt")
    standalone = AutoModel.from_pretrained(folder / "standalone", trust_remote_code=True).eval()
    plain = AutoModelForCausalLM.from_pretrained(folder / "plain").eval()
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    inputs = {one.name: told["batch"][one.name].numpy() for one in session.get_inputs()}
    with torch.no_grad():
        found = {"standalone": (standalone(**told["batch"])[0], told["encoder"]),
                 "onnx": (torch.from_numpy(session.run(None, inputs)[0]), told["encoder"]),
                 "plain": (plain(told["ids"]).logits, told["llm"])}  # fmt: skip
    for name, (answer, expected) in found.items():
        print(f"{name}: loaded without headprune, answers differ by {(answer - expected).abs().max():.0e}")


if sys.argv[1:2] == ["serve"]:
    serve(Path(sys.argv[2]))
else:
    with TemporaryDirectory() as folder:
        export(Path(folder))
        subprocess.run([sys.executable, __file__, "serve", folder], check=True)
