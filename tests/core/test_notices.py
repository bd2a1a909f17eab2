"""Notices of clouds, and of a file or an address of the user's choice; each service is a server on this machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from scratches import names, promotions_held, told
from servers.metadata import Aws, Azure, Custom, Gcp
from test_leaving import NEVER, PAUSE, leaves, send
from test_ranks import together
from test_session_ranks import Start

from resume_core import Preempted, Preemption, SaveEvery
from resume_core.policy import as_policy
from resume_core.preemption import NoticeWatch, clouds, places, web
from resume_core.preemption.notice import Notice
from resume_core.preemption.notices import NOTICES
from resume_core.preemption.places import sources
from resume_core.session import Session
from resume_core.state import Progress

LOG = logging.getLogger("exact_resume")
CLOUDS = {"aws": Aws, "gcp": Gcp, "azure": Azure}


def threads():
    return {each.ident for each in threading.enumerate() if each.name == "exact-resume-notices"}


@pytest.fixture(autouse=True)
def looks(monkeypatch, handlers, caplog):
    """Every place is looked at all the time, and no thread is left."""
    import httpx  # noqa: F401  where it is missing, no test waits for what cannot come

    caplog.set_level(logging.DEBUG, "exact_resume")
    before = threads()
    monkeypatch.delenv(NOTICES)
    for kind in (clouds.Aws, clouds.Gcp, clouds.Azure, places.File, places.Url):
        monkeypatch.setattr(kind, "every_s", 0.02)
    yield
    wait_for(lambda: threads() <= before)


@pytest.fixture
def serve():
    opened = []

    def serve(kind):
        opened.append(kind().__enter__())
        return opened[-1]

    yield serve
    for server in opened:
        server.__exit__(None, None, None)


@pytest.fixture
def watch():
    """A watch of places that has begun; ``environ`` is all of its environment."""
    begun = []

    def watch(*names, environ=None):
        begun.append(NoticeWatch(Preemption(notices=names).notices, LOG, environ or {}))
        begun[-1].start()
        return begun[-1]

    yield watch
    for each in begun:
        each.stop()


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def looked(server, num=5):
    """The server is asked so many times more: what is asked once at first, and at least one whole look."""
    server.asked.clear()
    wait_for(lambda: len(server.asked) >= num)


def notice(watch):
    wait_for(lambda: watch.at_once is not None)
    return watch.at_once


# ---- what a policy says


@pytest.mark.parametrize("given", [None, False, "off", "none", ()])
def test_nothing_is_asked_when_the_user_says_so(given):
    policy = Preemption(notices=given)
    assert policy.notices == ()
    watch = NoticeWatch(policy.notices, LOG, {})
    watch.start()
    assert not watch.is_watching


def test_places_are_taken_as_yaml_gives_them_and_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["aws=http://127.0.0.1:1338", "./leave", "~/leave", "file:///run/leave", Path("bare"), "https://host/leave"]
    found = as_policy(Preemption, {"notices": given}, "preemption").notices
    home = os.path.expanduser("~/leave")
    assert found == (given[0], f"{tmp_path}/leave", home, "/run/leave", f"{tmp_path}/bare", "https://host/leave")
    assert Preemption().notices == Preemption(notices="auto").notices == ("auto",)


@pytest.mark.parametrize("given", ["gpc", "aws=127.0.0.1", "s3://bucket/leave", "", 3, True, ["aws", None], "http://"])
def test_what_is_no_place_is_refused(given):
    with pytest.raises(ValueError, match=r"Preemption\.notices: .* is none of"):
        Preemption(notices=given)


def test_the_environment_overrides_the_policy(tmp_path):
    watch = NoticeWatch(("auto",), LOG, {NOTICES: f"gcp=http://there, {tmp_path}/leave"})
    assert [source.name for source in watch._sources] == ["GCP at http://there", f"{tmp_path}/leave"]
    assert NoticeWatch(("auto",), LOG, {NOTICES: "Off"})._sources == []
    with pytest.raises(ValueError, match=f"the environment variable {NOTICES}: 'gpc' is none of"):
        NoticeWatch(("auto",), LOG, {NOTICES: "gpc"})


def test_where_another_process_of_the_machine_looks_the_environment_does_not_change_that(tmp_path, monkeypatch):
    assert NoticeWatch(("auto",), LOG, {NOTICES: f"{tmp_path}/leave"}, looks=False)._sources == []
    with pytest.raises(ValueError, match="is none of"):  # of which all say alike that it is wrong
        NoticeWatch(("auto",), LOG, {NOTICES: "gpc"}, looks=False)


def test_addresses_are_those_that_the_tools_of_the_clouds_know():
    def found(*named, **environ):
        return [source.name for source in sources(named, environ)]

    plain = "http://169.254.169.254"
    assert found("auto") == [f"AWS at {plain}", f"GCP at {plain}", f"Azure at {plain}"]
    assert found("aws", AWS_EC2_METADATA_SERVICE_ENDPOINT="http://there:1/") == ["AWS at http://there:1"]
    assert found("aws", AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE="IPv6") == ["AWS at http://[fd00:ec2::254]"]
    assert found("gcp", GCE_METADATA_HOST="there:1") == ["GCP at http://there:1"]
    assert found("auto", AWS_EC2_METADATA_DISABLED="true") == [f"GCP at {plain}", f"Azure at {plain}"]
    assert found("auto", "azure=http://there")[0] == "Azure at http://there"
    assert len(found("auto", "azure=http://there")) == 3


# ---- each protocol


@pytest.mark.parametrize(
    ("action", "verb"), [("terminate", "terminates"), ("stop", "stops"), ("hibernate", "hibernates")]
)
def test_aws_tells_of_an_interruption_and_when(serve, watch, action, verb):
    server = serve(Aws)
    watched = watch(f"aws={server.base}")
    looked(server)
    assert watched.at_once is None
    server.interrupt(action=action)
    found = notice(watched)
    assert found.why.startswith(f"AWS {verb} this spot instance at 20")
    assert found.why.endswith(" UTC")
    assert 100 < found.end_s - time.time() <= 120
    assert len(server.tokens) == 1


def test_the_token_of_aws_is_renewed_before_it_ends_and_when_it_is_refused(serve, watch):
    server = serve(Aws)
    server.ttl_s = 1
    watched = watch(f"aws={server.base}")
    wait_for(lambda: len(server.tokens) >= 2)
    assert server.asked.count("PUT /latest/api/token") == len(server.tokens)
    assert not server.num_refused
    server.ttl_s = 21600
    time.sleep(1.0)
    server.tokens = {"another": 0.0}  # as after the service was started again
    looked(server)
    assert len(server.tokens) == 2
    assert server.num_refused == 1
    server.interrupt()
    notice(watched)


def test_a_rebalance_recommendation_asks_for_one_save_and_not_to_leave(serve, watch, caplog):
    server = serve(Aws)
    watched = watch(f"aws={server.base}")
    looked(server)
    server.rebalance = '{"noticeTime": "2026-11-30T08:22:00Z"}'
    wait_for(lambda: watched._is_early)
    looked(server, 8)
    assert watched.take_early()
    assert not watched.take_early()
    assert watched.at_once is None
    assert len(told(caplog, "rebalance recommendation")) == 1
    server.interrupt()
    assert notice(watched).why.startswith("AWS terminates")


def test_gcp_tells_of_a_preemption(serve, watch):
    server = serve(Gcp)
    watched = watch(f"gcp={server.base}")
    looked(server)
    assert watched.at_once is None
    server.values["preempted"] = "TRUE"
    assert notice(watched) == Notice("GCP preempts this instance")


def test_gcp_tells_of_maintenance_and_a_migration_is_no_end(serve, watch):
    server = serve(Gcp)
    watched = watch(f"gcp={server.base}")
    server.values["maintenance-event"] = "MIGRATE_ON_HOST_MAINTENANCE"
    looked(server, 8)
    assert watched.at_once is None
    server.values["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    assert notice(watched).why == "GCP stops this instance for maintenance of its host"


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_azure_tells_of_the_end_of_this_machine_alone(serve, watch, kind):
    server = serve(Azure)
    watched = watch(f"azure={server.base}")
    looked(server)
    server.announce("Freeze", "trainer_3")
    server.announce(kind, "trainer_4")
    looked(server)
    assert watched.at_once is None
    server.announce(kind, "other", "Trainer_3", in_s=40)
    found = notice(watched)
    assert found.why.startswith("Azure ")
    assert " this machine, not before 20" in found.why
    assert 20 < found.end_s - time.time() <= 40
    assert not [asked for asked in server.asked if asked.startswith("POST")]


def test_an_event_of_azure_that_has_begun_has_no_time(serve, watch):
    server = serve(Azure)
    watched = watch(f"azure={server.base}")
    looked(server)
    server.announce("Preempt", "trainer_3", in_s=None)
    assert notice(watched) == Notice("Azure preempts this machine")


def test_what_azure_has_planned_for_another_day_is_no_reason_yet_and_may_be_called_off(serve, watch):
    server = serve(Azure)
    watched = watch(f"azure={server.base}")
    looked(server)
    server.announce("Redeploy", "trainer_3", in_s=86400)
    wait_for(lambda: watched.ahead is not None)
    assert watched.at_once is None
    server.events.clear()
    wait_for(lambda: watched.ahead is None)


def test_a_file_is_a_notice_when_it_appears_or_changes(watch, tmp_path):
    path = tmp_path / "leave"
    path.write_text("of yesterday")
    watched = watch(path)
    time.sleep(0.1)
    assert watched.at_once is None
    path.write_text("\n \nmaintenance\x1b[31m at noon\nand more")
    assert notice(watched).why.startswith(f"the notice {path}")
    again = watch(path)
    time.sleep(0.1)
    path.unlink()
    time.sleep(0.1)
    assert again.at_once is None
    path.write_text("maintenance at noon")
    assert notice(again).why.startswith(f"the notice {path}")


def test_a_file_that_appears_between_two_fits_of_a_script_is_a_notice(watch, tmp_path):
    watch(tmp_path / "leave").stop()
    (tmp_path / "leave").touch()
    assert notice(watch(tmp_path / "leave")).why == f"the notice {tmp_path / 'leave'}"
    again = watch(tmp_path / "leave")  # a cell that is run again behind it
    time.sleep(0.1)
    assert again.at_once is None


def test_the_first_line_of_a_file_is_said(watch, tmp_path):
    watched = watch(tmp_path / "leave")
    (tmp_path / "new").write_text("\n \nmaintenance\x1b at noon \nand more")
    (tmp_path / "new").rename(tmp_path / "leave")
    assert notice(watched).why == f"the notice {tmp_path / 'leave'} (maintenance at noon)"


def test_an_address_of_the_users_own_is_a_notice_when_it_answers_200(serve, watch, caplog):
    server = serve(Custom)
    place = server.base.replace("http://", "http://me:secret@") + "/leave?key=secret"
    watched = watch(place)
    for status in (404, 204, 500, 302):
        server.says = (status, "not yet", {"Location": f"{server.base}/elsewhere"} if status == 302 else {})
        looked(server)
        assert watched.at_once is None
    server.says = (200, "drained at noon", {})
    assert notice(watched).why == f"the notice at {server.base}/leave (drained at noon)"
    assert not [asked for asked in server.asked if "elsewhere" in asked]
    assert "secret" not in caplog.text


def test_an_address_that_does_not_answer_yet_is_said_once_and_asked_again(serve, watch, caplog):
    server = serve(Custom)
    server.broken = 500
    watched = watch(f"{server.base}/leave")
    looked(server)
    server.broken, server.says = None, (200, "", {})
    assert notice(watched).why == f"the notice at {server.base}/leave"
    assert [r.levelname for r in caplog.records if "no answer about notices" in r.getMessage()].count("WARNING") == 1


# ---- what does not answer, or not always


def closed_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


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


# ---- what the run does about it


def begin(start, directory, *notices, save=NEVER, **arguments):
    preemption = arguments.pop("preemption", Preemption(notices=notices))
    return start(directory, save=save, preemption=preemption, **arguments)


def test_the_next_boundary_saves_and_the_process_ends(directory, start, serve, caplog):
    server = serve(Aws)
    run = begin(start, directory, f"aws={server.base}").train(2)
    looked(server)
    run.train(1)
    server.interrupt()
    notice(run.session._leaving._notices)
    assert leaves(run, in_window=True) == 143
    assert "AWS terminates this spot instance at" in told(caplog, "the run is saved at step 4")[0]
    again = start(directory, save=NEVER, preemption=Preemption(notices=None))
    assert again.restored.progress == Progress(step=4, batch=4, in_window=True)
    again.session.end()


def test_what_stands_at_the_start_lets_a_run_get_on_by_a_batch(directory, start, serve):
    server = serve(Gcp)
    server.values["preempted"] = "TRUE"
    for step in (1, 2, 3):  # a supervisor starts it again and again on the same machine
        run = begin(start, directory, f"gcp={server.base}")
        notice(run.session._leaving._notices)
        leaves(run)
        assert names(directory)[-1].endswith(f"-{step:09d}")


def test_what_stands_at_the_start_with_an_end_lets_a_run_train_until_shortly_before(directory, start, serve):
    server = serve(Aws)
    server.interrupt(in_s=600)
    run = begin(start, directory, f"aws={server.base}")
    leaving = run.session._leaving
    wait_for(lambda: leaving._notices.ahead is not None)
    run.train(20)
    leaving._save_s = lambda: 400.0  # twice that, and a margin, is kept
    assert leaves(run) == 143


def test_what_comes_late_and_is_hours_ahead_lets_a_run_go_on(directory, start, serve):
    server, now = serve(Azure), [0.0]
    run = begin(start, directory, f"azure={server.base}")
    leaving = run.session._leaving
    leaving._clock, leaving._looked_s = lambda: now[0], 0.0
    for now[0] in range(0, 20_000, 1000):
        run.train(1)
    server.announce("Reboot", "trainer_3", in_s=6000)
    wait_for(lambda: leaving._notices.ahead is not None)
    now[0] += 100
    run.train(1)
    now[0] += 3000  # twice what a batch has taken is more than what is left
    assert leaves(run) == 143


def test_a_rebalance_recommendation_saves_once_and_the_run_goes_on(directory, start, serve):
    server = serve(Aws)
    run = begin(start, directory, f"aws={server.base}").train(2)
    looked(server)
    server.rebalance = '{"noticeTime": "2026-11-30T08:22:00Z"}'
    wait_for(lambda: run.session._leaving._notices._is_early)
    run.train(3).session.end()
    assert [int(name[-9:]) for name in names(directory)] == [0, 3]


def test_with_an_end_too_near_for_the_directory_it_is_said(directory, near, start, serve, monkeypatch, caplog):
    server = serve(Azure)
    run = begin(start, directory, f"azure={server.base}", scratch=near).train(1)
    run.session.wait()
    looked(server)
    server.announce("Preempt", "trainer_3", in_s=0.0)
    notice(run.session._leaving._notices)
    with promotions_held(monkeypatch) as release:
        threading.Timer(0.4, release.set).start()
        leaves(run)
    assert "takes longer than the notice leaves time for" in caplog.text


def test_a_signal_goes_before_a_notice(directory, start, tmp_path, caplog):
    run = begin(start, directory, tmp_path / "leave").train(1)
    (tmp_path / "leave").touch()
    notice(run.session._leaving._notices)
    send()
    leaves(run)
    assert "SIGTERM: the run is saved" in caplog.text


def test_a_notice_before_a_long_pause_that_was_saved_ends_the_process_there(directory, start, tmp_path):
    run = begin(start, directory, preemption=Preemption(grace_s=0.05, notices=tmp_path / "leave")).train(1)
    with run.session.pause(PAUSE):
        time.sleep(0.1)
    run.session.boundary(Progress(step=1, batch=1), lambda: [PAUSE])
    (tmp_path / "leave").touch()
    notice(run.session._leaving._notices)
    with pytest.raises(Preempted) as left, run.session.pause(PAUSE):
        raise AssertionError("the pause began")
    run.session.end(left.value)


def test_nothing_is_asked_after_the_end_of_the_run(directory, start, serve):
    server = serve(Gcp)
    run = begin(start, directory, f"gcp={server.base}").train(1)
    looked(server)
    run.session.end()
    wait_for(lambda: not run.session._leaving._notices.is_watching)
    num = len(server.asked)
    time.sleep(0.1)
    assert len(server.asked) == num


def test_one_rank_of_a_machine_looks_and_all_leave_at_one_boundary(toy, tmp_path, monkeypatch):
    path, lock = tmp_path / "leave", threading.Lock()

    def work(ranks):
        with lock:  # the environment is of a process, and these ranks are threads
            monkeypatch.setenv("LOCAL_RANK", "10" if ranks.rank == 0 else "0")  # rank 1 is the first of its machine
            preemption = Preemption(signals=(), notices=path)
            run = Start.__new__(Start)
            run.toy = toy()
            run.toy.ranks = ranks
            run.session = Session(run.toy, tmp_path / "run", save=NEVER, preemption=preemption)
        run.restored = run.session.start(7)
        run.num = 0
        run.session.begin(run.progress)
        assert run.session._leaving._notices.is_watching == (ranks.rank == 1)
        run.train(3)
        path.touch()
        try:
            run.train(100_000, settle=False)
        except Preempted as left:
            run.session.end(left)
            return run.num
        return None

    found, _ = together(2, work)
    assert found[0] is not None
    assert found[0] == found[1]


def test_all_ranks_save_early_when_one_is_told(toy, tmp_path):
    def work(ranks):
        save = SaveEvery(steps=None, minutes=None)
        run = Start(toy(), tmp_path, ranks, save=save, preemption=Preemption(notices=None)).train(1)
        run.session._leaving._notices._is_early = ranks.rank == 1
        while not ranks.share("is it saved", len(names(tmp_path)) == 2) and run.num < 100_000:
            run.train(1, settle=False)
        run.session.end()
        return run.num

    found, _ = together(2, work)
    assert found[0] == found[1]
    assert len(names(tmp_path)) == 2
