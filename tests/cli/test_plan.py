"""`exact-resume plan`: against published numbers, against a simulation, and against what a run has measured."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from crafted import tree
from planned_runs import SIZES, Attempt, directory
from rich.console import Console
from typer.testing import CliRunner
from walks import Start

from resume_core import Keep
from resume_core.cli import app
from resume_core.cli.plan.advice import make_plan
from resume_core.cli.plan.costs import costs_of
from resume_core.cli.plan.inputs import Given, resolve
from resume_core.cli.plan.terminal import print_plan


def invoke(*arguments, width=80):
    return CliRunner(env={"COLUMNS": str(width)}).invoke(app, ["plan", *map(str, arguments)])


def plan(*arguments):
    """What is printed as JSON, which is strict."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))


def refused(*arguments, code=2):
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    return " ".join(result.output.replace("│", " ").split())


# ---- published numbers


@pytest.mark.parametrize(
    ("optimizer", "precision", "bytes_each"),
    [
        ("adamw", "fp32", 12),
        ("adam", "autocast", 12),
        ("adamw", "mixed", 14),  # ZeRO: 2 + 12, without the gradients
        ("adamw", "bf16", 6),
        ("sgd", "fp32", 4),
        ("sgd-momentum", "fp32", 8),
        ("lion", "mixed", 10),
        ("adafactor", "fp32", 4),
        ("adamw-8bit", "bf16", 2 + 2 * (1 + 4 / 256)),
    ],
)
def test_bytes_of_a_parameter(optimizer, precision, bytes_each):
    found = plan("--parameters", "1B", "--optimizer", optimizer, "--precision", precision)
    assert found["checkpoint"]["size_bytes"] == pytest.approx(bytes_each * 1e9)
    assert sum(part["size_bytes"] for part in found["checkpoint"]["parts"]) == found["checkpoint"]["size_bytes"]


def test_a_7b_model_in_mixed_precision_has_90_to_100_gb():
    assert 90e9 < plan("--parameters", "7B", "--precision", "mixed")["checkpoint"]["size_bytes"] < 100e9


def saves_of(seconds, mtbf, *more):
    """A plan for saves that stop training so long: 90 GB at a bandwidth of that."""
    bandwidth = f"{90e9 / seconds}B/s"
    where = ("--parameters", "7.5B", "--copy-bandwidth", bandwidth, "--bandwidth", "90TB/s")
    return plan(*where, "--mtbf", mtbf, "--max-overhead", "99%", *more)


def test_interrupted_every_150_minutes_a_save_about_every_15():
    found = saves_of(45, "150m")
    assert found["save"]["blocking_s"] == pytest.approx(45)
    assert found["interval_s"] / 60 == pytest.approx(15, rel=0.06)
    assert found["decided_by"] == "optimum"


@pytest.mark.parametrize(("mtbf", "minutes"), [("24h", 117), ("6h", 57), ("15m", 9.1)])
def test_figures_3_to_5_of_daly_2006(mtbf, minutes):
    assert saves_of(300, mtbf)["interval_s"] / 60 == pytest.approx(minutes, rel=0.006)


def test_16384_gpus_whose_machines_last_264_days_are_interrupted_every_three_hours():
    found = plan("--parameters", "8B", "--gpus", 16384, "--machine-mtbf", "264d")  # Llama 3: 419 times in 54 days
    assert found["mtbf_s"] == pytest.approx(54 * 86400 / 419, rel=0.01)
    assert found["inputs"]["num_machines"] == {"value": 2048, "from": "assumed", "why": "8 GPUs each"}


# ---- the costs


def simulated(interval_s, blocking_s, durable_s, mtbf_s, restart_s, *, num=40_000, seed=7):
    """The same run, step by step: shares of its wall time that saving, training again and restarting take."""
    draw = random.Random(seed)
    wall = kept = saving = restarting = loss = 0.0
    for _ in range(num):
        left = draw.expovariate(1 / mtbf_s)
        wall += left
        # saves begin at interval, interval + period, ..., and count when they are durable
        period_s = interval_s + blocking_s
        durable = max(int((left - interval_s - durable_s) / period_s) + 1, 0) if left > interval_s + durable_s else 0
        kept += durable * interval_s
        saving += durable * blocking_s
        loss += left - durable * period_s
        down = restart_s
        while (again := draw.expovariate(1 / mtbf_s)) < down:  # interrupted while it restarts
            restarting += again
            wall += again
        restarting += down
        wall += down
    return saving / wall, 1 - kept / wall - saving / wall - restarting / wall, restarting / wall, loss / num


@pytest.mark.parametrize(
    ("blocking_s", "bandwidth_s", "mtbf_s", "restart_s"),
    [(5, 100, 9000, 300), (30, 30, 3600, 600), (1, 20, 86400, 60), (60, 300, 7200, 900)],
)
def test_the_shares_are_those_of_a_simulated_run(blocking_s, bandwidth_s, mtbf_s, restart_s):
    given = Given(
        parameters=10**9,
        copy_bytes_per_s=12e9 / blocking_s,
        write_bytes_per_s=12e9 / bandwidth_s,
        mtbf_s=mtbf_s,
        restart_s=restart_s,
        max_overhead=0.05,
    )
    inputs = resolve(given, None)
    best = costs_of(inputs).best
    saving, again, restarting, loss_s = simulated(
        best.interval_s, inputs.blocking_s, inputs.durable_s, mtbf_s, restart_s
    )
    assert best.saving == pytest.approx(saving, rel=0.05)
    assert best.again == pytest.approx(again, rel=0.06)
    assert best.restarting == pytest.approx(restarting, rel=0.05)
    assert best.loss_s - restart_s == pytest.approx(loss_s, rel=0.05)


def test_no_other_interval_loses_less():
    found = saves_of(45, "150m")
    assert all(found["best"]["lost"] <= point["lost"] + 1e-4 for point in found["curve"])
    assert found["best"]["worst_loss_s"] > found["best"]["loss_s"]


def test_the_shares_and_what_is_kept_make_one():
    best = plan("--parameters", "7B", "--mtbf", "150m")["best"]
    assert best["lost"] == pytest.approx(best["saving"] + best["again"] + best["restarting"])
    assert 0 < best["lost"] < 1


def test_a_cap_that_makes_it_rarer_than_the_optimum_is_told_with_its_price():
    found = plan("--parameters", "7B", "--mtbf", "150m")
    assert found["decided_by"] == "cap"
    assert found["best"]["saving"] <= 0.01
    assert found["best"]["lost"] > found["optimum"]["lost"]
    assert "(--max-overhead), which loses " in found["notes"][0]


def test_a_store_that_is_too_slow_for_the_optimum_decides_and_a_scratch_is_named():
    found = plan("--parameters", "7B", "--mtbf", "5m", "--bandwidth", "200MB/s", "--max-overhead", "50%")
    assert found["decided_by"] == "store"
    assert found["interval_s"] + found["save"]["blocking_s"] == pytest.approx(found["save"]["durable_s"])
    assert "scratch=..." in found["notes"][0]
    assert not all(point["is_possible"] for point in found["curve"])


@pytest.mark.parametrize("arguments", [("--mtbf", "1s"), ("--mtbf", "1ms", "--restart", "100d"), ("--mtbf", "30000d")])
def test_no_run_is_too_strange(arguments):
    found = plan("--parameters", "900T", *arguments)
    assert 0 <= found["best"]["lost"] <= 1
    assert invoke("--parameters", "900T", *arguments).exit_code == 0


def test_a_run_that_cannot_get_anywhere_is_told_so():
    assert "No interval works" in refused("--parameters", "7B", "--mtbf", "10s", code=0)


# ---- options


@pytest.mark.parametrize(
    ("arguments", "place", "value"),
    [
        (("--trained", "100M"), ("checkpoint", "size_bytes"), 28_000_000_000 + 800_000_000),
        (("--copy-bandwidth", "8.4GB/s"), ("save", "blocking_s"), 10),
        (("--bandwidth", "8.4GB/s"), ("save", "durable_s"), 10),
        (("--bandwidth", "8.4GB/s", "--gpus", 2), ("save", "durable_s"), 14.2),  # not before all ranks have staged
        (("--mtbf", "2.5"), ("mtbf_s",), 9000),
        (("--mtbf-hours", "150m"), ("mtbf_s",), 9000),
        (("--machine-mtbf", "30d", "--machines", 3), ("mtbf_s",), 10 * 86400),
        (("--machines", 4), ("mtbf_s",), 6 * 3600),
        (("--gpus", 16), ("mtbf_s",), 12 * 3600),
        (("--restart", "10m"), ("inputs", "restart_s", "value"), 600),
        (("--max-overhead", "2%"), ("policy", "save_by_mtbf"), "SaveEvery(mtbf_hours=24, max_overhead=0.02)"),
        (("--keep-last", 2), ("storage", "size_bytes"), 3 * 84_000_000_000),
        (("--keep-last", 2), ("policy", "keep"), "Keep(last=2)"),
        (("--storage-price", "0.02"), ("storage", "price_per_month"), 4 * 84 * 0.02),
        (("--milestones-per-day", 2, "--run-time", "3d"), ("storage", "num_milestones"), 6),
        (("--milestones-per-day", 2, "--run-time", "3d"), ("storage", "size_bytes"), 10 * 84_000_000_000),
        (
            ("--milestones-per-day", 4, "--run-time", "5d", "--thin-after", 10),
            ("storage", "size_bytes"),
            11 * 84_000_000_000 + 13 * 28_000_000_000,
        ),
    ],
)
def test_each_option_is_heard(arguments, place, value):
    found = plan("--parameters", "7B", *arguments)
    for key in place:
        found = found[key]
    assert found == (value if isinstance(value, str) else pytest.approx(value))


def test_money_is_shown_when_a_price_is_given_and_only_then():
    found = plan("--parameters", "7B", "--gpus", 8, "--price", "2.5")["best"]
    assert found["lost_price_per_day"] == pytest.approx(found["lost"] * 24 * 8 * 2.5)
    assert plan("--parameters", "7B")["best"]["lost_price_per_day"] is None
    assert "in money" not in invoke("--parameters", "7B").output


def test_what_is_assumed_is_marked_with_the_option_that_gives_it():
    found = plan("--parameters", "7B", "--restart", "2m")["inputs"]
    assert {name for name, row in found.items() if row["from"] == "given"} == {"num_parameters", "restart_s"}
    output = invoke("--parameters", "7B").output
    for line in ("1 GB/s   assumed: network disk  --bandwidth", "24 h     assumed                --mtbf"):
        assert " ".join(line.split()) in " ".join(output.split())


def test_the_document_has_units_in_its_names():
    found = plan("--parameters", "7B", "--gpus", 8, "--price", 2)
    assert list(found) == [
        *("title", "verdict", "save_takes", "notes", "policy", "inputs", "mtbf_s", "run", "checkpoint", "save"),
        *("interval_s", "decided_by", "best", "optimum", "current", "storage", "curve"),
    ]
    assert list(found["best"]) == [
        *("interval_s", "saving", "again", "restarting", "loss_s", "worst_loss_s", "is_possible", "lost"),
        *("lost_s_per_day", "lost_gpu_s_per_day", "lost_price_per_day"),
    ]
    assert list(found["save"]) == ["rank_0_bytes", "blocking_s", "durable_s", "drain_s"]
    assert found["run"] is None
    assert found["current"] is None


def test_what_is_to_be_written_can_be_written():
    from resume_core import SaveEvery

    found = plan("--parameters", "7B", "--mtbf", "150m", "--max-overhead", "3%")
    policy, names = found["policy"], {"SaveEvery": SaveEvery, "Keep": Keep}
    assert eval(policy["save"], names).minutes == pytest.approx(found["interval_s"] / 60, rel=0.05)
    assert eval(policy["save_by_mtbf"], names) == SaveEvery(mtbf_hours=2.5, max_overhead=0.03)
    assert eval(policy["keep"], names) == Keep(last=3)


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_in_a_terminal(width):
    long = ("--milestones-per-day", 4, "--thin-after", 10, "--price", 2.5, "--storage-price", "0.02", "--gpus", 16)
    output = invoke("--parameters", "7B", "--precision", "mixed", "--mtbf", "150m", *long, width=width).output
    assert "…" not in output
    lines = output.splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith(">") for line in lines) == 1
    assert "SaveEvery(minutes=8.1)" in output
    assert lines[2].startswith("Save every 8.1 min.")


def test_a_terminal_that_knows_ascii_alone_gets_ascii():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_plan(make_plan(resolve(Given(parameters=10**9), None)), Console(file=out, width=40))
    out.flush()
    assert b"# saving  + training again  . restarting" in out.buffer.getvalue().replace(b"\n", b" ").replace(
        b"   ", b""
    )


def test_the_documentation_shows_what_the_command_prints():
    readme = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text()
    shown = readme[readme.index("<!-- plan -->\n") : readme.index("<!-- end of plan -->")].splitlines()[1:]
    command = next(line for line in readme.splitlines() if line.startswith("    exact-resume plan --"))
    output = invoke(*command.split()[2:]).output.splitlines()
    assert [line.removeprefix("    ").rstrip() for line in shown] == [line.rstrip() for line in output[: len(shown)]]
    assert len(shown) > 15


# ---- what makes no sense


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give the number of parameters, as in `exact-resume plan --parameters 7B`"),
        (("--mtbf", "24h"), "or the directory of a run, as in `exact-resume plan runs/first`"),
        (("--parameters", "seven"), "'seven' is not a number like 7B, 350M or 1.3e9"),
        (("--parameters", "7B", "--bandwidth", "2"), "'2' is not a bandwidth like 2GB/s"),
        (("--parameters", "7B", "--mtbf", "soon"), "'soon' is not a time like 90s"),
        (("--parameters", "7B", "--restart", "5"), "'5' is not a time like 90s"),
        (("--parameters", "7B", "--max-overhead", "1"), "'1' is not a share between 0 and 1, like 1% or 0.01"),
        (("--parameters", "7B", "--price", "cheap"), "'cheap' is not a price"),
        (("--parameters", "7B", "--gpus", 0), "--gpus"),
        (("--parameters", "7B", "--optimizer", "best"), "'best' is not one of"),
        (("--parameters", "7B", "--trained", "8B"), "is more than --parameters"),
        (("--parameters", "7B", "--mtbf", "1h", "--machines", 2), "--mtbf is of the whole job"),
        (("--parameters", "7B", "--thin-after", 9), "give --milestones-per-day as well"),
        (("runs/first", "--optimizer", "adam"), "--optimizer, --precision and --trained go with --parameters"),
        (("--parameters", "7B", "--storage-options", "[1]"), "must be a JSON object"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error_that_says_what_would(arguments, said):
    assert said in refused(*arguments)


# ---- a run's directory


def test_a_real_run_says_how_large_its_checkpoints_are_and_what_saves_took(tmp_path):
    start = Start(tmp_path, num_steps=4, keep=9)
    start.take()
    before = tree(start.directory)
    found = plan(start.directory)
    assert tree(start.directory) == before
    (newest,) = start.directory.glob("attempt-0001-*/step-000000004.2")
    files = {path.name: path.stat().st_size for path in newest.iterdir() if path.name != "manifest.json"}
    parts = {part["name"]: part["size_bytes"] for part in found["checkpoint"]["parts"]}
    assert parts["model.safetensors"] == files["model.safetensors"]
    assert found["checkpoint"]["size_bytes"] == sum(files.values())
    assert found["run"]["step"] == 4
    assert found["run"]["checkpoint"].endswith("/step-000000004.2")
    assert {found["inputs"][name]["from"] for name in ("blocking_s", "durable_s", "num_gpus")} == {"run"}
    assert 0 < found["save"]["blocking_s"] <= found["save"]["durable_s"] < 10
    assert found["run"]["interval_s"] > 0


def test_what_a_run_has_measured_is_taken_and_what_is_given_wins(tmp_path):
    run = directory(tmp_path, Attempt(0, 1))
    found = plan(run)
    assert found["checkpoint"]["size_bytes"] == sum(SIZES.values())
    assert (found["save"]["blocking_s"], found["save"]["durable_s"]) == (0.5, 6)
    assert found["current"]["interval_s"] == 600
    assert found["policy"]["keep"] == "Keep(last=3)"
    assert plan(run, "--bandwidth", "10MB/s")["save"]["durable_s"] == pytest.approx(found["save"]["rank_0_bytes"] / 1e7)
    assert plan(run, "--copy-bandwidth", "6.00006GB/s")["save"]["blocking_s"] == pytest.approx(1, rel=1e-4)
    assert plan(run, "--mtbf", "3h")["mtbf_s"] == 3 * 3600


def test_a_larger_model_takes_the_rates_of_the_run_with_a_word_of_doubt(tmp_path):
    found = plan(directory(tmp_path), "--parameters", "70B")
    assert found["inputs"]["copy_bytes_per_s"] == {"value": 12e9, "from": "run", "why": "measured"}
    assert found["save"]["durable_s"] == pytest.approx(840)
    assert any("far smaller" in note for note in found["notes"])


def test_without_a_history_the_manifests_tell(tmp_path):
    found = plan(directory(tmp_path, Attempt(0, 1, blocked_s=0.25), history=False))
    assert found["save"]["blocking_s"] == 0.25
    assert found["inputs"]["write_bytes_per_s"]["from"] == "run"
    assert found["current"] is None


def test_interruptions_and_restarts_are_those_that_the_run_has_had(tmp_path):
    attempts = (Attempt(0, 2), Attempt(2.1, 5), Attempt(5.1, 6, "finished"))
    found = plan(directory(tmp_path, *attempts))
    assert found["run"]["num_interruptions"] == 2
    assert found["mtbf_s"] == pytest.approx((2 + 2.9 + 0.9) / 2 * 3600)
    assert found["inputs"]["restart_s"] == {"value": pytest.approx(360 + 60), "from": "run", "why": "median"}
    assert any("with 2 interruptions" in note for note in found["notes"])
    assert plan(directory(tmp_path / "once", *attempts[1:]))["inputs"]["mtbf_s"]["from"] == "assumed"


def test_errors_and_ctrl_c_are_no_interruptions(tmp_path):
    own = (Attempt(0, 2, "failed"), Attempt(8, 9, "stopped"), Attempt(9.1, 10))
    found = plan(directory(tmp_path, *own, Attempt(10.1, 11), Attempt(11.1, 12)))
    assert found["run"]["num_interruptions"] == 2
    assert found["mtbf_s"] == pytest.approx((2 + 1 + 0.9 * 3) / 2 * 3600)
    assert found["inputs"]["restart_s"]["value"] == pytest.approx(360 + 60)  # not the night before the second one
    assert plan(directory(tmp_path / "own", *own))["inputs"]["mtbf_s"]["from"] == "assumed"


def test_what_the_run_keeps_is_what_is_proposed(tmp_path):
    size = sum(SIZES.values())
    recorded = {"last": 2, "best": "val_loss", "mode": "max", "every_steps": 3600, "thin_after": 4}
    run = directory(tmp_path, keep=recorded)  # 100 steps in 600 s
    found = plan(run, "--run-time", "1d")
    assert found["policy"]["keep"] == ('Keep(last=2, every_steps=3600, best="val_loss", mode="max", thin_after=4)')
    assert found["inputs"]["keep_last"] == {"value": 2, "from": "run", "why": "its Keep"}
    assert found["inputs"]["milestones_per_day"]["value"] == pytest.approx(4)
    weights = SIZES["model.safetensors"]
    assert found["storage"]["size_bytes"] == (2 + 1 + 2 + 1) * size + 2 * weights
    given = plan(run, "--keep-last", 5, "--milestones-per-day", 8)
    assert given["policy"]["keep"] == 'Keep(last=5, every_steps=1800, best="val_loss", mode="max", thin_after=4)'
    by_epochs = plan(directory(tmp_path / "epochs", keep={"last": 3, "every_epochs": 5}))
    assert by_epochs["policy"]["keep"] == "Keep(last=3, every_epochs=5)"
    assert any("come on top of that room" in note for note in by_epochs["notes"])


def test_milestones_become_steps_where_the_speed_is_known(tmp_path):
    found = plan(directory(tmp_path), "--milestones-per-day", 4)  # 100 steps in 600 s
    assert found["policy"]["keep"] == "Keep(last=3, every_steps=3600)"
    assert "every_steps=..." in plan("--parameters", "7B", "--milestones-per-day", 4)["policy"]["keep"]


def test_a_scratch_makes_the_directory_drain_by_promotions(tmp_path):
    found = plan(directory(tmp_path, Attempt(0, 1, durable_s=9, promote_s=8)), "--mtbf", "20s", "--max-overhead", "90%")
    assert found["save"] | {"rank_0_bytes": 0} == {
        "rank_0_bytes": 0,
        "blocking_s": 0.5,
        "durable_s": 9,
        "drain_s": 8,
    }


def test_ranks_are_gpus_and_what_rank_0_alone_writes_is_told(tmp_path):
    sizes = SIZES | {"rank-00001.safetensors": 9_000, "rank-00001.json": 1_000}
    found = plan(directory(tmp_path, num_ranks=2, sizes=sizes))
    assert found["inputs"]["num_gpus"] == {"value": 2, "from": "run", "why": "one for each rank"}
    assert found["save"]["rank_0_bytes"] == sum(SIZES.values())
    assert found["checkpoint"]["size_bytes"] == sum(sizes.values())
    assert any("rank 0 alone copies and writes the 6 GB" in note for note in found["notes"])


def test_how_often_the_run_saves_now_is_compared(tmp_path):
    run = directory(tmp_path, Attempt(0, 1, every_s=60))
    found = plan(run)
    assert found["current"]["interval_s"] == 60
    assert any("The run saves every 1 min now, which loses" in note for note in found["notes"])
    assert "now" in invoke(run).output


def test_a_damaged_newest_checkpoint_is_passed_over_and_named(tmp_path):
    run = directory(tmp_path)
    manifest = max(run.glob("attempt-*/step-*/manifest.json"))
    manifest.write_bytes(manifest.read_bytes()[:-40])
    found = plan(run)
    assert found["run"]["step"] == 300
    assert any(f"{manifest.parent.name} cannot be used and was passed over" in note for note in found["notes"])
    for other in run.glob("attempt-*/step-*/manifest.json"):
        other.write_bytes(b"{}")
    assert "no checkpoint" in (said := refused(run, code=1))
    assert "can be used" in said


def test_a_save_from_before_the_first_step_is_told_to_be_too_small(tmp_path):
    found = plan(directory(tmp_path, Attempt(0, 1, steps=0, num_saves=1)))
    assert any("what the optimizer keeps from then on is not in it" in note for note in found["notes"])


def test_a_directory_without_a_run_is_an_error_and_nothing_is_made(tmp_path):
    assert f"{tmp_path}/none does not exist" in refused(f"{tmp_path}/none").replace("\n", "")
    assert list(tmp_path.iterdir()) == []
    run = directory(tmp_path)
    (attempt,) = run.iterdir()
    assert "Give the directory of the run" in refused(attempt)


def test_a_url_that_nobody_knows_is_an_error():
    assert "no plan" in refused("nope://bucket/run")


def test_values_of_a_strange_history_are_not_believed(tmp_path):
    run = directory(tmp_path, Attempt(0, 1, blocked_s=float("1e300"), durable_s=-3.0, every_s=-1.0))
    found = plan(run)
    assert found["inputs"]["copy_bytes_per_s"]["from"] == "assumed"
    assert found["inputs"]["write_bytes_per_s"]["from"] == "assumed"
    assert found["current"] is None


def test_a_plan_can_be_made_without_a_terminal():
    made = make_plan(resolve(Given(parameters=10**9), None))
    assert made.save.startswith("SaveEvery(minutes=")


def test_the_help_says_what_is_assumed():
    text = " ".join(invoke("--help", width=200).output.split())
    for default in ("adamw", "fp32", "all", "20GB/s", "1GB/s", "24h", "one for 8 GPUs", "5m", "1%", "1", "3"):
        assert f"Default: {default}." in text
