"""How long a save stops a GPU and the host that feeds it: this project beside plain copies. Needs a CUDA device.

    python benchmarks/gpu_staging.py [--rounds N] [--states 600 ...] [--out FILE]

All copy the same state off the GPU, in turn, round by round. *Host waits*: until the call returns. *GPU waits*: until a
kernel that is enqueued right after the call has run, so what the next training step loses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from measures.report import Comparison
from measures.rounds import Way, parse_args, run
from measures.states import Live

from resume_core.image import Arena, FileSpec, Memory, Stager, flatten

RESULTS = Path(__file__).parent / "results" / "gpu_staging.json"
YARDSTICK = "*one copy of as many bytes into pinned memory*"
RATIOS = (("GPU waits / copy", "GPU waits", YARDSTICK), ("host waits / copy", "host waits", YARDSTICK))
COMPARISON = Comparison(
    title="Staging off a GPU",
    command="python benchmarks/gpu_staging.py",
    text="Median of the rounds (least to greatest); ratios are formed within a round.",
    columns={"host waits": "s", "GPU waits": "s", "GPU waits / copy": "x", "host waits / copy": "x"},
    packages=("torch",),
)


def on_gpu(live: Live) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to("cuda") for name, tensor in live.tensors().items()}


class Staging:
    """The ways, each with its memory made and used once."""

    def __init__(self, live: Live) -> None:
        self._state = on_gpu(live)
        size_bytes = sum(tensor.nbytes for tensor in self._state.values())
        self._one = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        self._pinned = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        self._each = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in self._state.values()]
        self._stager, self._memory = Stager(Arena()), Memory()

    def one(self) -> None:
        self._pinned.copy_(self._one)

    def ours(self) -> Callable[[], None]:
        flat = flatten(self._state, memory=self._memory)
        (image,) = self._stager.stage([FileSpec("training.safetensors", flat.tensors, plan=flat.plan)])
        return image.finish

    def to_cpu(self) -> None:
        self._kept = {name: tensor.cpu() for name, tensor in self._state.items()}

    def each_pinned(self) -> None:
        for target, tensor in zip(self._each, self._state.values(), strict=True):
            target.copy_(tensor, non_blocking=True)
        torch.cuda.current_stream().synchronize()

    def measure(self, copy: Callable[[], Callable[[], None] | None]) -> dict[str, float]:
        probe = torch.zeros(1, device="cuda")
        values: dict[str, float] = {}
        for _ in range(2):  # the first one makes the memory
            torch.cuda.synchronize()
            start = time.perf_counter()
            finish = copy()
            values["host waits"] = time.perf_counter() - start
            probe.add_(1)
            torch.cuda.current_stream().synchronize()
            values["GPU waits"] = time.perf_counter() - start
            if finish is not None:
                finish()
        return values


def ways(live: Live, folder: Path) -> dict[str, Way]:
    staging = Staging(live)
    kinds = {
        YARDSTICK: staging.one,
        "**exact-resume**": staging.ours,
        "tensor.cpu() of each": staging.to_cpu,
        "copy_ of each into pinned memory": staging.each_pinned,
    }
    return {
        name: Way(name, lambda _, name=name, copy=copy: {name: staging.measure(copy)}) for name, copy in kinds.items()
    }


if __name__ == "__main__":
    run(parse_args(__doc__, [], RESULTS), COMPARISON, RATIOS, ways)
