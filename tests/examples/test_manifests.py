"""Manifests of the examples: schemas, exit codes, commands. The README there says what no supervisor has read."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shlex
import subprocess
import sys
import threading

import pytest
import yaml
from supervisors import EXAMPLES, ROOT

from resume_core import Preempted, Preemption

CODE = Preemption().exit_code


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name):
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def parsed(command):
    """The arguments of a command for the example script, taken by its own parser."""
    program, script, *arguments = command
    assert (program, ROOT / script) == ("python", EXAMPLES / "accelerate_digits.py")
    return load("accelerate_digits").parser().parse_args(arguments)


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_would_take_every_field_of_its_manifest(version):
    kubernetes = pytest.importorskip("kubernetes_validate")
    for document in read("kubernetes.yaml"):
        kubernetes.validate(document, version, strict=True)
        with pytest.raises(kubernetes.ValidationError):
            kubernetes.validate({**document, "spec": {**document["spec"], "backofLimit": 6}}, version, strict=True)


def test_kubernetes_starts_a_run_again_that_has_left_and_counts_no_failure():
    claim, job = read("kubernetes.yaml")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    disrupted, left = job["spec"]["podFailurePolicy"]["rules"]
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    codes = {"containerName": container["name"], "operator": "In", "values": [CODE]}
    assert left == {"action": "Ignore", "onExitCodes": codes}
    assert (pod["restartPolicy"], job["spec"]["podReplacementPolicy"]) == ("Never", "Failed")
    assert pod["terminationGracePeriodSeconds"] >= Preemption().grace_s
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    names = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == names
    assert parsed(container["command"]).directory.startswith(container["volumeMounts"][0]["mountPath"])


def test_skypilot_starts_a_run_again_that_has_left():
    (task,) = read("skypilot.yaml")
    assert task.keys() == {"name", "resources", "envs", "workdir", "setup", "run"}
    assert task["resources"].keys() == {"accelerators", "use_spot", "job_recovery"}
    recovery = task["resources"]["job_recovery"]
    assert recovery.pop("recover_on_exit_codes") == [CODE]
    assert [*recovery] == ["max_restarts_on_errors"]
    assert type(recovery["max_restarts_on_errors"]) is int
    command = task["run"].replace("$RUN", task["envs"]["RUN"])
    assert parsed(shlex.split(command)).directory == task["envs"]["RUN"]


def test_every_supervisor_is_in_the_table_and_every_file_of_the_table_is_there():
    rows = [line.split("|")[2].strip() for line in (EXAMPLES / "README.md").read_text().splitlines() if "|" in line]
    named = {row.strip("`").partition("](")[2].rstrip(")") for row in rows if "](" in row}
    assert named == {path.name for path in EXAMPLES.iterdir() if path.suffix in (".sbatch", ".sh", ".yaml")} | {
        "ray_train.py"
    }


def test_the_script_for_ray_says_what_it_takes_where_there_is_no_ray():
    command = [sys.executable, "-I", EXAMPLES / "ray_train.py", "--help"]
    assert b"a folder that all machines see" in subprocess.check_output(command)
    assert load("ray_train").parser().parse_args(["run", "--workers", "3"]).workers == 3


def test_leaving_comes_out_of_a_thread_as_ray_trains_in_and_keeps_its_code_on_the_way_to_another_process():
    found = []

    def run():
        try:
            raise Preempted(CODE)
        except BaseException as error:  # as Ray Train does around the function of a worker
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert pickle.loads(pickle.dumps(found[0])).code == CODE


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ray_starts_workers_again_that_were_killed_and_they_go_on(tmp_path):
    pytest.importorskip("ray")
    import psutil
    from supervisors import finish, saved, start, wait_until

    def workers(process):
        found = psutil.Process(process.pid).children(recursive=True)
        return [each for each in found if "RayTrainWorker" in " ".join(each.cmdline())]

    ends = []
    for name in ("whole", "killed"):
        log = tmp_path / f"{name}.log"
        command = [sys.executable, EXAMPLES / "ray_train.py", tmp_path / name, "--epochs", "4"]
        process = start(command, log)
        if name == "killed":
            wait_until(lambda: 50 in saved(tmp_path / "killed"), process, log)
            os.kill(workers(process)[0].pid, 9)
        ends.append(finish(process, log))
    assert ends[0] == ends[1] != []
    assert "resumed at step" in log.read_text()
