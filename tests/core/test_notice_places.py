"""Which places are looked at for notices: what a policy and the environment say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from noticing import LOG

from resume_core import Preemption
from resume_core.policy import as_policy
from resume_core.preemption import NoticeWatch
from resume_core.preemption.notices import NOTICES
from resume_core.preemption.places import sources

pytestmark = pytest.mark.usefixtures("looks")


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
