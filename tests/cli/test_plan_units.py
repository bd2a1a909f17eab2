"""Numbers as people type and read them."""

from __future__ import annotations

import pytest

from resume_core.cli.plan import units
from resume_core.cli.plan.units import show_bandwidth, show_bytes, show_count, show_money, show_seconds, show_share


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("count", "7B", 7_000_000_000),
        ("count", "7b", 7_000_000_000),
        ("count", " 350 M ", 350_000_000),
        ("count", "1.3e9", 1_300_000_000),
        ("count", "1_000", 1000),
        ("count", "0.5T", 5 * 10**11),
        ("bandwidth", "2GB/s", 2e9),
        ("bandwidth", "500 MiB/s", 500 * 2**20),
        ("bandwidth", "10Gbit/s", 1.25e9),
        ("bandwidth", "10Gbps", 1.25e9),
        ("bandwidth", "100kB/s", 1e5),
        ("seconds", "90s", 90),
        ("seconds", "150m", 9000),
        ("seconds", "150 min", 9000),
        ("seconds", "1h30m", 5400),
        ("seconds", "7d", 7 * 86400),
        ("seconds", "20ms", 0.02),
        ("hours", "24", 86400),
        ("hours", "2.5", 9000),
        ("hours", "150m", 9000),
        ("share", "1%", 0.01),
        ("share", "0.02", 0.02),
        ("price", "2.5", 2.5),
    ],
)
def test_what_people_type(kind, text, value):
    assert getattr(units, f"parse_{kind}")(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("count", text) for text in ("", "7 billion", "-7B", "0", "0.4", "nan", "inf", "1e400", "7BB", "seven")),
        *(("bandwidth", text) for text in ("2", "2GB", "2gb/s", "0GB/s", "1e300GB/s", "GB/s", "fast")),
        *(("seconds", text) for text in ("", "5", "0s", "-5m", "5x", "5m!", "m", "1e99d", "nan s")),
        *(("hours", text) for text in ("", "0", "-1", "never")),
        *(("share", text) for text in ("0", "1", "100%", "1.5", "-1%", "%", "nan")),
        *(("price", text) for text in ("-1", "free", "nan", "inf", "0")),
    ],
)
def test_what_cannot_be_meant_is_named_in_the_error(kind, text):
    with pytest.raises(ValueError, match=r"is not|out of range") as caught:
        getattr(units, f"parse_{kind}")(text)
    assert repr(text) in str(caught.value) or repr(f"{text}h") in str(caught.value)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (show_bytes(98e9), "98 GB"),
        (show_bytes(999_999), "1 MB"),
        (show_bytes(0), "0 B"),
        (show_bytes(1.234e12), "1.23 TB"),
        (show_bandwidth(2e9), "2 GB/s"),
        (show_count(7_000_000_000), "7B"),
        (show_seconds(0.0012), "1.2 ms"),
        (show_seconds(4.9), "4.9 s"),
        (show_seconds(60), "1 min"),
        (show_seconds(90), "90 s"),
        (show_seconds(892), "15 min"),
        (show_seconds(3600), "1 h"),
        (show_seconds(86400), "24 h"),
        (show_seconds(7 * 86400), "7 days"),
        (show_seconds(float("inf")), "for ever"),
        (show_share(0.0784), "7.8 %"),
        (show_share(0), "0 %"),
        (show_share(1), "100 %"),
        (show_share(1e-6), "< 0.01 %"),
        (show_money(37.624), "37.62"),
        (show_money(12345.6), "12,346"),
    ],
)
def test_what_people_read(shown, text):
    assert shown == text
