"""The pages under docs/ are true: their table is the one in results/, their links lead somewhere."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).parent.parent
PAGES = sorted([*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "examples" / "README.md"])


def test_the_table_of_breaking_depths_is_generated():
    check = [sys.executable, REPOSITORY / "scripts" / "breaking_depths.py", "--check"]
    subprocess.run(check, check=True)


def test_the_depths_are_measured_by_the_script_as_it_stands():
    script = runpy.run_path(str(REPOSITORY / "scripts" / "breaking_depths.py"))
    torch.manual_seed(0)
    layers, x = [script["capsules"]() for _ in range(12)], torch.randn(4, 8, 8, requires_grad=True)
    exact, plain = (script["gradient_error"](layers, x, 0.5, arithmetic) for arithmetic in ("exact", "float"))
    assert exact == 0 < plain < 1e-3


def test_exact_arithmetic_never_broke_and_floats_did():
    page = (REPOSITORY / "docs" / "reversible.md").read_text()
    rows = re.findall(r"^\| (?:capsules|tanh\(Linear\)) \| 0\..*$", page, re.MULTILINE)
    assert len(rows) == 6
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[-1] == "error 0 at 1000"
        assert int(cells[2].split()[0]) < 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link
