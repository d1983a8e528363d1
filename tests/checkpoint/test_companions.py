"""What lies in a model folder besides the model."""

from __future__ import annotations

import pytest

from headprune.checkpoint.companions import RESULT, check_replaceable, copy_companions, kept_card
from headprune.errors import CheckpointError


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


def test_the_card_goes_again_if_saving_fails(source, tmp_path):
    """And so does the folder that was made for it."""
    (source / "README.md").write_text("# Mine")
    with pytest.raises(OSError, match="full, with # Mine"), kept_card(source, tmp_path / "target"):
        raise OSError(f"full, with {(tmp_path / 'target' / 'README.md').read_text()}")
    assert not (tmp_path / "target").exists()


def test_only_what_prune_wrote_is_replaced(tmp_path):
    """A model from elsewhere would be lost, as would one that was trained since."""
    check_replaceable(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds another model"):
        check_replaceable(tmp_path)
    (tmp_path / RESULT).write_text("{}")
    check_replaceable(tmp_path)
    (tmp_path / "finetune.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"finetune\.json"):
        check_replaceable(tmp_path)
