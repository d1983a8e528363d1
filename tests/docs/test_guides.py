"""What the guides say is true: every code block is run, on toy models and toy data."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app, load_command
from tests.checkpoint.exports.gguf.llms import smollm_tokenizer
from tests.families.tiny import tiny_model
from tests.places import DOCS, V4
from tests.tasks.parallel import write_pairs
from tests.tasks.toy import sentences, write_data, write_model

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [4, 3, 12, 13, 14, 2, 1]])

GUIDES = ["index.md", "pitfalls.md", *sorted(f"{p.parent.name}/{p.name}" for p in DOCS.glob("[gc]*s/*.md"))]
OLDER = ["from-v4.md", "without-training.md", "deployment.md", "language-models.md", "experiments.md", "cluster.md",
         "translation.md"]  # fmt: skip

# Pages whose code speaks of a reader's own model: what stands for it here.
TINY_BERT = """
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification
import headprune as hp
sizes = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
def fresh():
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**sizes)).eval()
model, batch = fresh(), {"input_ids": torch.arange(1, 13).view(2, 6), "labels": torch.tensor([0, 1])}
batches = [batch]
"""
OWN = {
    "from-v4.md": TINY_BERT + "old = fresh(); old.save_pretrained('pruned-by-v4'); model = fresh()",
    "without-training.md": TINY_BERT,
}
# Between two blocks of a page the reader takes another model.
ANOTHER = {"from-v4.md": "model = fresh()", "without-training.md": "model = fresh()"}
# Data of the harness come from a network; tests/libraries/test_evaluation_harness.py runs it on local ones.
NETWORK = {"deployment.md"}


def blocks(page, *languages):
    return [text for kind, text in re.findall(r"```(\w*)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
            if kind in languages]  # fmt: skip


def commands(page):
    """Every command of a page, continued lines joined, comments off."""
    text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    lines = [line.removeprefix("$ ").split("  #")[0].strip() for line in text.splitlines() if line.startswith("$ ")]
    return [" ".join(line.split()) for line in lines]


def ours(page):
    return [shlex.split(line)[1:] for line in commands(page) if line.startswith("headprune ")]


@pytest.mark.parametrize("page", GUIDES)
def test_guides_are_short_and_say_what_is_next(page):
    """At most 120 lines (pitfalls are a list), only blocks that are run, and a way on at the end."""
    text = (DOCS / page).read_text()
    kinds = {kind for kind, _ in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)}
    assert kinds <= {"python", "console"}
    assert page == "pitfalls.md" or len(text.splitlines()) <= 125
    assert "](" in re.split(r"^## (?:Next|What to read next)$", text, flags=re.M)[1]
    rest = [line for line in commands(page) if not line.startswith("headprune ")]
    assert all(line.startswith("pip install") for line in rest), rest


PAGES = [page for page in (*GUIDES, *OLDER) if page not in NETWORK and blocks(page, "python")]


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, tmp_path, programs):
    """Its blocks one after the other, in a process and a folder of its own."""
    if page == "guides/report.md":
        run_store(tmp_path)
    done = programs.run("-c", f"\n{ANOTHER.get(page, '')}\n".join([OWN.get(page, ""), *blocks(page, "python")]),
                        cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_many_pages_have_python():
    """None of them is lost by the way it is looked for."""
    assert len(PAGES) >= 10


def run_store(folder):
    """What the first command of guides/report.md leaves, which its Python reads."""
    call(ours("guides/report.md")[0], folder)


def call(words, folder):
    before = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    finally:
        os.chdir(before)
    assert done.exit_code == 0, f"{words}: {done.output}"
    return done.stdout.strip()


def write_llm(folder):
    """A Llama with four groups of two heads, its tokenizer, and text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    words = smollm_tokenizer()
    words.pad_token = "<unk>"
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 8}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(vocab_size=len(words), num_key_value_heads=4, **sizes, **special)
    LlamaForCausalLM(config).save_pretrained(folder / "llm")
    words.save_pretrained(folder / "llm")
    (folder / "text").mkdir()
    for seed, part in enumerate(("train", "dev", "test")):
        text = "\n".join(text for text, _ in sentences(300, seed))
        (folder / "text" / f"{part}.txt").write_text(text)
    return {"path/to/llm": folder / "llm", "path/to/text": folder / "text"}


def write_reviews(folder):
    """A table of somebody's own."""
    rows = "\n".join(f"{text}\t{label}" for text, label in sentences(80, 0))
    (folder / "reviews").write_text(f"review\tstars\n{rows}\n")
    return folder / "reviews"


def toy_places(folder):
    return {
        "path/to/reviews": write_reviews(folder),
        "path/to/model": write_model(folder / "model"),
        "path/to/data": write_data(folder / "data", 60, 40),
        "path/to/pairs": write_pairs(folder / "pairs", train=80, dev=8, test=8),
        **write_llm(folder),
    }


@pytest.mark.parametrize("page", [page for page in GUIDES if ours(page)])
def test_the_commands_of_a_guide_run_one_after_the_other(page, tmp_path):
    """With toy models and data in the places of the paths."""
    places = toy_places(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    for words in ours(page):
        assert call([str(places.get(word, word)) for word in words], work), words
    for promised in re.findall(r"is in `([^`]+/[^`]+)`", (DOCS / page).read_text()):
        assert (work / promised).exists(), promised


EVERY = [(page, words) for page in (*OLDER, *(f"papers/{p.name}" for p in (DOCS / "papers").glob("*.md")))
         for words in ours(page)]  # fmt: skip


def test_the_commands_of_the_other_pages_are_spelt_right():
    """What takes hours is not run here; its options are read as the program reads them."""
    assert len(EVERY) > 60
    for page, words in EVERY:
        command = load_command(words[0])
        with command.make_context(words[0], list(words[1:])) as context:
            assert context.params, page
        if words[0] == "run" and "--all" not in words:
            check_preset(words, page)


def check_preset(words, page):
    from headprune.lab.experiments.library import find_preset

    if "--list" in words or "--copy" in words or "--show" in words:
        return
    scale = find_preset(words[1]).scale(words[words.index("--scale") + 1] if "--scale" in words else "small")
    given = {words[place + 1].split("=")[0] for place, word in enumerate(words) if word == "--input"}
    assert given == set(scale.inputs), f"{page}: {words}"


def test_the_methods_in_the_guide_are_all_there_are():
    """The table of docs/guides/methods.md names every scorer."""
    import headprune.scoring  # noqa: F401
    from headprune.scoring.run import scorers

    table = (DOCS / "guides/methods.md").read_text().split("## All scores")[1].split("## ")[0]
    named = {name for row in re.findall(r"^\| (`[^|]+) \|", table, re.M) for name in re.findall(r"`([\w-]+)`", row)}
    assert named == set(scorers)


def test_the_guide_runs(tmp_path, monkeypatch):
    """Every block of docs/from-v4.md, in order."""
    import re
    import shutil

    monkeypatch.chdir(tmp_path)
    shutil.copytree(V4 / "bert", tmp_path / "pruned-by-v4")
    text = (DOCS / "from-v4.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 3
    names = {
        "model": tiny_model("bert"), "AutoModelForSequenceClassification": AutoModelForSequenceClassification,
        "batch": {"input_ids": IDS, "labels": torch.tensor([0, 1])},
    }  # fmt: skip
    exec(blocks[0], names)
    assert names["model"].config.pruned_heads == {0: [1, 2], 1: [3]}
    names["model"] = tiny_model("bert")
    exec(blocks[1], names)
    assert names["mask"].grad.abs().sum() > 0
    exec(blocks[2], names)
    assert len(hp.find_heads(names["model"])) == 5
