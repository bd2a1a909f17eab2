"""The README's figures are those of the result files."""

import json

import readme


def results(name, *rows):
    found = [{"section": section, "name": way, "rounds": rounds} for section, way, rounds in rows]
    units = dict.fromkeys(readme.COLUMNS[name], "x") | {"extra memory": "GiB"}
    return json.dumps({"units": units, "rows": found})


def test_a_table_holds_the_medians_of_the_first_state(tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    ours = {"cold / bare read": [1.0, 3.0, 2.0], "warm / bare read": [1.5], "extra memory": [0.0]}
    rows = [("first", "*bare read*", {}), ("first", "ours", ours), ("second", "ours", ours)]
    (tmp_path / "restore.json").write_text(results("restore", *rows))
    text = readme.tables("before\n<!-- restore -->\nold\n<!-- end of restore -->\nafter\n")
    assert text.splitlines() == [
        "before",
        "<!-- restore -->",
        "| first | cold / bare read | warm / bare read | extra memory |",
        "|---|---|---|---|",
        "| ours | 2.00 x | 1.50 x | 0.00 GiB |",
        "<!-- end of restore -->",
        "after",
    ]


def test_the_readme_is_up_to_date():
    text = readme.README.read_text(encoding="utf-8")
    assert readme.tables(text) == text
