"""Notices of clouds, and of a file or an address of the user's choice; each service is a server on this machine."""

from __future__ import annotations

import time

import pytest
from noticing import looked, notice, wait_for
from scratches import told
from servers.metadata import Aws, Azure, Custom, Gcp

from resume_core.preemption.notice import Notice

pytestmark = pytest.mark.usefixtures("looks")


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
