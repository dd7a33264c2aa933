"""The examples of the README run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import PATIENCE, Site

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(("number", "output"), [(0, "part 2 with the fencing token"), (1, "slot 0")])
def test_an_example_runs(site: Site, number: int, output: str) -> None:
    address = "unix:/run/slotkeeper/control.sock"
    assert address in EXAMPLES[number]
    program = EXAMPLES[number].replace(address, site.agent().address)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert output in ended.stdout
    assert site.contenders() == 0


def test_no_example_is_left_out() -> None:
    assert len(EXAMPLES) == 2
