"""Places that do not answer, or not always, or as none of them should; and the thread that asks them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from noticing import CLOUDS, closed_port, looked, notice, wait_for
from scratches import told
from servers.metadata import Custom, Gcp

from resume_core.preemption import clouds, places, web

pytestmark = pytest.mark.usefixtures("looks")


def test_importing_httpx_draws_no_random_number():
    code = """
import random, sys
import numpy, torch
from resume_core.preemption.web import Web
states = lambda: (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
before = states()
Web()._open()
assert states() == before
assert "httpx" in sys.modules and "httpx._main" not in sys.modules
import httpx._main
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_where_nothing_answers_the_thread_ends_and_httpx_is_not_even_imported(tmp_path):
    script = f"""
import logging, sys, threading, time
logging.basicConfig(level=logging.INFO)
from resume_core.preemption import NoticeWatch
assert "httpx" not in sys.modules
place = "127.0.0.1:{closed_port()}"
environ = {{"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{{place}}", "GCE_METADATA_HOST": place}}
watch = NoticeWatch(("auto", f"azure=http://{{place}}"), logging.getLogger(), environ)
watch.start()
watch._thread.join(20)
assert not watch.is_watching and watch.at_once is None
print([name for name in sys.modules if name.startswith("httpx")])
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr  # of what was named; what was looked for by itself is not missed
    assert "WARNING:root:no notices of Azure at http://127.0.0.1" in ended.stderr


OTHERS = [(cloud, other) for cloud in CLOUDS for other in ("silent", "broken", "page", *CLOUDS) if cloud != other]


@pytest.mark.parametrize(("cloud", "other"), OTHERS)
def test_what_answers_otherwise_than_a_cloud_does_is_off_for_the_run(serve, watch, cloud, other, caplog, monkeypatch):
    monkeypatch.setattr(clouds, "_PROBE_S", 0.1)
    server = serve(CLOUDS.get(other, Custom))
    if other in ("silent", "broken"):
        server.broken = 0 if other == "silent" else 503
    elif other == "page":
        server.says = (200, "<html><title>Sign in to this network</title></html>", {})
    watched = watch(f"{cloud}={server.base}")
    wait_for(lambda: not watched.is_watching)
    (said,) = [r for r in caplog.records if r.getMessage().startswith("no notices of")]
    assert said.levelname == "WARNING"
    assert watched.at_once is None
    num = len(server.asked)
    time.sleep(0.1)
    assert len(server.asked) == num


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_service_that_fails_for_a_while_turns_nothing_off_and_nobody_leaves(serve, watch, cloud, caplog):
    server = serve(CLOUDS[cloud])
    watched = watch(f"{cloud}={server.base}")
    looked(server)
    for status in (500, 200, 429):
        server.broken = status
        looked(server)
        assert watched.at_once is None
    server.broken = None
    looked(server)
    {"aws": lambda: server.interrupt(), "gcp": lambda: server.values.update(preempted="TRUE")}.get(
        cloud, lambda: server.announce("Preempt", "trainer_3")
    )()
    notice(watched)
    assert {r.levelname for r in caplog.records if "no answer" in r.getMessage()} == {"DEBUG"}


def test_a_service_that_hangs_is_given_up_and_asked_again(serve, monkeypatch):
    server = serve(Custom)
    server.broken = 0
    start_s = time.monotonic()
    with pytest.raises(web.NoAnswer, match=r"http://127.0.0.1:\d+/x: ReadTimeout"):
        web.Web().ask("GET", f"{server.base}/x?key=secret", timeout_s=0.1)
    assert time.monotonic() - start_s < 10


def test_an_answer_without_an_end_is_none(serve):
    server = serve(Custom)
    server.says = (200, "x" * 100_000, {})
    with pytest.raises(web.NoAnswer, match="no end"):
        web.Web().ask("GET", server.base)


def test_no_proxy_is_asked(serve, watch, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = serve(Gcp)
    server.values["preempted"] = "TRUE"
    assert notice(watch(f"gcp={server.base}"))


def test_requests_are_not_written_to_the_log(serve, watch, caplog):
    caplog.set_level(logging.INFO)
    server = serve(Gcp)
    watch(f"gcp={server.base}")
    looked(server)
    assert {record.name for record in caplog.records} == {"exact_resume"}


def test_what_goes_wrong_in_the_thread_is_said(watch, tmp_path, caplog, monkeypatch):
    def break_down(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(places.File, "look", break_down)
    watched = watch(tmp_path / "leave")
    wait_for(lambda: not watched.is_watching)
    assert told(caplog, "notices are not watched any more")


def test_nobody_waits_for_the_thread_at_the_end_of_the_process(serve):
    server = serve(Custom)
    server.broken = 0
    script = f"""
import logging, threading
from resume_core.preemption import NoticeWatch
watch = NoticeWatch(("{server.base}/leave",), logging.getLogger(), {{}})
watch.start()
print(watch._thread.daemon)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_a_process_that_is_forked_has_no_part_in_it_and_waits_for_an_import(serve, watch):
    server = serve(Gcp)
    watched = watch(f"gcp={server.base}")
    looked(server)
    with web._no_forks.held():
        forked = []
        fork = threading.Thread(target=lambda: forked.append(os.fork() or os._exit(0)))
        fork.start()
        fork.join(0.2)
        assert fork.is_alive()
    fork.join(20)
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 0
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # or it would wait for ever
        is_alone = len(threading.enumerate()) == 1 and not watched.is_watching
        with web._no_forks.held():  # and may do so itself
            os._exit(0 if is_alone else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    looked(server)
