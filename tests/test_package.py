"""The house: public names, import direction, lazy torch, life without triton, the wheel."""

import ast
import os
import resource
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import mocapsnet

PACKAGE = Path(mocapsnet.__file__).parent
REPOSITORY = PACKAGE.parent
FLOORS = {
    "errors": -2,
    "writing": -1,
    "parser": 5,
    "ops": 0,
    "nn": 1,
    "losses": 1,
    "data": 2,
    "train": 3,
    "measure": 4,
    "paper": 5,
    "explore": 5,
    "export": 5,
    "cli": 6,
}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in FLOORS)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(source: str) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("mocapsnet.")}
    return rooms & FLOORS.keys()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    own = room_of(path)
    for room in imported_rooms(path.read_text()):
        assert room == own or FLOORS[room] < FLOORS[own], f"{own} must not import {room}"


def test_the_import_check_sees_every_form():
    source = "import mocapsnet.train.fit\nfrom mocapsnet import ops\nfrom mocapsnet.nn.stem import Stem"
    assert imported_rooms(source) == {"train", "ops", "nn"}


def test_the_public_names_are_pinned():
    assert mocapsnet.__all__ == [
        "CapsNet",
        "CapsuleNetwork",
        "CapsuleOutput",
        "ConvNet",
        "Ensemble",
        "MoCapsNet",
        "MomentumSequence",
        "ResCapsNet",
        "ShallowCapsNet",
        "capsule_loss",
        "data",
        "evaluate",
        "fit",
        "from_released",
        "load",
        "margin_loss",
        "ops",
        "reconstruction_loss",
        "to_momentum",
    ]
    for name in mocapsnet.__all__:
        assert getattr(mocapsnet, name) is not None
    assert mocapsnet.ops.__all__ == ["em", "length", "rba", "sda", "squash"]
    with pytest.raises(AttributeError, match="no attribute 'MoCapsNett'"):
        mocapsnet.MoCapsNett  # noqa: B018


def run_python(code: str, *flags: str) -> subprocess.CompletedProcess:
    # As people run it, who do not interpret Triton's programs.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *flags, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


@pytest.mark.parametrize("room", ["explore.serve", "measure.predict", "measure.accuracy"])
def test_looking_at_a_network_does_not_wait_for_lightning(room):
    code = f"import sys, mocapsnet.{room}; print('lightning_fabric' in sys.modules)"
    assert run_python(code).stdout == "False\n"


def test_help_does_not_import_torch():
    code = "import sys, mocapsnet.cli as cli\ntry: cli.main(['train', '--help'])\nexcept SystemExit: pass\n"
    assert run_python(code + "print('torch' in sys.modules)").stdout.splitlines()[-1] == "False"


def test_help_answers_in_half_a_second():
    """Seconds of the processor, which other processes on a busy machine do not lengthen."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    seconds = []
    for _ in range(5):
        before = spent()
        done = subprocess.run(
            [sys.executable, "-m", "mocapsnet.cli", "--help"], capture_output=True, text=True
        )
        seconds.append(spent() - before)
        assert done.returncode == 0
        assert "train" in done.stdout
    assert min(seconds) < 0.5


def test_everything_works_where_triton_cannot_be_imported():
    code = """
import sys
sys.modules["triton"] = None
import torch, mocapsnet as mc
images, labels = torch.rand(2, 1, 17, 17), torch.tensor([0, 2])
for network in (mc.CapsNet, mc.ResCapsNet, mc.MoCapsNet):
    for routing in ("rba", "leaky-rba", "sda", "em"):
        model = network((1, 17, 17), classes=3, routing=routing, capsules=4, channels=8)
        mc.capsule_loss(model(images, labels), labels, images).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
import mocapsnet.cli, mocapsnet.train.fit, mocapsnet.measure.coupling
print("fine")
"""
    assert run_python(code).stdout.strip() == "fine"


def test_the_wheel_installs_in_a_clean_environment(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, REPOSITORY],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("mocapsnet-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "clean"], check=True)
    python = tmp_path / "clean" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel]
    subprocess.run(pip, check=True, capture_output=True)
    # The dependencies are borrowed from this environment: a path file adds them, but not its own mocapsnet.
    (site,) = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = (
        "import mocapsnet as mc; from importlib.resources import files; "
        "page = files('mocapsnet.explore') / 'static' / 'index.html'; "
        "network = type(mc.load('mnist-small')).__name__; "
        "print(mc.__file__, len(mc.data.load('mnist6k').train.labels), network, page.is_file())"
    )

    def run(*command: object) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert run(python, "-c", code).split() == [
        str(site / "mocapsnet" / "__init__.py"),
        "5000",
        "MoCapsNet",
        "True",
    ]
    assert "train" in run(tmp_path / "clean" / "bin" / "mocapsnet", "--help")


def test_classifying_needs_no_compiler():
    code = (
        "import sys, torch, mocapsnet as mc\n"
        "with torch.no_grad():\n"
        "    mc.MoCapsNet((1, 28, 28), 10, channels=8)(torch.rand(2, 1, 28, 28))\n"
        "print('torch._dynamo' in sys.modules)"
    )
    assert run_python(code).stdout.splitlines()[-1] == "False"
