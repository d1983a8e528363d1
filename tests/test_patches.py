"""What is changed in transformers and torch is still what it was when the patches were written."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
import transformers

import headprune  # noqa: F401  # installs the patches
from headprune import patches
from tests.families.tiny import tiny_model

MODEL = "transformers.modeling_utils:PreTrainedModel"
# Methods that our trainers override, with the parameters that they hand on or leave alone.
OVERRIDDEN = {
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],  # private: a memory goes with its weights
    "_save_checkpoint": ["self", "model", "trial"],  # private: it is written before the file that says all is there
    "train": ["self", "resume_from_checkpoint"],
    "get_batch_samples": ["self", "epoch_iterator", "num_batches", "device"],
    "get_train_dataloader": ["self"],
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "create_optimizer": ["self"],
    "log": ["self", "logs", "start_time"],
}


def find(target: str) -> object:
    module, _, path = target.partition(":")
    return attrgetter(path)(importlib.import_module(module))


@pytest.mark.parametrize("patch", patches.PATCHES, ids=lambda patch: patch.target)
def test_a_patched_function_takes_what_the_patch_relies_on(patch):
    """The parameters by name and in this order; others may come after them."""
    found = list(inspect.signature(find(patch.target)).parameters)
    assert found[: len(patch.parameters)] == list(patch.parameters)
    library, _, version = patch.since.partition(" ")
    assert library in ("transformers", "torch")
    assert version[0].isdecimal()


def test_the_table_names_every_method_of_models_that_is_changed():
    """Those whose code stands in patches.py, and no others."""
    methods = {name: getattr(item, "__func__", item) for name, item in vars(transformers.PreTrainedModel).items()}
    files = {name: getattr(getattr(item, "__code__", None), "co_filename", "") for name, item in methods.items()}
    ours = {name for name, file in files.items() if file == patches.__file__}
    assert ours == {patch.target.rpartition(".")[2] for patch in patches.PATCHES if patch.target.startswith(MODEL)}


def test_patches_are_installed_once():
    """A second call changes nothing."""
    cls = transformers.PreTrainedModel
    before = dict(vars(cls))
    patches.patch_models(cls, after_init=print, save=print, load=print)
    assert dict(vars(cls)) == before


def test_every_model_ends_its_constructor_with_post_init():
    """That is where a skeleton gets its shapes; a class that forgot it would be loaded whole."""
    source = inspect.getsource(transformers.BertModel.__init__)
    assert source.rstrip().splitlines()[-1].strip() == "self.post_init()"


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_methods_of_the_trainer_that_are_overridden_are_there(name):
    """Ours are subclasses: a method of another name would never be called."""
    found = list(inspect.signature(getattr(transformers.Trainer, name)).parameters)
    assert found[: len(OVERRIDDEN[name])] == OVERRIDDEN[name]


SPY = """
import json, sys
from transformers import modeling_utils
cls, seen = modeling_utils.PreTrainedModel, []
original = vars(cls)["from_pretrained"].__func__
def spy(cls, *args, **kwargs):
    seen.append([len(args), sorted(kwargs)])
    return original(cls, *args, **kwargs)
cls.from_pretrained = classmethod(spy)
import headprune
from transformers import BertForSequenceClassification as Bert
Bert.from_pretrained(sys.argv[1], dtype="float32")
Bert.from_pretrained(sys.argv[1], config=Bert.config_class.from_pretrained(sys.argv[1]))
_, info = Bert.from_pretrained(sys.argv[1], output_loading_info=True)
try:
    Bert.from_pretrained(sys.argv[1] + "-nowhere")
except OSError:
    pass
print(json.dumps(seen))
"""


def test_a_load_of_an_ordinary_model_goes_through_untouched(tmp_path, programs):
    """The original call sees the caller's own arguments."""
    tiny_model("bert").save_pretrained(tmp_path)
    done = programs.run("-c", SPY, tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == [[1, ["dtype"]], [1, ["config"]], [1, ["output_loading_info"]], [1, []]]


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


FOREIGN = ("torch", "transformers")


def _patches_in(source: str) -> list[int]:
    """Lines that assign to a class or a module of torch or transformers, or to Python's list of finders."""
    tree = ast.parse(source)
    names = {name for node in ast.walk(tree) for name in _foreign_names(node)}
    lines = []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "delattr"):
            targets = [ast.Attribute(node.args[0], "any", ast.Store())]
        for target in targets:
            root, depth = target, 0
            while isinstance(root, ast.Attribute | ast.Subscript):
                root, depth = root.value, depth + 1
            if depth and getattr(root, "id", "") in names:
                lines.append(node.lineno)
        if isinstance(node, ast.Attribute) and node.attr in ("meta_path", "set_fastpath_enabled", "path_hooks"):
            lines.append(node.lineno)
    return lines


def _foreign_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOREIGN:
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        return [a.asname or a.name.split(".")[0] for a in node.names if a.name.split(".")[0] in FOREIGN]
    if isinstance(node, ast.Assign) and re.search(
        r"sys\.modules|import_module\(['\"](torch|transf)", ast.unparse(node.value)
    ):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def _patches_elsewhere(root: Path) -> set[str]:
    return {
        f"{path.relative_to(root)}:{line}"
        for path in sorted(root.rglob("*.py"))
        if path != root / "patches.py"
        for line in _patches_in(path.read_text())
    }


def test_no_other_file_changes_torch_or_transformers():
    """Changes of one model's own modules are another matter."""
    assert _patches_elsewhere(Path(patches.__file__).parent) == set()


def test_a_tree_with_a_patch_elsewhere_is_refused(tmp_path):
    """Whatever room it stands in; patches.py may."""
    (tmp_path / "surgery").mkdir()
    for name in ("patches.py", "surgery/patches.py"):
        (tmp_path / name).write_text("from torch import nn\n\nnn.Linear.forward = print\n")
    assert _patches_elsewhere(tmp_path) == {"surgery/patches.py:3"}


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.backends.mha.enabled = False",
        "from transformers import PreTrainedModel as P\nP.forward = None",
        "def f():\n    from transformers import modeling_utils\n    del modeling_utils.x",
        "import transformers.trainer\nsetattr(transformers.Trainer, name, None)",
        "utils = sys.modules.get('transformers.utils')\nutils.table['x'] = 1",
        "sys.meta_path.insert(0, finder)",
        "import torch.nn.functional as F\nF.softmax = print",
        "found = importlib.import_module('torch.utils.checkpoint')\nfound.checkpoint = print",
    ],
)
def test_a_patch_elsewhere_is_noticed(line):
    """Every form that a patch has taken here."""
    assert _patches_in(line)
    assert not _patches_in("import torch\nlayer = torch.nn.Linear(1, 1)\nlayer.bias = None")
