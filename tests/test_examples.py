"""The examples run, and print what their page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def printed():
    command = [
        sys.executable,
        REPOSITORY / "examples" / "residual_cnn.py",
        *("--steps", "3", "--depths", "2", "10"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    return done.stdout.splitlines()


def test_a_residual_cnn_trains(printed):
    assert re.fullmatch(r"8 blocks, 3 steps: test accuracy \d+\.\d\d%", printed[0])


def test_a_residual_cnn_s_depth_costs_memory_only_where_it_is_stored(printed):
    rows = [line.split() for line in printed[2:]]
    kept = {(memory, int(depth)): int(kibibytes) for depth, memory, kibibytes, _ in rows}
    assert all(float(milliseconds) > 0 for *_, milliseconds in rows)
    assert list(kept) == [
        (memory, depth) for depth in (2, 10) for memory in ("store", "checkpoint", "reverse")
    ]
    # The images, the last layer's input and the state: 4, 4 and 12 bytes of 64 x 16 x 7 x 7.
    assert kept["reverse", 2] == kept["reverse", 10] == 20 * 64 * 16 * 7 * 7 // 1024
    assert kept["checkpoint", 10] - kept["checkpoint", 2] == 8 * 4 * 64 * 16 * 7 * 7 // 1024
    assert kept["store", 10] - kept["store", 2] > 2 * (kept["checkpoint", 10] - kept["checkpoint", 2])


SHORT = {"training_loop": 60, "custom_routing": 60, "custom_dataset": 3, "lightning": 60}


@pytest.mark.parametrize("name", SHORT)
def test_an_example_learns_in_a_few_steps(name):
    command = [sys.executable, REPOSITORY / "examples" / f"{name}.py", str(SHORT[name])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    accuracy = re.fullmatch(r"test accuracy (\d+\.\d\d)%", done.stdout.splitlines()[-1])
    # Chance is 10 %, and 33 % for the custom data set's three classes.
    assert float(accuracy[1]) > 50


def test_the_training_loop_has_thirty_lines():
    lines = (REPOSITORY / "examples" / "training_loop.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


def test_the_page_names_every_example():
    page = (REPOSITORY / "examples" / "README.md").read_text()
    names = {path.name for path in (REPOSITORY / "examples").glob("*.py")}
    assert set(re.findall(r"\]\((\w+\.py)\)", page)) == names
