"""Numbers as people type and read them: ``7B``, ``2GB/s``, ``150m``, ``1%``."""

from __future__ import annotations

import math
import re

__all__ = [
    "parse_bandwidth",
    "parse_count",
    "parse_hours",
    "parse_price",
    "parse_seconds",
    "parse_share",
    "show_bandwidth",
    "show_bytes",
    "show_count",
    "show_money",
    "show_seconds",
    "show_share",
]

_NUMBER = r"([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"
_COUNT = re.compile(_NUMBER + r"\s*([kmbgt]?)", re.IGNORECASE)
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
# the case of the b tells bytes from bits, so it is not guessed
_BANDWIDTH = re.compile(_NUMBER + r"\s*([kKMGT]?)(i?)(B|b|bit)(?:/s|ps)")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SPAN = re.compile(_NUMBER + r"\s*(ms|seconds?|sec|s|minutes?|min|m|hours?|h|days?|d|weeks?|w)\s*", re.IGNORECASE)
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SHARE = re.compile(_NUMBER + r"\s*(%?)")


def _in_range(value: float, text: str, most: float, least: float = 0.0) -> float:
    if not least < value <= most:
        raise ValueError(f"{text!r} is out of range: it must be above {least:g} and at most {most:g}")
    return value


def parse_count(text: str) -> int:
    """``7B``, ``350M``, ``1.3e9``.

    Raises:
        ValueError: anything else, or a number below 1 or above 1e15.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number like 7B, 350M or 1.3e9")
    return round(_in_range(float(match[1]) * _COUNTS[match[2].lower()], text, 1e15, least=0.5))


def parse_bandwidth(text: str) -> float:
    """``2GB/s``, ``500 MiB/s``, ``10Gbit/s``, as bytes a second.

    Raises:
        ValueError: anything else.
    """
    match = _BANDWIDTH.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a bandwidth like 2GB/s, 500MiB/s or 10Gbit/s (B: bytes, b: bits)")
    base = (1024 if match[3] else 1000) ** _POWERS[match[2].upper()]
    return _in_range(float(match[1]) * base / (1 if match[4] == "B" else 8), text, 1e15)


def parse_seconds(text: str) -> float:
    """``90s``, ``150m``, ``24h``, ``1h30m``, ``7d``, as seconds.

    Raises:
        ValueError: anything else, 0, or more than a century.
    """
    stripped = text.strip()
    if not stripped or "".join(match[0] for match in _SPAN.finditer(stripped)) != stripped:
        raise ValueError(f"{text!r} is not a time like 90s, 150m, 24h, 1h30m or 7d")
    parts = [(float(match[1]), match[2].lower()) for match in _SPAN.finditer(stripped)]
    seconds = sum(number * _SECONDS["ms" if unit == "ms" else unit[0]] for number, unit in parts)
    return _in_range(seconds, text, 100 * 365.25 * 86400)


def parse_hours(text: str) -> float:
    """As `parse_seconds`; a number without a unit is in hours, as in ``SaveEvery(mtbf_hours=...)``.

    Raises:
        ValueError: see `parse_seconds`.
    """
    return parse_seconds(f"{text}h" if re.fullmatch(_NUMBER, text.strip()) else text)


def parse_share(text: str) -> float:
    """``1%`` or ``0.01``.

    Raises:
        ValueError: anything else, or a share that is not between 0 and 1.
    """
    match = _SHARE.fullmatch(text.strip())
    share = math.nan if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 < share < 1:
        raise ValueError(f"{text!r} is not a share between 0 and 1, like 1% or 0.01")
    return share


def parse_price(text: str) -> float:
    """A price, in whatever currency.

    Raises:
        ValueError: no number, below 0 or absurd.
    """
    if re.fullmatch(_NUMBER, text.strip()) is None:
        raise ValueError(f"{text!r} is not a price like 2.5, in the currency that you think in")
    return _in_range(float(text), text, 1e9)


def _digits(value: float, digits: int = 2) -> str:
    """So many significant digits, without an exponent, and none of a whole number thrown away."""
    places = max(digits - 1 - math.floor(math.log10(value)), 0) if value > 0 else 0
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, units: tuple[str, ...]) -> str:
    power = 0
    while value >= 999.5 and power < len(units) - 1:
        value /= 1000
        power += 1
    return f"{_digits(value, 3)}{units[power]}"


def show_bytes(size_bytes: float) -> str:
    """Bytes as in ``98 GB``, powers of 1000."""
    return _scaled(size_bytes, (" B", " kB", " MB", " GB", " TB", " PB", " EB"))


def show_bandwidth(bytes_per_s: float) -> str:
    """As in ``2 GB/s``."""
    return f"{show_bytes(bytes_per_s)}/s"


def show_count(count: float) -> str:
    """As in ``7B``."""
    return _scaled(float(count), ("", "k", "M", "B", "T"))


def show_seconds(seconds: float) -> str:
    """A time as in ``4.9 s``, ``15 min``, ``2.5 h``, ``7 days``."""
    if not math.isfinite(seconds):
        return "for ever"
    if seconds < 0.995:
        return f"{_digits(seconds * 1e3)} ms" if seconds >= 1e-6 else "0 s"
    for unit, size, most in (("s", 1.0, 99.5), ("min", 60.0, 99.5 * 60), ("h", 3600.0, 48 * 3600.0)):
        is_one_more = seconds == size * 60 < most  # 1 min rather than 60 s
        if seconds < most and not is_one_more:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 86400)} days"


def show_share(share: float) -> str:
    """As in ``1.2 %``."""
    percent = share * 100
    if 0 < percent < 0.01:
        return "< 0.01 %"
    return f"{_digits(percent)} %"


def show_money(amount: float) -> str:
    """As in ``1,234`` or ``12.34``, without a currency."""
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:,.2f}"
