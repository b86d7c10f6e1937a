"""Signals, locks, broken folders: a run ends in one line and loses nothing."""

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from processes import Death, command, run, small_network, start, wait_for_checkpoints, write_tiny

import mocapsnet as mc
from mocapsnet.cli import main
from mocapsnet.errors import Busy, Interrupted, WrongArgument
from mocapsnet.train.checkpoint import LAST, PREVIOUS, read

SIGNALS = pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tiny(data):
    return mc.data.load("tiny", data)


@pytest.fixture(scope="module")
def stopped(data, tmp_path_factory) -> Path:
    """A run that was killed in its third epoch, with two checkpoints; tests copy it."""
    place = tmp_path_factory.mktemp("stopped")
    ended = run(
        command(data, place / "run"), place / "log", death=Death("mocapsnet.train.state.State.count", 15)
    )
    assert ended.code == -9
    return place / "run"


@pytest.fixture
def folder(stopped, tmp_path) -> Path:
    return shutil.copytree(stopped, tmp_path / "run")


def refused(capsys, code: int, words: list[str]) -> str:
    """The line of a command that ends with that code, and changes nothing in its folder."""
    place = next(Path(word.removeprefix("--output=")) for word in words if word.startswith("--output="))
    before = {path: path.read_bytes() for path in place.iterdir() if path.is_file()}
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == code
    assert {path: path.read_bytes() for path in place.iterdir() if path.is_file()} == before
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@SIGNALS
def test_a_signal_saves_the_run_and_ends_the_command_without_a_traceback(data, tmp_path, number, code):
    words, log = command(data, tmp_path / "run"), tmp_path / "log"
    ended = run(words, log, death=Death("mocapsnet.train.state.State.count", 9, number))
    saved = f"mocapsnet: saved in {tmp_path / 'run'}; the same command goes on"
    assert (ended.code, ended.err.strip()) == (code, saved)
    state = read(tmp_path / "run" / LAST)
    assert (state["epoch"], state["step"]) == (1, 3)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_stopped_run_without_an_output_names_the_one_with_which_it_goes_on(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = small_network()
    model.register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted) as stopped:
        mc.fit(model, tiny, epochs=2, batch=10)
    (folder,) = Path("runs").iterdir()
    assert str(stopped.value) == f"saved in {folder}; the same command with --output {folder} goes on"
    assert mc.fit(small_network(), tiny, epochs=2, batch=10, output=folder).folder == folder


@SIGNALS
def test_in_python_a_signal_is_a_keyboard_interrupt_and_old_handlers_come_back(tiny, tmp_path, number, code):
    def mine(*_):
        raise AssertionError("the run must hold back its signals")

    model = small_network()
    model.register_forward_hook(lambda *_: signal.raise_signal(number))
    before = {each: signal.signal(each, mine) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        with pytest.raises(KeyboardInterrupt) as stopped:
            mc.fit(model, tiny, epochs=2, batch=10, output=tmp_path)
        assert {signal.getsignal(each) for each in before} == {mine}
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert isinstance(stopped.value, Interrupted)
    assert stopped.value.exit_code == code
    assert "the same command goes on" in str(stopped.value)
    assert read(tmp_path / LAST)["step"] == 1


def test_a_run_that_is_not_finished_is_named_as_one(folder, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", str(folder)])
    assert stopped.value.code == 1
    told = f"{folder} holds a run that is not finished; its training command with --output {folder} goes on"
    assert told in capsys.readouterr().err


def test_a_run_that_ends_well_or_badly_gives_the_handlers_back(tiny, tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    mc.fit(small_network(), tiny, epochs=1, batch=60, output=tmp_path)
    with pytest.raises(WrongArgument):
        mc.fit(small_network(), tiny, epochs=1, batch=30, output=tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_run_outside_the_main_thread_is_the_same_run(tiny, tmp_path):
    done = []
    thread = threading.Thread(
        target=lambda: done.append(mc.fit(small_network(), tiny, epochs=1, batch=10, output=tmp_path / "a"))
    )
    thread.start()
    thread.join()
    assert done[0].folder == tmp_path / "a"
    mc.fit(small_network(), tiny, epochs=1, batch=10, output=tmp_path / "b")
    a, b = (tmp_path / name / "model.safetensors" for name in "ab")
    assert a.read_bytes() == b.read_bytes()


def test_a_second_run_is_refused_while_the_first_lives_and_free_after_its_kill(data, tmp_path, capsys):
    words = command(data, tmp_path / "run")
    first = start(words, tmp_path / "log", every=0)
    wait_for_checkpoints(tmp_path / "run")
    os.kill(first.pid, signal.SIGSTOP)
    try:
        told = refused(capsys, 1, words)
        assert told == (
            f"mocapsnet train: another run is writing to {tmp_path / 'run'}; "
            "wait for it or choose another output folder\n"
        )
        with pytest.raises(Busy):
            mc.fit(small_network(), mc.data.load("tiny", data), output=tmp_path / "run")
    finally:
        first.kill()
        first.join()
    assert run(words, tmp_path / "log").code == 0


def test_a_broken_checkpoint_is_named_and_the_previous_one_gives_the_same_run(data, folder, tmp_path):
    content = bytearray((folder / LAST).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / LAST).write_bytes(content)
    ended = run(command(data, folder), tmp_path / "log")
    assert ended.code == 0
    assert ended.out.splitlines()[0] == f"{folder / LAST} is truncated or altered; going on from {PREVIOUS}"
    assert ended.out.splitlines()[2].startswith("epoch 2/6")
    assert run(command(data, tmp_path / "one go"), tmp_path / "log").code == 0
    one, other = (place / "model.safetensors" for place in (folder, tmp_path / "one go"))
    assert one.read_bytes() == other.read_bytes()


def test_with_both_checkpoints_broken_nothing_is_trained(data, folder, capsys):
    for name in (LAST, PREVIOUS):
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    told = refused(capsys, 1, command(data, folder))
    assert str(folder / LAST) in told
    assert str(folder / PREVIOUS) in told


def test_other_images_under_the_same_name_are_refused(folder, tmp_path, capsys):
    told = refused(capsys, 2, command(write_tiny(tmp_path / "other", seed=1), folder))
    assert "holds a run with data_sha256" in told


def test_resume_never_refuses_a_folder_that_holds_a_run(data, folder, tmp_path, capsys):
    told = refused(capsys, 2, command(data, folder, resume="never"))
    assert told == (
        f"mocapsnet train: {folder} holds a run already; choose another output folder or resume='auto'\n"
    )
    assert run(command(data, tmp_path / "new", resume="never", epochs=1), tmp_path / "log").code == 0


def test_an_output_that_is_a_file_is_refused_in_one_line(data, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(SystemExit) as stopped:
            main(command(data, output))
        assert stopped.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_short_epochs_share_a_checkpoint_and_a_run_that_breaks_off_ends_the_same(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("mocapsnet.train.fit.SECONDS_BETWEEN_SAVED_EPOCHS", {"cpu": 3600})
    saved, save = [], mc.train.checkpoint.save
    monkeypatch.setattr("mocapsnet.train.checkpoint.save", lambda *a: (saved.append(a[1]["epoch"]), save(*a)))

    def train(name):
        mc.fit(small_network(), tiny, epochs=3, batch=8, device="cpu", output=tmp_path / name)
        return (tmp_path / name / "model.safetensors").read_bytes()

    weights = train("whole")
    assert saved == [3]
    count = mc.train.state.State.count

    def break_off(state, *arguments):
        count(state, *arguments)
        if state.epoch == 2:
            raise OSError("the machine is gone")

    monkeypatch.setattr("mocapsnet.train.state.State.count", break_off)
    with pytest.raises(OSError, match="gone"):
        train("broken")
    monkeypatch.setattr("mocapsnet.train.state.State.count", count)
    assert train("broken") == weights
