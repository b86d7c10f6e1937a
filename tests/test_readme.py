"""The README is true: its Python runs, its commands run, its table is the one in results/."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
README = (REPOSITORY / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


COMMANDS = [
    line for block in blocks("bash") for line in block.splitlines() if line and not line.startswith("#")
]


def test_the_readme_shows_both_commands_and_stays_short():
    assert "make train" in COMMANDS
    assert "make test" in COMMANDS
    assert len(README.splitlines()) < 200


@pytest.mark.parametrize("source", blocks("python"))
def test_the_python_of_the_readme_runs(source, tmp_path):
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=True)


def test_the_commands_of_the_readme_run_one_after_the_other(tmp_path):
    commands = [line for line in COMMANDS if line.startswith("mocapsnet")]
    assert commands
    for command in commands:
        words = [sys.executable, "-m", "mocapsnet.cli", *shlex.split(command, comments=True)[1:]]
        subprocess.run(words, cwd=tmp_path, check=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})


@pytest.mark.parametrize(("target", "expected"), [("train", "mocapsnet train"), ("test", "python -m pytest")])
def test_the_make_targets_run_what_they_say(target, expected):
    # These tests may run below a make of their own, which must not speak in this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "-n", target]
    done = subprocess.run(make, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split("/bin/")[-1].startswith(expected)


def test_every_link_of_the_readme_leads_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)", README) + re.findall(r'src="(?!http)([^"]+)"', README)
    assert links
    for link in links:
        assert (REPOSITORY / link).exists(), link


def test_the_results_of_the_readme_are_generated():
    check = [sys.executable, REPOSITORY / "scripts" / "update_readme.py", "--check"]
    subprocess.run(check, check=True)
