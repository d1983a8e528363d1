"""A real Ray cluster of several nodes on this machine."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from headprune.lab.experiments.ray_runner import RayRunner, pack, unpack
from headprune.lab.experiments.store import Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.experiments.trial import Trial

ray = pytest.importorskip("ray")
MODULES = ("tests.lab.experiments.slow_work",)


def trials_of(folder, count, *, seconds=0.0, **more):
    calls = str(folder / "calls.txt")
    return [
        Trial(work="slow", params={"options": {"number": n, "calls": calls, "seconds": seconds}, **more}, label=f"{n}")
        for n in range(count)
    ]


@pytest.fixture
def cluster():
    """A head without cores, and two nodes of two cores each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [made.add_node(num_cpus=2) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    made.nodes_with_cores = nodes
    yield made
    ray.shutdown()
    made.shutdown()


def test_folders_and_files_survive_the_journey(tmp_path):
    """Packed and unpacked; nothing lands beside the target."""
    (tmp_path / "from" / "sub").mkdir(parents=True)
    (tmp_path / "from" / "sub" / "x.txt").write_text("x")
    unpack(pack(tmp_path / "from"), tmp_path / "to")
    assert (tmp_path / "to" / "sub" / "x.txt").read_text() == "x"
    (tmp_path / "from" / "sub" / "x.txt").rename(tmp_path / "from" / "y.txt")
    unpack(pack(tmp_path / "from"), tmp_path / "to")  # replaces what was there, and leaves nothing half done
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from", "to"]
    assert (tmp_path / "to" / "y.txt").is_file()
    assert not (tmp_path / "to" / "sub" / "x.txt").exists()
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("../outside.txt")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(tarfile.TarError):
        unpack(buffer.getvalue(), tmp_path / "target")
    assert not (tmp_path / "outside.txt").exists()


@pytest.mark.long
def test_a_cluster_gives_what_one_process_gives_and_survives_the_death_of_a_node(cluster, tmp_path):
    """Needs, data and results travel; a node dies in the middle; nothing is lost, nothing at home is done again."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text("a")
    first = trials_of(tmp_path, 3, inputs={"data": "0" * 16})
    last = Trial(work="slow", params={"options": {"number": 100, "calls": str(tmp_path / "calls.txt")}},
                 needs={f"n{i}": trial.key() for i, trial in enumerate(first)})  # fmt: skip
    import tests.lab.experiments.slow_work  # noqa: F401

    given = {"0" * 16: data}
    run_sweep([*first, last], Store(tmp_path / "here"), Inline(), inputs=given)
    runner = RayRunner(modules=MODULES)
    summary = run_sweep([*first, last], Store(tmp_path / "there"), runner, inputs=given)
    assert (summary.done, summary.failed) == (4, ())
    nodes = [node["NodeID"] for node in ray.nodes()]
    assert not [
        path for path in Path(tempfile.gettempdir()).glob("headprune-node-*") if path.name.endswith(tuple(nodes))
    ]
    for trial in (*first, last):
        here, there = (Store(tmp_path / name).get(trial.key()).result for name in ("here", "there"))
        assert {k: v for k, v in here.items() if k != "process"} == {k: v for k, v in there.items() if k != "process"}
    assert Store(tmp_path / "there").get(last.key()).result["number"] == 103
    assert (tmp_path / "there" / "work" / last.key() / "number.txt").read_text() == "103"

    more, killed, seen = trials_of(tmp_path, 16, seconds=0.6), [], []
    (tmp_path / "calls.txt").unlink()

    def told(record):
        seen.append(record.trial.key())
        if len(seen) == 4 and not killed:
            killed.append(cluster.remove_node(cluster.nodes_with_cores[0], allow_graceful=False))

    summary = run_sweep(more, Store(tmp_path / "killed"), runner, told=told)
    assert (summary.done, summary.failed, summary.blocked) == (16, (), ())
    assert killed
    assert sorted(seen) == sorted(trial.key() for trial in more)
    calls = (tmp_path / "calls.txt").read_text().split()
    assert set(calls) == {str(number) for number in range(16)}
    assert len(calls) <= 16 + 4  # at most what the dead node had under way, and its queue, was begun again
    begun = time.perf_counter()
    assert run_sweep(more, Store(tmp_path / "killed"), runner).known == 16
    assert time.perf_counter() - begun < 5


def test_an_interrupted_driver_leaves_no_folders(cluster, tmp_path):
    """Neither its own, with the trials that were under way, nor those of a driver that was killed before it."""
    import tests.lab.experiments.slow_work  # noqa: F401

    temporary = Path(tempfile.gettempdir())
    (temporary / "headprune-node-of-a-dead-driver" / "trial-x").mkdir(parents=True)

    def told(record):
        raise KeyboardInterrupt

    trials = [*trials_of(tmp_path, 1), *trials_of(tmp_path / "more", 7, seconds=20.0)]
    (tmp_path / "more").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(trials, Store(tmp_path / "store"), RayRunner(modules=MODULES), told=told)
    nodes = tuple(node["NodeID"] for node in ray.nodes())
    left = [path.name for path in temporary.glob("headprune-*") if path.name.endswith((*nodes, "dead-driver"))]
    assert not left  # trials have their folders inside these


@pytest.mark.long
def test_failures_and_impossible_wishes_are_told(cluster, tmp_path):
    """A trial that fails is a result; one that no node can hold is refused at once."""
    import headprune as hp

    bad = Trial(work="slow", params={"options": {"number": 1, "calls": str(tmp_path / "c"), "fails": True}})
    summary = run_sweep([bad], Store(tmp_path / "a"), RayRunner(modules=MODULES))
    assert "ValueError: it was told to" in summary.failed[0].error
    with pytest.raises(hp.HeadpruneError, match="asks for 64 cores"):
        run_sweep(trials_of(tmp_path, 1), Store(tmp_path / "b"), RayRunner(modules=MODULES, num_cpus=64))


@pytest.mark.long
def test_what_measures_time_has_a_node_to_itself(cluster, tmp_path):
    """No other trial runs on its node meanwhile."""
    import tests.lab.experiments.slow_work  # noqa: F401

    trials = [
        Trial(work=work, params={"options": {"seconds": 0.3, "number": n}}, seed=copy)
        for n in range(3)
        for copy, work in enumerate(("timed", "where", "where"))
    ]
    store = Store(tmp_path)
    assert run_sweep(trials, store, RayRunner(modules=MODULES)).done == 9
    found = [(record.trial.work, record.result) for record in store]
    for place, (work, result) in enumerate(found):
        for other in (result for at, (_, result) in enumerate(found) if at != place):
            together = result["begun"] < other["ended"] and other["begun"] < result["ended"]
            assert work != "timed" or result["node"] != other["node"] or not together
