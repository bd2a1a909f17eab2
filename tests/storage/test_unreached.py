"""A place where nobody answers: how long it is tried, and what the log says meanwhile."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time

import pytest
from typer.testing import CliRunner

from resume_core.cli import app
from resume_core.storage import open_store, requests
from resume_core.storage.redact import Redactor
from resume_core.storage.requests import Patience, Requests


def patient(**how):
    asked = Requests(None, Redactor("s3://bucket", {}))
    asked.patience = Patience(first_pause_s=0.01, max_pause_s=0.01, **how)
    return asked


def ask(asked, error=None):
    def call():
        if error is not None:
            raise error

    start_s = time.monotonic()
    try:
        asked.run("s3://bucket/run", call)
    except OSError:
        return time.monotonic() - start_s
    return 0.0


REFUSED = (ConnectionRefusedError(111, "refused"), socket.gaierror(-2, "Name or service not known"))


@pytest.mark.parametrize("error", REFUSED)
def test_an_address_where_nothing_was_ever_reached_is_given_up_sooner_for_somebody_who_waits(monkeypatch, error):
    monkeypatch.setattr(requests, "_SOON_S", 0.05)
    asked = patient(give_up_s=0.5, unreached_s=0.5)
    assert ask(asked, error) > 0.4  # training waits for a server that may come back
    asked.hurry()
    assert ask(asked, error) < 0.4


def test_what_was_reached_once_is_an_outage_and_is_waited_for(monkeypatch):
    monkeypatch.setattr(requests, "_SOON_S", 0.05)
    asked = patient(give_up_s=0.5)
    asked.hurry()
    ask(asked)
    assert ask(asked, REFUSED[0]) > 0.4


def test_a_server_that_fails_is_no_wrong_address(monkeypatch):
    monkeypatch.setattr(requests, "_SOON_S", 0.05)
    asked = patient(give_up_s=0.5)
    asked.hurry()
    assert ask(asked, OSError(5, "error 500")) > 0.4


def test_the_log_says_once_how_long_it_will_be_tried_and_then_in_short(monkeypatch, caplog):
    monkeypatch.setattr(requests, "_APART_S", 0.2)
    ask(patient(give_up_s=0.7), OSError(5, "a long story"))
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert said[0] == "s3://bucket/run: a long story; trying again for up to 1 s (Ctrl-C stops)"
    assert 2 <= len(said) <= 4
    assert all("no success for" in line and "a long story" not in line for line in said[1:])


def test_a_thread_that_ctrl_c_does_not_stop_promises_nothing(caplog):
    thread = threading.Thread(target=ask, args=(patient(give_up_s=0.05), OSError(5, "error 500")))
    thread.start()
    thread.join()
    assert "trying again for up to" in caplog.text
    assert "Ctrl-C" not in caplog.text


@pytest.mark.s3
@pytest.mark.parametrize("command", [("ls",), ("verify",), ("prune", "--dry-run"), ("plan",), ("show",)])
def test_commands_say_within_seconds_that_an_endpoint_is_closed(monkeypatch, command):
    monkeypatch.setattr(requests, "PATIENCE", Patience())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = json.dumps(f"http://127.0.0.1:{closed.getsockname()[1]}")
        options = [f"endpoint_url={url}", "key=k", "secret=s"]
        given = [word for option in options for word in ("--storage-option", option)]
        start_s = time.monotonic()
        result = CliRunner().invoke(app, [command[0], "s3://bucket/run", *command[1:], *given])
    assert result.exit_code == 2
    assert "Could not connect" in result.output
    assert time.monotonic() - start_s < 20


def test_training_is_as_patient_as_ever():
    assert open_store("memory://patient")._requests._limit_s == requests.PATIENCE.unreached_s
    assert Patience().unreached_s == Patience().give_up_s
