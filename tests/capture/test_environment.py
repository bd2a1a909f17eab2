"""What changes numbers is found; what changes under a run that nobody touched is said and blocks nothing."""

import logging

import pytest
import torch
from descriptions import changed, through_json

from resume_core.accepted import report
from resume_core.capture.chosen import describe_sample_ids
from resume_core.capture.environment import describe_environment
from resume_core.capture.exactness import ends_exactness
from resume_core.capture.facts_version import FACTS
from resume_core.capture.fleeting import is_fleeting
from resume_core.capture.runconfig import check, diff
from resume_core.errors import ConfigChangedError, ResumeError
from resume_core.policy import Changes
from resume_core.state import Fact

SWITCHES = {
    "deterministic": (lambda on: torch.use_deterministic_algorithms(on), True, False),
    "deterministic, warnings only": (lambda on: torch.use_deterministic_algorithms(on, warn_only=on), True, False),
    "cudnn_benchmark": (lambda on: setattr(torch.backends.cudnn, "benchmark", on), True, False),
    "cudnn_deterministic": (lambda on: setattr(torch.backends.cudnn, "deterministic", on), True, False),
    "cudnn_tf32": (lambda on: setattr(torch.backends.cudnn, "allow_tf32", on), False, True),
    "float32_matmul_precision": (torch.set_float32_matmul_precision, "high", "highest"),
    "default_dtype": (torch.set_default_dtype, torch.float64, torch.float32),
    "attention": (torch.backends.cuda.enable_flash_sdp, False, True),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_that_changes_numbers_changes_the_run(switch):
    turn, other, usual = SWITCHES[switch]
    before = describe_environment()
    turn(other)
    try:
        after = describe_environment()
    finally:
        turn(usual)
    found = {d.name: d.severity for d in diff(before, after)}
    assert found[f"environment.{switch.partition(',')[0]}"] == "run"
    assert describe_environment() == before


def test_a_switch_of_another_torch_is_not_compared():
    current = describe_environment()
    saved = {**current, "environment.matmul_tf32": Fact(None, "info")}
    assert {d.severity for d in diff(saved, {**current, "environment.matmul_tf32": Fact(True)})} == {"info"}


@pytest.mark.parametrize(
    ("name", "saved", "current", "expected"),
    [
        ("packages.torch", "2.10.0", "2.10.1", False),
        ("packages.torch", "2.10.0", "2.11.0", True),
        ("packages.torch", "2.10.0+cpu", "2.10.0+cu130", True),
        ("packages.numpy", "1.26.4", "2.0.0", True),
        ("packages.numpy", "2.0.0rc1", "2.0.0", False),
        ("packages.timm", "odd", "other", True),
        ("packages.exact-resume", "0.1.0", "0.2.0", False),
        ("environment.host", "a", "b", False),
        ("environment.cpu", "EPYC", "Xeon", True),
        ("environment.cpu_capability", "AVX2", "AVX512", True),
        ("environment.gpus", ["H200"], ["H200", "H200"], False),
        ("environment.gpus", ["H200"], ["A100"], True),
        ("environment.gpus", [], ["A100"], True),
        ("code.commit", "a", "b", True),
        ("code.diff", None, "none", False),
        ("max_epochs", 3, 4, False),
    ],
)
def test_what_ends_exactness(name, saved, current, expected):
    assert ends_exactness(name, saved, current) is expected


def test_another_machine_is_a_warning_that_names_both_and_blocks_nothing(caplog):
    saved = {"environment.cpu": Fact("EPYC", "info"), "environment.host": Fact("a", "info")}
    current = {"environment.cpu": Fact("Xeon", "info"), "environment.host": Fact("b", "info")}
    accepted = check(saved, current, Changes())
    caplog.set_level(logging.INFO)
    report(accepted, logging.getLogger("exact_resume"))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "bit for bit" in warning
    assert '"EPYC"' in warning
    assert '"Xeon"' in warning
    assert "environment.host" not in warning
    assert accepted.record() == [
        {"name": "environment.cpu", "severity": "info", "saved": "EPYC", "current": "Xeon", "accepted_as": "inexact"}
        | {"is_applied": True}
    ]


@pytest.mark.parametrize("name", ["environment.mkldnn", "data.0.collate_fn.max_length", "data.1.dataset.files.sizes"])
def test_a_fact_that_an_older_release_did_not_take_is_no_change(name):
    current = {FACTS: Fact(2, "info"), name: Fact(1)}
    assert check({}, current, Changes()).info
    with pytest.raises(ConfigChangedError):
        check({FACTS: Fact(2, "info")}, current, Changes())


def test_what_an_older_release_knew_as_well_is_a_change():
    with pytest.raises(ConfigChangedError):
        check({}, {FACTS: Fact(2, "info"), "scheduler.0.T_max": Fact(9)}, Changes())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_dir", "images"), ("dataDir", "images"), ("started", 1764510000.5), ("x", 1764510000123), ("job_id", 17),
        ("name", "red"), ("run_name", "red-7"), ("num_workers", 4), ("max_epochs", 9), ("max_steps", 900), ("port", 1),
        ("x", "/tmp/abc"), ("x", "2026-11-30"), ("x", "12:30"), ("x", "<Foo object>"), ("x", "a1b2c3d4e5"),
        ("x", ["a", "/tmp/b"]), ("x", {"host": "b"}), ("checkpoint", "b"), ("x", 4711123456.0), ("log_every", 5),
        ("restart_count", 3), ("SLURM_RESTART", 1),
    ],
)  # fmt: skip
def test_values_that_differ_by_themselves_are_fleeting(name, value):
    assert is_fleeting(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dropout", 0.1), ("activation", "gelu"), ("max_length", 128), ("model", "bert-base-uncased"), ("bias", True),
        ("precision", "16-mixed"), ("layers", [2, 2]), ("temperature", 2.0), ("loss", "resnet50"),
        ("optimizer_name", "a"), ("weight", None), ("betas", [0.9, 0.999]), ("vocabulary", 50257),
    ],
)  # fmt: skip
def test_settings_are_not(name, value):
    assert not is_fleeting(name, value)


# ---- ids of samples


def test_a_list_and_a_file_of_its_lines_are_the_same_ids(tmp_path):
    path = tmp_path / "ids.txt"
    expected = describe_sample_ids(Changes(sample_ids=["a", "b", "ü"]).sample_ids)
    for text in ("a\nb\nü", "a\nb\nü\n", "a\r\nb\r\nü\r\n"):
        path.write_bytes(text.encode())
        assert describe_sample_ids(Changes(sample_ids=path).sample_ids) == expected
        assert describe_sample_ids(Changes(sample_ids=str(path)).sample_ids) == expected
    assert expected["sample_ids.count"] == Fact(3)


@pytest.mark.parametrize("other", [["a", "c"], ["b", "a"], ["a"], ["a", "b", "c"], []])
def test_other_ids_or_another_order_change_the_run(other):
    found = diff(describe_sample_ids(("a", "b")), describe_sample_ids(Changes(sample_ids=other).sample_ids))
    assert {d.severity for d in found} == {"run"}


def test_ids_that_one_run_alone_gives_are_no_change():
    given, absent = describe_sample_ids(("a",)), describe_sample_ids(None)
    assert {d.severity for d in (*diff(given, absent), *diff(absent, given))} == {"info"}


def test_numbers_and_tensors_are_ids():
    expected = describe_sample_ids(("1", "2"))
    for ids in ([1, 2], range(1, 3), torch.tensor([1, 2])):
        assert describe_sample_ids(Changes(sample_ids=ids).sample_ids) == expected


def test_a_file_of_ids_that_is_missing_says_what_to_do(tmp_path):
    with pytest.raises(ResumeError, match="one id of a sample a line"):
        describe_sample_ids(Changes(sample_ids=tmp_path / "none").sample_ids)


@pytest.mark.parametrize(("wrong", "error"), [("s3://bucket/ids", ValueError), (5, TypeError), ({"a": 1}, TypeError)])
def test_what_are_no_ids_is_refused(wrong, error):
    with pytest.raises(error, match="sample_ids"):
        Changes(sample_ids=wrong)


def test_machine_and_versions_are_information_and_plain():
    facts = describe_environment()

    machine = ("packages.torch", "environment.host", "environment.cpu", "environment.gpus", "environment.threads")
    assert {facts[name].severity for name in machine} == {"info"}
    assert facts["packages.torch"].value == torch.__version__
    assert facts["environment.threads"].value == torch.get_num_threads()
    assert facts["environment.default_dtype"].value == "torch.float32"
    assert facts["environment.cpu"].value
    assert through_json(facts) == facts


def test_another_number_of_threads_is_found():
    threads = torch.get_num_threads()
    before = describe_environment()
    try:
        torch.set_num_threads(threads + 1)
        assert changed(before, describe_environment()) == {"environment.threads": (threads, threads + 1)}
    finally:
        torch.set_num_threads(threads)


def test_describing_the_environment_starts_no_cuda_runtime():
    before = torch.cuda.is_initialized()

    describe_environment()

    assert torch.cuda.is_initialized() == before


def test_the_gpus_of_a_running_cuda_runtime_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"card {i}")

    assert describe_environment()["environment.gpus"].value == ["card 0", "card 1"]


def test_a_machine_without_cpuinfo_is_still_described(monkeypatch):
    monkeypatch.setattr("pathlib.Path.read_text", lambda *args, **kwargs: "nothing that helps")

    assert isinstance(describe_environment()["environment.cpu"].value, str)
