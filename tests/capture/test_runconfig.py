import json
import math
import pickle
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from resume_core.capture.describe import describe_model, describe_optimizers, describe_schedulers, seed_fact
from resume_core.capture.describe_data import describe_loader
from resume_core.capture.describe_settings import describe_hparams
from resume_core.capture.environment import describe_environment
from resume_core.capture.plain import plain
from resume_core.capture.runconfig import ABSENT, Accepted, Difference, check, diff, from_json, table, to_json
from resume_core.errors import ConfigChangedError, CorruptCheckpointError
from resume_core.policy import Changes
from resume_core.state import Fact

SEVERITIES = ("structure", "run", "info")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
configs = st.dictionaries(st.text(), st.builds(Fact, json_values, st.sampled_from(SEVERITIES)), max_size=6)
names = st.sampled_from(["seed", "data.0.batch_size", "optimizer.0.lr", "model.w", "model.b", "host"])
allowed_names = st.lists(st.sampled_from(["seed", "data", "model", "optimizer.0", "other"]), max_size=3)


def refusal(saved, current, changes=None):
    with pytest.raises(ConfigChangedError) as caught:
        check(saved, current, changes or Changes())
    return caught.value


def run(
    *, seed="7", hidden=4, lr=0.1, weight_decay=0.01, horizon=10, batch_size=4, samples=20, shuffle=True, max_epochs=3
):
    """What a plugin puts together for a small run."""
    model = torch.nn.Linear(3, hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    loader = DataLoader(TensorDataset(torch.zeros(samples, 3)), batch_size=batch_size, shuffle=shuffle)
    return {
        "seed": seed_fact(seed, 0),
        "max_epochs": Fact(max_epochs, "info"),
        **describe_schedulers([CosineAnnealingLR(optimizer, horizon)]),
        **describe_model(model.state_dict()),
        **describe_optimizers([optimizer]),
        **describe_loader(loader),
        **describe_hparams({"hidden": hidden}),
        **describe_environment(),
    }


# --- the whole


def test_a_run_started_again_unchanged_differs_in_nothing():
    saved = from_json(json.loads(json.dumps(to_json(run()))))

    assert diff(saved, run()) == ()
    assert check(saved, run(), Changes()) == Accepted()


@pytest.mark.parametrize(
    ("change", "name", "old", "new"),
    [
        ({"seed": "8"}, "seed", 7, 8),
        ({"hidden": 5}, "model.weight", "float32[4, 3]", "float32[5, 3]"),
        ({"lr": 0.2}, "optimizer.0.lr", 0.1, 0.2),
        ({"weight_decay": 0.0}, "optimizer.0.weight_decay", 0.01, 0.0),
        ({"horizon": 20}, "scheduler.0.T_max", 10, 20),
        ({"batch_size": 8}, "data.0.batch_size", 4, 8),
        ({"samples": 21}, "data.0.dataset.length", 20, 21),
        (
            {"shuffle": False},
            "data.0.sampler",
            "torch.utils.data.sampler.RandomSampler",
            "torch.utils.data.sampler.SequentialSampler",
        ),
    ],
)
def test_each_value_changed_alone_is_refused_with_both_values(change, name, old, new):
    saved = from_json(json.loads(json.dumps(to_json(run()))))

    error = refusal(saved, run(**change))

    found = {difference.name: (difference.saved, difference.current) for difference in error.differences}
    assert found[name] == (old, new)
    table, _, _ = str(error).partition("What to do:")
    (row,) = [line for line in table.splitlines() if name in line.split()]
    assert json.dumps(old) in row
    assert json.dumps(new) in row


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lr": 0.2}, "(the run starts then, and has optimizer.0.lr as saved all the same)"),
        ({"seed": "8", "batch_size": 8}, "has seed as saved all the same; the others apply as they are now)"),
        ({"batch_size": 8}, None),
    ],
)
def test_it_is_said_what_allowing_does_not_apply(change, told):
    text = str(refusal(run(), run(**change)))
    assert ("as saved all the same" in text) == (told is not None)
    assert told is None or told in text


@pytest.mark.parametrize("change", [{"seed": "8"}, {"lr": 0.2}, {"horizon": 20}, {"batch_size": 8}, {"samples": 21}])
def test_one_change_is_one_row(change):
    assert len(refusal(run(), run(**change)).differences) == 1


def test_a_later_end_of_training_is_information():
    accepted = check(run(), run(max_epochs=30), Changes())

    assert accepted == Accepted(info=(Difference("max_epochs", 3, 30, "info"),))


def test_a_later_end_that_moves_the_horizon_of_a_schedule_is_refused():
    error = refusal(run(), run(max_epochs=30, horizon=100))

    assert [difference.name for difference in error.differences] == ["scheduler.0.T_max"]


# --- diff


def test_equal_values_of_equal_runs_are_no_difference_whatever_their_severity():
    assert diff({"a": Fact(1, "run")}, {"a": Fact(1, "info")}) == ()


def test_a_fact_that_only_one_side_has_is_a_difference():
    assert diff({"a": Fact(1)}, {"b": Fact(None, "structure")}) == (
        Difference("b", ABSENT, None, "structure"),
        Difference("a", 1, ABSENT, "run"),
    )


def test_none_and_absent_are_two_things():
    (difference,) = diff({"a": Fact(None)}, {})

    assert difference.saved is None
    assert difference.current is ABSENT


def test_the_gravest_differences_come_first_and_the_order_of_the_facts_holds_otherwise():
    saved = {
        "i": Fact(0, "info"),
        "r2": Fact(0, "run"),
        "r1": Fact(0, "run"),
        "s": Fact(0, "structure"),
    }

    assert [d.name for d in diff(saved, {name: Fact(1, fact.severity) for name, fact in saved.items()})] == [
        "s",
        "r2",
        "r1",
        "i",
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("structure", "run", "run"), ("run", "info", "info"), ("info", "structure", "info"), ("run", "run", "run")],
)
def test_of_two_severities_the_milder_one_holds(first, second, expected):
    (difference,) = diff({"a": Fact(1, first)}, {"a": Fact(2, second)})

    assert difference.severity == expected


@given(configs)
def test_a_config_written_and_read_back_differs_in_nothing(config):
    assert diff(from_json(json.loads(json.dumps(to_json(config)))), config) == ()


@given(st.dictionaries(st.text(), st.builds(Fact, st.floats() | st.tuples(st.floats()) | st.binary()), max_size=4))
def test_odd_values_that_were_made_plain_differ_in_nothing_either(odd):
    config = {name: Fact(plain(fact.value)) for name, fact in odd.items()}

    assert diff(from_json(json.loads(json.dumps(to_json(config)))), config) == ()


@given(configs, configs)
def test_a_difference_is_found_from_both_sides(first, second):
    there = {d.name: (d.saved, d.current, d.severity) for d in diff(first, second)}
    back = {d.name: (d.current, d.saved, d.severity) for d in diff(second, first)}

    assert there == back


@given(configs, configs)
def test_every_name_is_either_equal_on_both_sides_or_in_the_differences(first, second):
    differing = {d.name for d in diff(first, second)}

    for name in {*first, *second}:
        same = name in first and name in second and first[name].value == second[name].value
        assert same != (name in differing)


def test_a_difference_as_plain_json_leaves_out_the_side_that_lacks_it():
    assert Difference("a", 1, ABSENT, "run").as_dict() == {"name": "a", "severity": "run", "saved": 1}
    assert Difference("a", None, [2], "info").as_dict() == {
        "name": "a",
        "severity": "info",
        "saved": None,
        "current": [2],
    }


def test_a_difference_that_went_through_a_process_boundary_is_still_absent():
    assert pickle.loads(pickle.dumps(Difference("a", ABSENT, 1, "run"))).saved is ABSENT


# --- check


def test_a_change_that_is_allowed_by_name_passes_and_is_reported():
    accepted = check({"seed": Fact(7)}, {"seed": Fact(8)}, Changes(allow=("seed",)))

    assert accepted == Accepted(allowed=(Difference("seed", 7, 8, "run"),))


def test_a_name_allows_everything_below_it():
    accepted = check(run(), run(lr=0.2, weight_decay=0.5), Changes(allow=("optimizer",)))

    assert [d.name for d in accepted.allowed] == ["optimizer.0.lr", "optimizer.0.weight_decay"]


def test_a_name_does_not_allow_another_that_only_begins_like_it():
    assert refusal({"seed_workers": Fact(1)}, {"seed_workers": Fact(2)}, Changes(allow=("seed",)))


def test_allowing_one_change_does_not_allow_the_next():
    error = refusal(run(), run(seed="8", lr=0.2), Changes(allow=("seed",)))

    assert [difference.name for difference in error.differences] == ["optimizer.0.lr"]


def test_with_warn_a_change_of_the_run_passes_as_a_warning():
    accepted = check(run(), run(lr=0.2), Changes(otherwise="warn"))

    assert accepted == Accepted(warned=(Difference("optimizer.0.lr", 0.1, 0.2, "run"),))


def test_with_warn_a_change_of_structure_is_refused_all_the_same():
    error = refusal(run(), run(hidden=5, lr=0.2), Changes(otherwise="warn"))

    assert {difference.severity for difference in error.differences} == {"structure"}


def test_structure_that_is_allowed_by_name_passes():
    accepted = check(run(), run(hidden=5), Changes(allow=("model",)))

    assert {difference.severity for difference in accepted.allowed} == {"structure"}


def test_an_unseeded_resume_of_a_seeded_run_is_information():
    unseeded = {"seed": seed_fact(None, 2**40)}

    assert check({"seed": Fact(7)}, unseeded, Changes()).info == (Difference("seed", 7, None, "info"),)
    assert check(unseeded, {"seed": Fact(7)}, Changes()).info == (Difference("seed", None, 7, "info"),)


def test_the_error_says_where_and_at_which_step():
    with pytest.raises(ConfigChangedError) as caught:
        check({"a": Fact(1)}, {"a": Fact(2)}, Changes(), path="attempt-0001/step-000000500", step=500)

    assert caught.value.path == "attempt-0001/step-000000500"
    assert caught.value.step == 500


@given(
    st.dictionaries(names, st.builds(Fact, st.integers(0, 2), st.sampled_from(SEVERITIES))),
    st.dictionaries(names, st.builds(Fact, st.integers(0, 2), st.sampled_from(SEVERITIES))),
    allowed_names,
    st.sampled_from(["error", "warn"]),
)
def test_every_difference_is_either_refused_or_accounted_for(saved, current, allow, otherwise):
    changes = Changes(allow=allow, otherwise=otherwise)
    differences = diff(saved, current)
    refused = {
        d
        for d in differences
        if not changes.accepts(d.name) and (d.severity == "structure" or (d.severity == "run" and otherwise == "error"))
    }

    if refused:
        assert set(refusal(saved, current, changes).differences) == refused
    else:
        accepted = check(saved, current, changes)
        assert {*accepted.allowed, *accepted.warned, *accepted.info} == set(differences)


# --- what people read


def test_the_message_is_one_table_and_what_to_do():
    saved = {"data.0.batch_size": Fact(32), "seed": Fact(7), "host": Fact("a", "info")}
    current = {"data.0.batch_size": Fact(64), "seed": Fact(8), "host": Fact("b", "info")}

    assert str(refusal(saved, current)) == (
        "The run differs from the one that wrote the checkpoint. Nothing was loaded.\n"
        "\n"
        "   name               saved  current\n"
        "   data.0.batch_size  32     64\n"
        "   seed               7      8\n"
        "\n"
        "What to do:\n"
        "  - restore the saved values\n"
        '  - or accept the differences: Changes(allow=("data.0.batch_size", "seed"))\n'
        "    (the run starts then, and has seed as saved all the same; the others apply as they are now)\n"
        "  - or start afresh in another directory"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("optimizer.0.lr", "to train on with another lr, export the weights and begin another run"),
        ("scheduler.0.gamma", "to train on with other settings, export the weights and begin another run"),
        ("seed", None),
        ("scheduler.0.lr_lambdas", None),  # of the script's own, so that the new one is applied
    ],
)
def test_what_no_acceptance_applies_is_said_with_the_way_to_have_it(name, words):
    said = str(refusal({name: Fact(1)}, {name: Fact(2)}))
    assert (words in said) if words else ("export the weights" not in said)


def test_the_snippet_is_python_that_accepts_exactly_this():
    for change in ({"seed": "8"}, {"seed": "8", "lr": 0.2}):
        message = str(refusal(run(), run(**change)))
        snippet = message[message.index("Changes(") :].splitlines()[0]

        changes = eval(snippet, {"Changes": Changes})

        assert check(run(), run(**change), changes).allowed


def test_the_snippet_keeps_what_was_allowed_before():
    message = str(refusal(run(), run(seed="8", lr=0.2), Changes(allow=("seed",))))

    assert 'Changes(allow=("seed", "optimizer.0.lr"))' in message


def test_many_changed_names_are_allowed_by_what_they_have_in_common():
    saved = {f"data.{i}.batch_size": Fact(1) for i in range(30)} | {"seed": Fact(1)}
    current = {name: Fact(2) for name in saved}

    assert 'Changes(allow=("data", "seed"))' in str(refusal(saved, current))


def test_a_change_of_structure_is_marked_and_no_snippet_offers_to_allow_it():
    message = str(refusal(run(), run(hidden=5)))

    assert '*  model.weight  "float32[4, 3]"  "float32[5, 3]"' in message
    assert "* cannot be loaded otherwise" in message
    assert "Changes(" not in message


def test_next_to_structure_the_snippet_speaks_of_the_others_only():
    message = str(refusal(run(), run(hidden=5, seed="8")))

    assert 'accept the differences of the others: Changes(allow=("seed",))' in message


def test_thousands_of_structure_differences_are_twenty_rows_and_a_count():
    saved = {f"model.layers.{i}.weight": Fact("float32[2]", "structure") for i in range(5000)}
    current = {name: Fact("float16[2]", "structure") for name in saved}

    error = refusal(saved | {"seed": Fact(1)}, current | {"seed": Fact(2)})

    lines = str(error).splitlines()
    assert sum("model.layers" in line for line in lines) == 20
    assert lines.index("   … and 4980 more") < next(i for i, line in enumerate(lines) if "seed" in line)
    assert len(error.differences) == 5001


def test_comparing_ten_thousand_tensors_takes_well_below_a_second():
    saved = {f"model.layers.{i}.weight": Fact(f"float32[{i}]", "structure") for i in range(10_000)}
    current = dict(reversed(saved.items()))
    start = time.monotonic()

    assert check(from_json(to_json(saved)), current, Changes()) == Accepted()
    assert time.monotonic() - start < 1


def test_a_side_that_lacks_the_fact_says_so():
    assert table(diff({"a": Fact(1)}, {"b": Fact("(absent)")})).splitlines()[1:] == [
        "   a     1         (absent)",
        '   b     (absent)  "(absent)"',
    ]


def test_long_values_are_cut_where_their_difference_is_still_seen():
    saved, current = list(range(100)), [*range(60), -7, *range(61, 100)]

    (row,) = table(diff({"milestones": Fact(saved)}, {"milestones": Fact(current)})).splitlines()[1:]

    assert len(row) < 130
    assert "60, 61" in row
    assert "-7, 61" in row
    assert row.count("…") == 4


def test_a_long_value_next_to_a_short_one_is_cut_from_its_start():
    (row,) = table(diff({"x": Fact("a" * 500)}, {"x": Fact("b")})).splitlines()[1:]

    assert '"aaaa' in row
    assert row.endswith('"b"')


@given(st.text("ab", max_size=200), st.text("ab", max_size=200))
def test_two_values_that_differ_never_look_the_same(first, second):
    rows = table(diff({"x": Fact(first)}, {"x": Fact(second)})).splitlines()[1:]

    assert len(rows) == (first != second)
    for row in rows:
        _, saved, current = row.split()
        assert saved != current


def test_an_empty_table_is_its_head():
    assert table(()) == "  name  saved  current"


# --- JSON


def test_the_facts_are_written_by_severity():
    assert to_json({"seed": Fact(7), "model.w": Fact("f", "structure"), "host": Fact("h", "info")}) == {
        "structure": {"model.w": "f"},
        "run": {"seed": 7},
        "info": {"host": "h"},
    }


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, (1, 2), {1: 2}, b"x", torch.tensor(1), [1, {"a": {2}}], object()]
)
def test_a_value_that_json_would_change_is_not_written(value):
    with pytest.raises(ValueError, match=r"the fact 'odd\.one' is not plain JSON"):
        to_json({"odd.one": Fact(value)})


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"run": {}},
        {"structure": {}, "run": {}, "info": {}, "more": {}},
        {"structure": [], "run": {}, "info": {}},
        {"structure": {}, "run": {"a": math.nan}, "info": {}},
        {"structure": {}, "run": {1: 2}, "info": {}},
        {"structure": {"a": 1}, "run": {"a": 1}, "info": {}},
        {"structure": {}, "run": {"a": (1,)}, "info": {}},
    ],
)
def test_a_run_config_of_another_form_is_refused_as_corrupt(data):
    with pytest.raises(CorruptCheckpointError):
        from_json(data)


def test_no_framework_is_imported_to_describe_a_run():
    code = "import sys, resume_core.capture.runconfig; print({'lightning', 'accelerate'} & set(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"


def test_a_name_that_no_run_has_is_not_advised_again():
    saved, current = {"data.0.batch_size": Fact(4)}, {"data.0.batch_size": Fact(8)}
    with pytest.raises(ConfigChangedError) as refused:
        check(saved, current, Changes(allow=("batch_size",)))
    assert "names what no run has: 'batch_size'" in str(refused.value)
    assert 'Changes(allow=("data.0.batch_size",))' in str(refused.value)
