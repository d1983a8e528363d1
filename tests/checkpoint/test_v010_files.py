"""Files that headprune 0.1.0 wrote load, answer and read as they did; tests/data/v010/make.py made them."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys

import pytest
import torch
import transformers

import headprune as hp
from headprune.cli import main
from tests.places import ROOT
from tests.stored import only_fields_of

DATA = ROOT / "tests" / "data" / "v010"
CHECKPOINTS = sorted(path.name for path in (DATA / "checkpoints").iterdir())
GATED = [name for name in CHECKPOINTS if name.startswith("gates-")]
SCORES = sorted(path.relative_to(DATA / "values") for path in (DATA / "values").rglob("scores-*.json"))
MARK = ", made by 0.1.0"
VERDICTS = {"agrees": "holds", "disagrees": "does not hold", "open": "open"}  # the words of 0.1.0, and today's
STREAM = ("--task", "stream-lm", "--data-dir", "text", "--max-length", "16")

# The code in a standalone folder must work beside whatever headprune is installed, and without any.
STANDALONE = """
import json, sys
from pathlib import Path

class Nothing:  # headprune cannot be imported here
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "headprune":
            raise ImportError("headprune is not installed here")

folder, told = Path(sys.argv[1]), json.loads(Path(sys.argv[1], "answers.json").read_text())
if sys.argv[2] == "with":
    import headprune
else:
    sys.meta_path.insert(0, Nothing())
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
with torch.no_grad():
    found = model(**{name: torch.tensor(ids) for name, ids in told["inputs"].items()}).logits
torch.testing.assert_close(found, torch.tensor(told["logits"]), atol=1e-6, rtol=1e-5)
assert ("headprune" in sys.modules) == (sys.argv[2] == "with")
print(type(model).__module__)
"""


def read(*parts):
    return json.loads(DATA.joinpath(*parts).read_text())


def loaded(folder, told):
    return getattr(transformers, told["auto"]).from_pretrained(folder).eval()


def answer(model, told):
    with torch.no_grad():
        return model(**{name: torch.tensor(ids) for name, ids in told["inputs"].items()}).logits


def assert_answers(found, logits):
    torch.testing.assert_close(found, torch.tensor(logits), atol=1e-6, rtol=1e-5)


def kept(model, *, neurons=False):
    return {site.id: list(site.kept) for site in hp.find_heads(model, neurons=neurons)}


def command(*words):
    """What a command prints, through the entry point that the script `headprune` has."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["headprune", *map(str, words)]
    try:
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    assert not ended.value.code, printed.getvalue()
    return printed.getvalue()


def near(content):
    """The same tree, with numbers as near as two machines compute them."""
    if isinstance(content, dict):
        return {name: near(inner) for name, inner in content.items()}
    if isinstance(content, list):
        return [near(inner) for inner in content]
    return pytest.approx(content, rel=1e-4, abs=1e-5) if isinstance(content, float) else content


@pytest.fixture
def place(tmp_path, monkeypatch):
    """What the commands wrote, in a folder to work in."""
    shutil.copytree(DATA / "commands", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_answers_as_it_did(name):
    """By the ordinary call, with the same heads left."""
    told = read("checkpoints", name, "answers.json")
    model = loaded(DATA / "checkpoints" / name, told)
    assert_answers(answer(model, told), told["logits"])
    assert kept(model) == told["kept"]
    if "neurons" in told:
        assert kept(model, neurons=True) == told["neurons"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_saved_again_is_the_same(name, tmp_path):
    """To the last bit, with what its config says of heads and gates."""
    told = read("checkpoints", name, "answers.json")
    model = loaded(DATA / "checkpoints" / name, told)
    model.save_pretrained(tmp_path)
    again = loaded(tmp_path, told)
    first, second = model.state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(answer(again, told), answer(model, told))
    assert hp.find_heads(again).to_dict() == hp.find_heads(model).to_dict()
    if name in GATED:
        assert hp.gates_of(again).mask().to_dict() == told["gates"]["mask"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_can_be_pruned_further(name, tmp_path):
    """Its heads keep the numbers that they had in the original model."""
    told = read("checkpoints", name, "answers.json")
    model = loaded(DATA / "checkpoints" / name, told)
    if name in GATED:
        with pytest.raises(hp.HeadpruneError, match="gates"):
            hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)))
        return
    heads = hp.find_heads(model)
    site = next(site for site in heads if len(site.groups) > 1)
    gone = [f"{site.id}:{head}" for head in site.groups[-1]]
    hp.prune_(model, hp.HeadMask.full(heads).without(*gone)).save_pretrained(tmp_path)
    assert kept(loaded(tmp_path, told)) == {
        **told["kept"], site.id: [head for head in told["kept"][site.id] if head not in site.groups[-1]]
    }  # fmt: skip


@pytest.mark.parametrize("name", GATED)
@pytest.mark.filterwarnings("ignore:.*of the gates are undecided")
def test_gates_are_on_the_loaded_model(name):
    """They say what they said, and what they fold into the weights when they go is the same."""
    told = read("checkpoints", name, "answers.json")
    model = loaded(DATA / "checkpoints" / name, told)
    gates = hp.gates_of(model)
    kinds = {"hard-concrete": hp.HardConcrete, "binary-concrete": hp.BinaryConcrete, "exact-k": hp.ExactK}
    assert all(type(gates.gate(site)) is kinds[told["gates"]["kind"]] for site in told["kept"])
    assert gates.mask().to_dict() == told["gates"]["mask"]
    assert gates.probabilities() == near(told["gates"]["probabilities"])
    small = gates.remove_()
    assert_answers(answer(small, told), told["gates"]["removed"])
    assert kept(small) == told["gates"]["mask"]


def test_a_standalone_checkpoint_loads_by_the_ordinary_call():
    """Where headprune is, without the code in its folder."""
    told = read("standalone", "answers.json")
    model = loaded(DATA / "standalone", told)
    assert type(model).__module__.startswith("transformers.")
    assert_answers(answer(model, told), told["logits"])
    assert kept(model) == told["kept"]


@pytest.mark.parametrize("headprune", ["with", "without"])
def test_a_standalone_checkpoint_loads_by_its_own_code(headprune, programs):
    """Whether headprune is imported or not: the code in the folder is that of 0.1.0 for ever."""
    done = programs.run("-c", STANDALONE, DATA / "standalone", headprune)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().startswith("transformers_modules.")


@pytest.mark.parametrize("path", SCORES, ids=str)
def test_scores_read_and_select_the_same_heads(path):
    """The numbers are those of the file, and half of the heads by them are those of the mask beside it."""
    folder, content = DATA / "values" / path.parent, read("values", path)
    heads = hp.HeadMap.from_json((folder / "heads.json").read_text())
    scores = hp.HeadScores.from_json((DATA / "values" / path).read_text())
    mask = hp.HeadMask.from_json((folder / path.name.replace("scores-", "mask-")).read_text(), heads)
    assert (scores.method, scores.data) == (content["method"], content["data"])
    assert {site: list(row) for site, row in scores.scores.items()} == near(content["scores"])
    assert {site: list(row) for site, row in scores.standard_errors.items()} == near(content["standard_errors"])
    assert hp.select(scores, heads, prune=0.5, normalize="site") == mask
    assert mask.to_dict() == read("values", path.parent, path.name.replace("scores-", "mask-"))["kept"]
    assert hp.HeadScores.from_json(scores.to_json()) == scores
    assert hp.HeadMask.from_json(mask.to_json()) == mask


@pytest.mark.parametrize("path", ["values/whole", "values/pruned", "commands/inspected"])
def test_a_head_map_reads(path):
    """Every site with its heads and groups."""
    content = read(path, "heads.json")
    heads = hp.HeadMap.from_json((DATA / path / "heads.json").read_text())
    assert heads.model_type == content["model_type"]
    for site, told in zip(heads, content["sites"], strict=True):
        assert (site.id, site.original_num_heads, list(site.kept)) == (
            told["id"], told["original_num_heads"], told["kept"]
        )  # fmt: skip
        assert [list(group) for group in site.groups] == told["groups"]
    assert hp.HeadMap.from_json(heads.to_json()).to_dict() == heads.to_dict()


def test_prune_takes_stored_scores_and_masks(place):
    """What would go is what went."""
    stored = read("commands", "small", "prune.json")
    told = json.loads(command("prune", "writer", "--scores", "scores/scores.json", "--prune", "50%", "--dry-run",
                              "--json"))  # fmt: skip
    assert {**told, "difference": stored["difference"], "out": "small"} == stored
    mask = place / "gated" / "keep-0.5" / "mask.json"
    told = json.loads(command("prune", "writer", "--mask", mask, "--dry-run", "--json"))
    assert told["kept"] == hp.HeadMask.from_json(mask.read_text()).to_dict()


def test_what_prune_wrote_is_replaced_if_asked(place):
    """The same heads go again."""
    command("prune", "writer", "--scores", "scores/scores.json", "--prune", "50%", "--out", "small", "--force")
    before = transformers.AutoModelForCausalLM.from_pretrained(DATA / "commands" / "small").state_dict()
    after = transformers.AutoModelForCausalLM.from_pretrained(place / "small").state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_curve_and_an_ablation_are_those_stored(place):
    """The stored model on the stored text gives the stored files."""
    words = ("--scores", "scores/scores.json", "--steps", "4", "--random", "1", "--out", "again")
    command("curve", "writer", *STREAM, *words)
    assert json.loads((place / "again" / "curve.json").read_text()) == near(read("commands", "curve", "curve.json"))
    command("ablate", "writer", *STREAM, "--out", "again")
    found = json.loads((place / "again" / "ablation.json").read_text())
    stored = read("commands", "ablation", "ablation.json")
    assert only_fields_of(found, stored) == near(stored)
    again = hp.HeadScores.from_json((place / "again" / "scores.json").read_text())
    before = hp.HeadScores.from_json((place / "ablation" / "scores.json").read_text())
    assert {site: list(row) for site, row in again.scores.items()} == near(
        {site: list(row) for site, row in before.scores.items()}
    )


def test_gates_that_were_trained_are_not_trained_again(place):
    """What is told comes from the note, which has a mark that no training would leave."""
    note = place / "gated" / "keep-0.5" / "gates.json"
    content = json.loads(note.read_text())
    content["result"]["left_out"] = 123
    note.write_text(json.dumps(content))
    words = ("--gate", "binary-concrete", "--keep", "50%", "--updates", "6", "--gate-lr", "0.5")
    (told,) = json.loads(command("gates", "writer", *STREAM, *words, "--out", "gated", "--json"))
    assert told == content["result"]


def test_a_preset_plans_the_same_trials(place, programs):
    """Under other keys, because a key says which version of the results it belongs to."""
    done = programs.run("-m", "headprune", "run", DATA / "mine.toml", "--input", "text=text", "--dry-run")
    assert done.returncode == 0, done.stderr[-2000:]
    now, before = (text.splitlines() for text in (done.stdout, (DATA / "run" / "planned.txt").read_text()))
    assert [line.partition("  ")[2] for line in now] == [line.partition("  ")[2] for line in before]
    assert not {line.partition("  ")[0] for line in now} & {line.partition("  ")[0] for line in before}


def test_a_run_of_0_1_0_is_neither_resumed_nor_touched(place):
    """Everything is computed anew beside it, and told; figures agree, and every old file is as it was."""
    shutil.copytree(DATA / "run" / "runs", place / "runs")
    old = {path: path.read_bytes() for path in (place / "runs" / "trials").iterdir()}
    told = json.loads(command("run", DATA / "mine.toml", "--input", "text=text", "--out", "runs", "--json"))
    planned = (DATA / "run" / "planned.txt").read_text().splitlines()
    assert (told["done"], told["known"], told["failed"], told["blocked"]) == (len(planned), 0, {}, [])
    assert told["older"] == {"0.1.0": len(planned)}
    (stored,) = read("run", "report.json")["presets"]
    assert [one["name"] for one in told["presets"]["mine"]] == [one["name"] for one in stored["values"]]
    assert all(path.read_bytes() == content for path, content in old.items())
    shown = json.loads(command("report", "runs", "-o", "report.md", "--json"))
    assert [(one["preset"], one["made_by"]) for one in shown["presets"]] == [("mine", "0.1.0"), ("mine", "")]
    assert shown["presets"][0]["values"] == near(stored["values"])
    again = command("run", DATA / "mine.toml", "--input", "text=text", "--out", "runs")
    assert f"{len(planned)} trials of 0.1.0 are in runs" in again
    assert f"0 trials run, {len(planned)} known already" in again


def test_a_preset_of_0_1_0_is_shown_as_it_is(place):
    """To the letter."""
    shown = command("run", DATA / "mine.toml", "--show")
    assert shown.strip() == (DATA / "mine.toml").read_text().strip()


def is_of_statements(row):
    """Their table has other columns today."""
    return row.startswith("| the paper says") or any(row.endswith(f" {verdict} |") for verdict in VERDICTS)


def test_a_report_of_a_stored_run_has_the_stored_figures(place):
    """As JSON, and every row of every table as Markdown; all of it marked as of 0.1.0."""
    told = json.loads(command("report", DATA / "run" / "runs", "-o", "report.md", "-o", "report.html", "--json"))
    stored = read("run", "report.json")
    assert [one.pop("made_by") for one in told["presets"]] == ["0.1.0"]
    assert told.pop("problems") == []
    assert MARK in told["summary"][0]
    told["summary"] = [one.replace(MARK, "") for one in told["summary"]]
    assert told["summary"][1].startswith("No way of choosing heads stayed within one point")  # 0.1.0 said too much
    assert told["summary"][2] == "Of 2 statements of the papers, 2 hold, 0 do not, 0 are open."
    told["summary"][1:] = stored["summary"][1:]
    for claim in stored["presets"][0]["claims"]:
        claim["verdict"] = VERDICTS[claim["verdict"]]
    assert only_fields_of({**told, "pages": stored["pages"]}, stored) == near(stored)
    found = (place / "report.md").read_text().replace(MARK, "").splitlines()
    lines = (DATA / "run" / "report.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|") and not is_of_statements(line)]
    assert len(rows) > 50
    assert [row for row in rows if row not in found] == []
    page = (place / "report.html").read_text()
    assert "bits of the whole model" in page
    assert MARK in page
    assert MARK in (place / "report.md").read_text()
