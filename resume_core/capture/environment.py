"""Where and on what a run computes, as facts: packages, hardware, torch's global switches.

Switches that change numbers are facts of the run: somebody has set them, and a machine does not. Versions and hardware
are information. They change under a run that nobody touched (another spot instance, a newer image), which must go on
then; but not silently, as `resume_core.capture.exactness` tells.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from resume_core.capture.facts_version import FACTS, FACTS_VERSION
from resume_core.capture.plain import plain
from resume_core.capture.provenance import package_versions
from resume_core.state import Fact

__all__ = ["describe_environment"]


def describe_environment() -> dict[str, Fact]:
    """Package versions, hardware and thread counts as information; torch's global switches as facts of the run."""
    found: dict[str, Any] = {f"packages.{name}": version for name, version in package_versions().items()}
    found |= {f"environment.{name}": value for name, value in _machine().items()}
    facts = {name: Fact(plain(value), "info") for name, value in found.items()}
    facts |= {f"environment.{name}": _switch(read) for name, read in _SWITCHES.items()}
    return {FACTS: Fact(FACTS_VERSION, "info"), **facts}


def _machine() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": _gpu_names(),
        "cuda": torch.version.cuda or torch.version.hip,
        "cudnn": _cudnn_version(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }


def _cpu_model() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu_names() -> list[str]:
    # asking a CUDA runtime that nobody has started would start it, and break a launcher that forks afterwards
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _cudnn_version() -> int | None:
    with suppress(Exception):  # a library that does not fit is an error of its own, and comes where it is used
        version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return version
    return None


def _switch(read: Callable[[], Any]) -> Fact:
    try:
        value = read()
    except (AttributeError, RuntimeError):  # another version of torch; its old switches beside the new ones
        value = None
    # a switch that this version does not have is not compared
    return Fact(None, "info") if value is None else Fact(plain(value))


def _deterministic() -> bool | str:
    is_on = torch.are_deterministic_algorithms_enabled()
    return "warn_only" if is_on and torch.is_deterministic_algorithms_warn_only_enabled() else is_on


def _matmul_tf32() -> bool:
    matmul = torch.backends.cuda.matmul
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:  # the newer setting was used, and may say what the older one cannot
        return bool(matmul.fp32_precision == "tf32")


def _mkldnn() -> str | None:
    backend = torch.backends.mkldnn
    if not backend.is_available():  # type: ignore[no-untyped-call]
        return None
    precision = str(backend.matmul.fp32_precision)  # type: ignore[attr-defined]
    return ("ieee" if precision == "none" else precision) if backend.enabled else "off"


def _attention() -> list[str]:
    backends = torch.backends.cuda
    kinds = {"flash": "flash_sdp", "mem_efficient": "mem_efficient_sdp", "math": "math_sdp", "cudnn": "cudnn_sdp"}
    return [kind for kind, name in kinds.items() if getattr(backends, f"{name}_enabled")()]


_SWITCHES: dict[str, Callable[[], Any]] = {
    "default_dtype": torch.get_default_dtype,
    "deterministic": _deterministic,
    "cudnn_enabled": lambda: torch.backends.cudnn.enabled,
    "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "matmul_tf32": _matmul_tf32,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "bf16_reduction": lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "fp16_reduction": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "attention": _attention,
    "mkldnn": _mkldnn,
    "cublas_workspace": lambda: os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
}
