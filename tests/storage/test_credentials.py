"""Credentials are used and never shown: not in an address, an error, the log, a repr or a file."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback

import pytest

from resume_core.storage import open_store
from resume_core.storage.redact import Redactor, public_url

from .helpers import Run, tree

SECRET = "wJalrXUtnFEMI/K7MDENG+bPx"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sftp://me:pass/word@host/run", "sftp://host/run"),
        ("sftp://me@host/run", "sftp://host/run"),
        ("s3://bucket/user@host/run", "s3://bucket/user@host/run"),
        ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/user@host", None),
        ("abfs://box/run?sig=abc", "abfs://box/run"),
        ("memory://run", "memory://run"),
    ],
)
def test_an_address_is_shown_without_user_password_and_query(url, shown):
    assert public_url(url) == (shown or url)


def test_credentials_are_found_wherever_the_options_hold_them():
    options = {
        "key": "AKIAEXAMPLE",
        "client_kwargs": {"aws_secret_access_key": SECRET, "region_name": "eu-west-1"},
        "endpoint_url": "https://someone:hidden@example.org",
        "profile": "work",
        "anon": False,
    }
    text = Redactor("sftp://u:letmein@host", options).hide(
        f"AKIAEXAMPLE {SECRET} someone hidden letmein work eu-west-1"
    )
    assert text == "*** *** *** *** *** work eu-west-1"


@pytest.mark.parametrize("url", [f"s3://AKIAEXAMPLE:{SECRET}@bucket/run", f"s3a://AKIAEXAMPLE:{SECRET}@bucket"])
def test_credentials_in_an_s3_url_are_refused_and_not_repeated(url):
    with pytest.raises(ValueError, match="takes no credentials in the URL") as caught:
        open_store(url)
    assert SECRET not in str(caught.value)
    assert "AKIAEXAMPLE" not in str(caught.value)


class Leaky:
    """A file system whose errors show what it was opened with."""

    def __init__(self, store):
        self._real = store._fs

    def __getattr__(self, name):
        return getattr(self._real, name)

    def pipe_file(self, *args, **kwargs):
        try:
            raise RuntimeError(f"the peer refused {SECRET}")
        except RuntimeError as error:
            raise OSError(5, f"cannot log in with {SECRET}") from error


def test_an_error_that_shows_a_credential_loses_it_with_its_cause(caplog):
    caplog.set_level(logging.DEBUG)
    store = open_store("memory://leaky", {"token": SECRET, "skip_instance_cache": True})
    store._fs = Leaky(store)
    with pytest.raises(OSError, match=r"memory://leaky/a: cannot log in with \*\*\*") as caught:
        store.put("a", b"x")
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(store)
    assert "trying again" in caplog.text
    assert SECRET not in shown


def test_a_missing_package_is_named_with_the_way_to_get_it(monkeypatch):
    monkeypatch.delitem(
        importlib.import_module("fsspec.registry")._registry, "s3", raising=False
    )  # loaded by another test
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ImportError, match=r'pip install "exact-resume\[s3\]"'):
        open_store("s3://bucket/run", {"key": "uncached"})


@pytest.mark.s3
def test_wrong_credentials_are_an_error_that_does_not_show_them(s3, s3_url, caplog):
    caplog.set_level(logging.DEBUG)
    store = open_store(s3_url, {**s3.storage_options, "secret": SECRET})
    for call in (lambda: store.put("a", b"x"), lambda: store.create("a", b"x"), lambda: store.list("")):
        with pytest.raises(PermissionError, match="s3://") as caught:
            call()
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in caplog.text


@pytest.mark.s3
def test_no_credential_is_written_into_the_run(s3, s3_url):
    store = open_store(s3_url, s3.storage_options)
    run = Run(store)
    run.save(1)
    for key in tree(store):
        assert s3.storage_options["secret"].encode() not in store.read(key)


@pytest.mark.s3
def test_a_profile_gives_credentials_and_endpoint(s3, s3_url, tmp_path, monkeypatch):
    config = tmp_path / "config"
    options = s3.storage_options
    config.write_text(
        f"[profile work]\naws_access_key_id = {options['key']}\naws_secret_access_key = {options['secret']}\n"
        f"endpoint_url = {options['endpoint_url']}\nregion = us-east-1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store = open_store(s3_url, {"profile": "work"})
    store.put("a", b"x")
    assert open_store(s3_url, options).read("a") == b"x"
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert open_store(s3_url).read("a") == b"x"


@pytest.mark.s3
def test_without_credentials_it_is_said_at_once(s3, s3_url, caplog):
    store = open_store(s3_url, {"endpoint_url": s3.storage_options["endpoint_url"]})
    with pytest.raises(OSError, match=r"(?i)credentials"):
        store.put("a", b"x")
    assert "trying again" not in caplog.text
