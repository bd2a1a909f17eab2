"""How long each plugin takes to import, beyond its framework.

    python benchmarks/imports.py [--rounds N]

Processor time, the least of the rounds, each in a new process that has imported the framework before; with bytecode
that was written before.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

BOUND_MS = 150
PLUGINS = {
    "lightning_resume.ResumeCallback": "import lightning.pytorch",
    "accelerate_resume.ResumePlugin": "import accelerate",
    "accelerate_resume.TrainerResumeCallback": "from transformers import Trainer",
}
CODE = """
import sys, time
sys.dont_write_bytecode = False
{framework}
begin = time.process_time()
from {module} import {name}
print((time.process_time() - begin) * 1000)
"""


def import_ms(plugin: str, framework: str) -> float:
    module, name = plugin.split(".")
    code = CODE.format(framework=framework, module=module, name=name)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return float(said.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    num_rounds = parser.parse_args().rounds
    for plugin, framework in PLUGINS.items():
        least = min(import_ms(plugin, framework) for _ in range(num_rounds + 1))
        print(f"{plugin}: {least:.0f} ms ({'at most' if least <= BOUND_MS else 'MORE THAN'} {BOUND_MS})")


if __name__ == "__main__":
    main()
