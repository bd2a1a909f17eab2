"""What importing a plugin brings into a process: the plugin, the core, and next to nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, sys
{framework}
before = set(sys.modules)
{plugin}
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""


@pytest.mark.parametrize(
    ("framework", "plugin"),
    [
        ("import lightning.pytorch", "from lightning_resume import Keep, ResumeCallback"),
        ("import accelerate", "from accelerate_resume import Keep, ResumePlugin"),
    ],
    ids=["lightning", "accelerate"],
)
def test_a_plugin_brings_no_other_framework_and_no_client_of_a_store_or_a_service(framework, plugin):
    code = CODE.format(framework=framework, plugin=plugin)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    new = json.loads(found.stdout.splitlines()[-1])
    own = {"resume_core", plugin.split()[1]}
    known = own | {"xxhash", "numpy"}  # so neither plugin imports the framework of the other
    assert [name for name in new if name not in known | sys.stdlib_module_names and not name.startswith("_")] == []
    assert own <= set(new)
