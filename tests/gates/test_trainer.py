"""Gates in the Trainer: penalty, schedules, target, freezing, resuming, two processes, bf16."""

from __future__ import annotations

import json
import math

import pytest
import torch

import headprune as hp
from headprune.errors import GateError, TrainingError
from tests.gates.toy import alphas, gated_bert, trainer
from tests.places import ROOT


def test_the_penalty_closes_gates_and_is_logged(tmp_path):
    """A heavy one closes all; logs have the task's loss, L0 and open heads by site and component."""
    model = gated_bert()
    run = trainer(model, tmp_path, hp.Objective(weight=5.0), steps=60, gate_lr=0.2)
    run.train()
    assert hp.gates_of(model).open_by_component() == {"encoder": 0}
    first, last = (line for line in (run.state.log_history[0], run.state.log_history[-2]))
    assert first["open/encoder"] == 8.0
    assert last["open/encoder.0"] == last["open_heads"] == 0.0
    assert last["l0"] < first["l0"]
    assert first["loss"] == pytest.approx(first["task_loss"] + 5.0 * 8 * 0.9426, rel=0.02)


def test_gates_have_their_own_learning_rate(tmp_path):
    """Ten times the model's, no weight decay; both follow the schedule."""
    run = trainer(gated_bert(), tmp_path, hp.Objective(), gate_lr_scale=10.0, weight_decay=0.1)
    run.create_optimizer_and_scheduler(10)
    groups = {bool(group.get("gates")): group for group in run.optimizer.param_groups if group["params"]}
    assert groups[True]["lr"] == pytest.approx(10 * groups[False]["lr"])
    assert groups[True]["weight_decay"] == 0.0
    assert sum(p.numel() for p in groups[True]["params"]) == 8
    counted = [id(p) for group in run.optimizer.param_groups for p in group["params"]]
    assert len(counted) == len(set(counted)) == len(list(run.model.parameters()))


def test_the_penalty_is_right_under_gradient_accumulation(tmp_path):
    """The gradient of the penalty is the same for one batch a step and for four."""
    found = []
    for accumulate in (1, 4):
        model = gated_bert()
        hp.choose_trainable_(model, "gates")
        run = trainer(model, tmp_path, hp.Objective(weight=1.0), steps=1, gate_lr=0.5, optim="sgd",
                      gradient_accumulation_steps=accumulate, max_grad_norm=0.0)  # fmt: skip
        run.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs.logits.sum() * 0.0
        run.train()
        found.append(2.0 - alphas(model))
    p = 0.9426
    assert found[0].tolist() == pytest.approx([0.5 * p * (1 - p)] * 8, rel=1e-2)
    assert torch.allclose(found[0], found[1], rtol=1e-4)


def test_warm_up_and_targets_at_every_step():
    """Linear from 1/n, as (t + 1) / n; the number wanted falls alike."""
    objective = hp.Objective(weight=0.4, warmup=4)
    assert [objective.weight_at(step) for step in (0, 1, 3, 9)] == pytest.approx([0.1, 0.2, 0.4, 0.4])
    target = hp.Objective(target=2, warmup=4)
    assert [target.wanted_at(step, 8) for step in (0, 1, 3, 9)] == pytest.approx([6.5, 5.0, 2.0, 2.0])


@pytest.mark.parametrize("wanted", [2, 5])
def test_a_target_is_reached(wanted, tmp_path):
    """Expected open heads come near it by themselves; freezing makes it exact, decided and final."""
    model = gated_bert()
    run = trainer(model, tmp_path, hp.Objective(target=wanted, warmup=20, freeze_after=110), steps=150, gate_lr=0.1)
    run.train()
    gates = hp.gates_of(model)
    expected = {line["step"]: line["l0"] for line in run.state.log_history if "l0" in line}
    assert expected[109] == pytest.approx(wanted, abs=1.0)
    assert sum(gates.open_heads().values()) == len(gates.mask()) == wanted
    assert gates.share_decided() == 1.0


def test_gates_freeze_at_the_right_step(tmp_path):
    """After step 5 of 12 they do not move, the penalty is gone, and the rest goes on training."""
    model = gated_bert()
    run = trainer(model, tmp_path, hp.Objective(weight=1.0, freeze_after=5), gate_lr=0.1)
    seen = []

    class Watch(hp.GateCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            pass

        def on_step_end(self, args, state, control, **kwargs):
            gates = hp.gates_of(model)
            seen.append((alphas(model), gates.frozen, model.classifier.weight.detach().clone()))

    run.add_callback(Watch(hp.gates_of(model), run.objective))
    run.train()
    assert [frozen for _, frozen, _ in seen] == [False] * 4 + [True] * 8
    assert not torch.equal(seen[3][0], seen[4][0])
    assert all(torch.equal(seen[4][0], later) for later, _, _ in seen[5:])
    assert not torch.equal(seen[5][2], seen[11][2])
    losses = [(line["loss"], line["task_loss"]) for line in run.state.log_history if "task_loss" in line]
    assert losses[4][0] > losses[4][1] + 1
    assert losses[6][0] == pytest.approx(losses[6][1], abs=1e-3)


def test_resuming_in_the_middle_of_the_warm_up_changes_nothing(tmp_path):
    """The same gates, the same noise, the same multiplier as an unbroken run."""
    objective = hp.Objective(target=3, warmup=10)
    whole = gated_bert()
    trainer(whole, tmp_path / "whole", objective, gate_lr=0.1, save_strategy="steps", save_steps=4).train()
    resumed = gated_bert()
    again = trainer(resumed, tmp_path / "again", objective, gate_lr=0.1)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert torch.allclose(alphas(resumed), alphas(whole), atol=1e-6)
    assert torch.allclose(hp.gates_of(resumed).multiplier, hp.gates_of(whole).multiplier, atol=1e-6)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_checkpoint_of_other_gates_is_refused(tmp_path):
    """Gates on one site are not those on two."""
    trainer(gated_bert(sites=["encoder.0"]), tmp_path, hp.Objective(), steps=2, save_strategy="steps",
            save_steps=2).train()  # fmt: skip
    run = trainer(gated_bert(), tmp_path / "b", hp.Objective())
    with pytest.raises(GateError, match="other gates"):
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    """Before the weights are touched; the last checkpoint is named."""
    model = gated_bert()
    run = trainer(model, tmp_path, hp.Objective(weight=0.1), save_strategy="steps", save_steps=2)
    calls = []
    original = type(run).__mro__[2].compute_loss

    def broken(self, *args, **kwargs):
        loss, outputs = original(self, *args, **kwargs)
        calls.append(1)
        return (loss * (math.nan if len(calls) == 4 else 1.0), outputs)

    patched = type("Broken", (hp.GateMixin, type("Base", (type(run).__mro__[2],), {"compute_loss": broken})), {})
    run.__class__ = patched
    with pytest.raises(TrainingError, match=f"nan at step 3.*{tmp_path}"):
        run.train()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert (tmp_path / "checkpoint-2").is_dir()


def test_gates_train_in_bf16(tmp_path):
    """Autocast in the Trainer."""
    model = gated_bert()
    trainer(model, tmp_path, hp.Objective(weight=2.0), steps=10, gate_lr=0.1, bf16=True).train()
    assert alphas(model).dtype == torch.float32
    assert (alphas(model) < 2.0).all()


SCRIPT = """
import json, os, sys, time
sys.path.insert(0, {root!r})
import headprune as hp
from tests.gates.toy import gated_bert, trainer, alphas
model = gated_bert(sync_noise={sync})
drawn = []
run = trainer(model, {folder!r}, hp.Objective(target=3, warmup=2), steps=5, gate_lr=0.1, ddp_backend="gloo")
gates = hp.gates_of(model)
original = gates.draw
def draw():
    original()
    drawn.append([round(float(x), 6) for x in gates.value("encoder.0").detach()])
gates.draw = draw
run.train()
result = {{"alpha": alphas(model).tolist(), "multiplier": float(gates.multiplier), "drawn": drawn}}
with open(os.path.join({folder!r}, "rank-" + os.environ["RANK"] + ".json"), "w") as file:
    json.dump(result, file)
ranks = [os.path.join({folder!r}, "rank-" + rank + ".json") for rank in "01"]
deadline = time.monotonic() + 60
while not all(map(os.path.exists, ranks)) and time.monotonic() < deadline:
    time.sleep(0.1)
os._exit(0)  # PyTorch's own taking down of gloo can abort when everything is done, which is not what is tested
"""


@pytest.mark.parametrize("sync", [False, True])
def test_two_processes_agree(sync, tmp_path, programs):
    """The same gates on both after a few steps; noise by rank unless it is asked to be the same."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(ROOT), folder=str(tmp_path), sync=sync))
    done = programs.launch("torch.distributed.run", "--standalone", "--nproc_per_node", 2, script)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first["alpha"] == second["alpha"]
    assert first["multiplier"] == second["multiplier"]
    assert (first["drawn"] == second["drawn"]) == sync
    assert len(first["drawn"]) >= 5


def test_only_gates_train_and_freeze_and_resume(tmp_path):
    """Frozen at once, and resumed after freezing: the run ends without an error."""
    model = gated_bert()
    hp.choose_trainable_(model, "gates")
    trainer(model, tmp_path / "a", hp.Objective(target=4, freeze_after=0)).train()
    for _ in range(2):
        model = gated_bert()
        hp.choose_trainable_(model, "gates")
        run = trainer(
            model, tmp_path / "b", hp.Objective(target=4, freeze_after=3), save_strategy="steps", save_steps=3
        )
        last = tmp_path / "b" / "checkpoint-3"
        run.train(resume_from_checkpoint=str(last) if last.is_dir() else None)
    assert (alphas(model) > 0).sum() == 4
