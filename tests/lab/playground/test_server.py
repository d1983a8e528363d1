"""The live page: who may ask, what an answer costs, and where models are saved."""

from __future__ import annotations

import http.client
import json
import socket
import threading

import pytest
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.checkpoint.out_folder import open_out
from headprune.errors import CheckpointError
from headprune.heads.stored import read_scores
from headprune.jobs.options.play import PlayOptions
from headprune.jobs.play import play
from headprune.lab.playground.server import PlayServer
from headprune.lab.playground.session import Session
from headprune.tasks.data import find_task, load_processor


def make_session(trained, out):
    name = str(trained / "tuned")
    model = AutoModelForSequenceClassification.from_pretrained(name).eval()
    return Session(
        model=model, name=name, tokenizer=load_processor(find_task("sst2"), name),
        scores=read_scores(trained / "scores" / "scores.json"), heads=hp.find_heads(model), out=out,
        text="the film is good",
    )  # fmt: skip


def make_server(session):
    return PlayServer(session, 0)


@pytest.fixture(scope="module")
def session(trained, tmp_path_factory):
    return make_session(trained, tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def server(session):
    found = make_server(session)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def request(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    sent = {"Content-Type": "application/json"} if body is not None else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, None if body is None else json.dumps(body), sent)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def ask(server, **asked):
    status, text = request(server, "POST", f"/{server.token}/ask", {"text": "the film is good", **asked})
    assert status == 200, text
    return json.loads(text)


def test_the_page_comes_with_the_token(server):
    """And asks its own server alone."""
    status, text = request(server, "GET", f"/{server.token}/")
    assert status == 200
    assert "connect-src 'self'" in text
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/ask"])
def test_without_the_token_nothing_is_told(server, path):
    """But where the right address stands."""
    status, text = request(server, "GET", path)
    assert status == 403
    assert "terminal" in text
    assert request(server, "POST", path, {})[0] == 403


def test_another_host_name_is_refused(server):
    """So that a page elsewhere cannot reach it by a name that it points here."""
    assert request(server, "GET", f"/{server.token}/", Host="evil.example")[0] == 403
    assert request(server, "POST", f"/{server.token}/ask", {}, Origin="http://evil.example")[0] == 403


def test_a_form_of_another_page_is_refused(server):
    """Only JSON is understood, which a foreign form cannot send."""
    status, text = request(server, "POST", f"/{server.token}/ask", {}, Content_Type="text/plain")
    assert status == 400
    assert "JSON" in text


def test_a_toggle_takes_three_passes_of_the_sentence(server, session):
    """The whole model, the pruned one, and the masked one whose attention is shown."""
    kept = ask(server)["now"]["kept"]
    ask(server, kept=kept, toggle="encoder.0:1")  # whatever is done once
    passes = []
    handle = session.model.register_forward_hook(lambda *_: passes.append(1))
    try:
        found = ask(server, kept=kept, toggle="encoder.1:2")
    finally:
        handle.remove()
    assert len(passes) <= 3
    assert found["now"]["heads"] == 7
    assert found["now"]["kept"]["encoder.1"] == "1101"


def test_the_answer_is_the_pruned_models(server, session):
    """Shares of the classes, before and after."""
    found = ask(server, way=0, step=4)
    model = AutoModelForSequenceClassification.from_pretrained(session.name).eval()
    kept = {s: [h for h, mark in enumerate(m) if mark == "1"] for s, m in found["now"]["kept"].items()}
    mask = hp.HeadMask.from_dict(hp.find_heads(model), kept)
    assert len(mask) == 4
    inputs = session.tokenizer("the film is good", return_tensors="pt")
    whole = model(**inputs).logits.softmax(-1)[0].tolist()
    small = hp.prune_(model, mask)(**inputs).logits.softmax(-1)[0].tolist()
    assert [share for _, share in found["answers"][0]["shares"]] == pytest.approx(whole, abs=1e-5)
    assert [share for _, share in found["answers"][1]["shares"]] == pytest.approx(small, abs=1e-5)
    planned = hp.plan(AutoModelForSequenceClassification.from_pretrained(session.name), mask)
    assert found["now"]["parameters"] == planned.parameters_after.total


def test_nothing_of_it_changes_the_model(server, session):
    """It is the whole one again after every answer."""
    ask(server, way=0, step=6)
    assert len(hp.find_heads(session.model)) == 8


def test_a_model_is_saved_below_the_folder(server, session):
    """And loads like any other."""
    kept = ask(server, way=0, step=3)["now"]["kept"]
    status, text = request(server, "POST", f"/{server.token}/save", {"name": "mine", "kept": kept})
    assert status == 200, text
    assert len(hp.find_heads(AutoModelForSequenceClassification.from_pretrained(session.out / "mine"))) == 5
    status, text = request(server, "POST", f"/{server.token}/save", {"name": "mine", "kept": kept})
    assert status == 400
    assert "already there" in text
    open_out("play", PlayOptions(model=session.name, out=session.out))  # the folder is one of ours


def test_models_are_not_put_beside_what_something_else_made(tmp_path):
    """It is told before the model is looked for: there is none."""
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(CheckpointError, match=r"did not make: thesis\.tex.*--force"):
        play(PlayOptions(model="nowhere", out=tmp_path))


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "", ".hidden", "a/b", "x" * 65])
def test_nothing_is_saved_elsewhere(server, session, name):
    """A name is no path."""
    status, text = request(server, "POST", f"/{server.token}/save", {"name": name, "kept": {}})
    assert status == 400
    assert "no name for a folder" in text


def test_wrong_requests_are_told(server):
    """By what was found."""
    wrong = (
        ({"text": ""}, "sentence"),
        ({"text": "a", "kept": []}, "list"),
        ({"text": "a", "way": 9, "step": 1}, "way"),
    )
    for body, said in wrong:
        status, text = request(server, "POST", f"/{server.token}/ask", body)
        assert status == 400, text
        assert said in text


def test_a_busy_port_is_told(session):
    """With the option that helps."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(hp.HeadpruneError, match=r"in use.*--port"):
            PlayServer(session, taken.getsockname()[1])
