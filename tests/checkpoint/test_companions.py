"""What lies in a model folder besides the model."""

from __future__ import annotations

import pytest

from headprune.checkpoint.companions import copy_companions, new_model_folder


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    for name in ("vocab.txt", "1_Pooling/config.json", "model.safetensors", "finetune.json", ".cache", "code.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_a_tokenizer_comes_along_and_weights_results_and_code_do_not(source, tmp_path):
    """What is in the target already stays as it is."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "vocab.txt").write_text("mine")
    copy_companions(source, target)
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {"vocab.txt", "1_Pooling/config.json"}
    assert (target / "vocab.txt").read_text() == "mine"


def test_a_target_inside_the_source_is_not_copied_into_itself(source):
    """`--out model/small`."""
    copy_companions(source, source / "small")
    copy_companions(source, source / "small")
    assert not (source / "small" / "small").exists()


def test_a_model_folder_is_made_whole_or_not_at_all(source, tmp_path):
    """The source's card is there while the model is saved; a failure leaves no folder."""
    (source / "README.md").write_text("# Mine")
    out = tmp_path / "target"
    with pytest.raises(OSError, match="full, with # Mine"), new_model_folder(out, source) as new:
        raise OSError(f"full, with {(new / 'README.md').read_text()}")
    assert not out.exists()
    with new_model_folder(out, source) as new:
        (new / "config.json").write_text("{}")
    assert sorted(path.name for path in out.iterdir()) == ["1_Pooling", "README.md", "config.json", "vocab.txt"]


def test_results_of_the_model_before_go_with_it(tmp_path):
    """Files of others stay."""
    for name in ("finetune.json", "prune.json", "notes.txt"):
        (tmp_path / name).write_text("of the old model")
    with new_model_folder(tmp_path) as new:
        (new / "prune.json").write_text("of the new one")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "prune.json": "of the new one", "notes.txt": "of the old model"
    }  # fmt: skip
