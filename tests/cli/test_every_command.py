"""What all commands have in common: how they meet a directory that is none of theirs, and what a large one costs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from crafted import tree
from test_verify import trained
from typer.testing import CliRunner

from resume_core.cli import app
from resume_core.cli.exits import EXIT_CODES
from resume_core.cli.options import parse_storage_options
from resume_core.storage import FileRecord, Lineage, LocalStore, Manifest

# what follows the URL; those that are not here read no run
COMMANDS = {
    "diff": ["{url}"],
    "export": ["{out}/weights.safetensors", "--format", "safetensors"],
    "ls": ["--all"],
    "plan": [],
    "prune": ["--yes"],
    "report": ["--out", "{out}/report.html"],
    "show": [],
    "verify": [],
}
OTHERS = {"demo", "drill"}
NUM = 300


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def run(tmp_path):
    return Path(trained(str(tmp_path / "run")))


def invoke(command, url, out, *options):
    arguments = [argument.format(url=url, out=out) for argument in COMMANDS[command]]
    result = CliRunner().invoke(app, [command, str(url), *arguments, *options], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_every_command_is_here():
    names = {each.name or each.callback.__name__ for each in app.registered_commands}
    assert names == {*COMMANDS, *(OTHERS & names)}
    assert "0, done" in EXIT_CODES
    shown = CliRunner().invoke(app, ["--help"])
    assert "Exit codes of all commands" in " ".join(shown.output.split())
    for name in names:
        page = " ".join(CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output.split())
        assert "--json" in page, name
        assert "Exit code 0" in page, name
        assert name in OTHERS or "--storage-option" in page, name


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["empty", "missing", "foreign", "file", "nope://bucket/run"])
def test_where_there_is_no_run(command, kind, tmp_path, out):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign" / "attempt-1-backup" / "step-000000001").mkdir(parents=True)
    (tmp_path / "foreign" / "attempt-1-backup" / "step-000000001" / "manifest.json").write_text("mine")
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = tree(tmp_path)
    result = invoke(command, kind if "://" in kind else tmp_path / kind, out)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("no")  # nothing was ..., no plan, no report
    assert len(result.stderr) < 400
    assert tree(tmp_path) == before


@pytest.mark.s3
def test_a_bucket_that_is_not_there(s3, out):
    options = [f"--storage-option={name}={value}" for name, value in s3.storage_options.items()]
    for command in COMMANDS:
        result = invoke(command, "s3://no-such-bucket/run", out, *options)
        assert (result.exit_code, result.stdout) == (2, ""), (command, result.output)
        assert result.stderr.startswith("no"), command
        assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "code"),
    {"diff": 1, "export": 1, "ls": 0, "plan": 0, "prune": 0, "report": 0, "show": 1, "verify": 1}.items(),
)
@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_a_damaged_checkpoint(command, code, name, run, out):
    path = max(run.glob(f"*/step-*/{name}"))
    path.write_bytes(path.read_bytes()[:-3])
    result = invoke(command, run, out)
    assert result.exit_code == (0 if (command, name) == ("diff", "model.safetensors") else code), result.output
    if code:
        assert "step-000000003" in result.output or (command, name) == ("diff", "model.safetensors")
        assert list(out.iterdir()) == [] or command == "diff"
    assert path.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_files_of_others_beside_those_of_a_run(command, run, out):
    (attempt,) = run.iterdir()
    foreign = [run / "notes.txt", run / "attempt-0009-abcd", run / "attempt-1-backup" / "x", attempt / "step-3" / "x"]
    foreign += [attempt / "step-000000001" / "model (copy).safetensors", run / "attempt-0002-zzzz" / "attempt.json"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    result = invoke(command, run, out)
    assert result.exit_code == 0, result.output
    assert all(path.read_text() == "mine" for path in foreign)


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_all_that_comes_out(command, run, out):
    result = invoke(command, run, out, "--json")
    assert isinstance(json.loads(result.stdout), dict)


@pytest.mark.parametrize("command", COMMANDS)
def test_any_url_will_do(command, tmp_path, out):
    url = trained(f"memory://{tmp_path.name}/run")
    result = invoke(command, url, out, "--storage-option", "skip_instance_cache=true")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["diff", "export", "show", "verify"])
@pytest.mark.parametrize("name", ["2", "step 2", "attempt-0001/2", "attempt 1/step-000000002", "{attempt}"])
def test_a_checkpoint_may_be_named_beside_its_run(command, name, run, out):
    (attempt,) = run.iterdir()
    name = name.format(attempt=f"{attempt.name}/step-000000002")
    rest = [argument.format(out=out) for argument in COMMANDS[command] if command != "diff"]
    for place in (run, attempt):
        result = CliRunner().invoke(app, [command, str(place), name, *rest], env={"COLUMNS": "200"})
        assert result.exit_code == (1 if command == "diff" else 0), result.output
        assert f"{attempt.name}/step-000000002" in result.stdout
        assert command == "diff" or "step-000000003" not in result.stdout
        shutil.rmtree(out, ignore_errors=True)


@pytest.mark.parametrize("command", ["diff", "export", "show", "verify"])
def test_a_name_that_fits_nothing_names_the_nearest(command, run, out):
    rest = [argument.format(out=out) for argument in COMMANDS[command] if command != "diff"]
    result = CliRunner().invoke(app, [command, str(run), "77", *rest], env={"COLUMNS": "200"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no checkpoint '77'" in result.stderr
    assert "The nearest are" in result.stderr
    assert "step-000000003" in result.stderr


def test_storage_options_are_pairs_or_json_and_those_of_the_environment_come_first(monkeypatch):
    monkeypatch.setenv("EXACT_RESUME_STORAGE_OPTIONS", '{"anon": true, "key": "a"}')
    given = ["key=b", 'client_kwargs={"endpoint_url": "http://here"}', '{"secret": "x=y"}', "use_ssl=false"]
    expected = {"anon": True, "key": "b", "secret": "x=y", "use_ssl": False}
    assert parse_storage_options(given) == {**expected, "client_kwargs": {"endpoint_url": "http://here"}}
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        parse_storage_options(["anon"])


def test_a_shell_completes_them():
    code = "from resume_core.cli import app; app(prog_name='exact-resume')"
    words = {"_EXACT_RESUME_COMPLETE": "complete_bash", "COMP_WORDS": "exact-resume pr", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **words})
    assert done.stdout.split() == ["prune"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A run of many checkpoints, of which there are only the manifests."""
    store = LocalStore(tmp_path_factory.mktemp("large") / "run")
    keep = {"last": 3, "every_steps": None, "every_epochs": None, "best": None, "mode": "min", "thin_after": None}
    attempt = Lineage(store).claim(info={"keep": keep})
    record = FileRecord("model.safetensors", 1000, 1 << 24, ("0" * 32,))
    for step in range(NUM):
        progress = {"step": step, "batch": step, "epoch": 0, "epoch_batch": step}
        config = {"structure": {}, "run": {}, "info": {}}
        header = {"progress": progress, "metrics": {"loss": 1 / (step + 1)}, "key": 1, "config": config}
        manifest = Manifest(attempt.name, f"step-{step:09d}", step, 1, (record,), header)
        store.put(f"{manifest.ref.path}/manifest.json", manifest.to_bytes())
    return Path(store.url)


@pytest.mark.parametrize(
    ("command", "arguments", "most_read", "most_parsed"),
    [
        ("ls", ["{url}"], 40, 40),
        ("ls", ["{url}", "--all"], NUM + 10, NUM),
        ("show", ["{url}"], NUM + 10, 2),
        ("show", ["{named}"], 10, 2),
        ("diff", ["{url}", "{url}"], 2 * NUM + 20, 4),
        ("diff", ["{url}", "{named}"], NUM + 20, 4),
        ("plan", ["{url}"], NUM + 10, 10),
        ("prune", ["{url}", "--dry-run"], NUM + 10, NUM),
        ("report", ["{url}", "--json"], NUM + 10, NUM),
        ("verify", ["{url}", "--newest"], NUM + 10, 2),
        ("verify", ["{named}"], 10, 2),
        ("export", ["{url}", "{out}/w.safetensors", "--format", "safetensors"], NUM + 10, 2),
        ("export", ["{named}", "{out}/w.safetensors", "--format", "safetensors"], 10, 2),
    ],
)
def test_a_large_run_is_read_once(command, arguments, most_read, most_parsed, large, out, monkeypatch):
    """What is asked for has a bound: files read, folders listed, and manifests of which all was parsed."""
    count = dict.fromkeys(("read", "list", "size", "mark"), 0)
    for name in count:
        plain = getattr(LocalStore, name)

        def counted(store, key, name=name, plain=plain):
            count[name] += 1
            return plain(store, key)

        monkeypatch.setattr(LocalStore, name, counted)
    parsed = []
    from_bytes = Manifest.from_bytes.__func__
    monkeypatch.setattr(
        Manifest, "from_bytes", classmethod(lambda cls, *a, **b: parsed.append(1) or from_bytes(cls, *a, **b))
    )
    named = max(large.glob("*/step-*7"))
    given = [argument.format(url=large, named=named, out=out) for argument in arguments]
    result = CliRunner().invoke(app, [command, *given], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert 0 < count["read"] <= most_read
    assert 0 < len(parsed) <= most_parsed
    assert max(count["size"], count["mark"]) <= most_read
    assert count["list"] <= 20


def test_ctrl_c_says_so_and_leaves_nothing(run, out, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalStore, "open_file", stop)
    result = invoke("export", run, out)
    assert result.exit_code == 130
    assert list(out.iterdir()) == []
    shutil.rmtree(run)


def test_looking_at_a_run_needs_no_torch():
    modules = ("diff.compare", "export.run", "ls.listing", "prune.doomed", "report.facts", "show.facts", "verify.check")
    code = "import importlib, sys\n" + "\n".join(
        f"importlib.import_module('resume_core.cli.{module}')" for module in modules
    )
    code += "\nprint([name for name in ('torch', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
