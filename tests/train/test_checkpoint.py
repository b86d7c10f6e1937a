"""The checkpoint file: whole or not at all, never altered, never code."""

import contextlib
import errno
import hashlib
import io
import os
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import other_file_system

from mocapsnet.errors import BrokenFile, Busy
from mocapsnet.train.checkpoint import LAST, MAGIC, PREVIOUS, latest, locked, read, save
from mocapsnet.train.optimizers import make_optimizer
from mocapsnet.train.state import State
from mocapsnet.writing import write

HEADER = len(MAGIC) + 32


def state_after(steps: int, optimizer: str = "adam") -> dict:
    """What a run of a very small model saves."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    state = State(
        {"seed": 0, "limit": None}, model, *make_optimizer(optimizer, model.parameters(), 0.1, 0.9, 9)
    )
    for _ in range(steps):
        loss = model(torch.rand(3, 2)).square().mean()
        loss.backward()
        state.optimizer.step()
        state.count(loss, torch.tensor(1), 3)
    if steps > 1:
        state.finish_epoch(None, 0.5, 1.5)
    return state.state_dict()


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.fixture
def folder(tmp_path) -> Path:
    """One that holds the checkpoints of step 1 and step 2."""
    save(tmp_path, state_after(1))
    save(tmp_path, state_after(2))
    return tmp_path


@pytest.mark.parametrize("optimizer", ["adam", "ranger21"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_round_trip_changes_nothing(tmp_path, optimizer, steps):
    state = state_after(steps, optimizer)
    save(tmp_path, state)
    assert same(latest(tmp_path), state)
    assert not same(latest(tmp_path), state_after(steps + 1, optimizer))


def test_the_one_before_stays(folder):
    assert same(read(folder / LAST), state_after(2))
    assert same(read(folder / PREVIOUS), state_after(1))
    assert sorted(path.name for path in folder.iterdir()) == [LAST, PREVIOUS]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_file_is_written_beside_its_target_synced_and_then_renamed(tmp_path, monkeypatch, elsewhere):
    if elsewhere:
        monkeypatch.setattr(tempfile, "tempdir", str(other_file_system(tmp_path)))
    calls, fsync, replace = [], os.fsync, os.replace

    def watched_fsync(number):
        names = {path.stat().st_ino: path.name for path in (tmp_path, *tmp_path.iterdir())}
        calls.append(("sync", names[os.fstat(number).st_ino]))
        fsync(number)

    def watched_replace(old, new):
        assert Path(old).parent == Path(new).parent == tmp_path
        calls.append((Path(old).name, Path(new).name))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    new = [("sync", ".last.ckpt.tmp"), (".last.ckpt.tmp", LAST), ("sync", tmp_path.name)]
    save(tmp_path, state_after(1))
    assert calls == new
    calls.clear()
    save(tmp_path, state_after(2))
    assert calls == [new[0], (LAST, PREVIOUS), *new[1:]]
    calls.clear()
    write(tmp_path / "run.json", b"{}")
    own = f".run.json.{os.getpid()}.tmp"
    assert calls == [("sync", own), (own, "run.json"), ("sync", tmp_path.name)]
    assert (tmp_path / "run.json").read_bytes() == b"{}"


def test_another_process_may_write_the_same_file_meanwhile(tmp_path, monkeypatch):
    path, replace = tmp_path / "REPORT.md", os.replace

    def after_another(old, new):
        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        write(path, b"theirs")
        assert path.read_bytes() == b"theirs"
        replace(old, new)

    monkeypatch.setattr(os, "replace", after_another)
    write(path, b"ours")
    assert path.read_bytes() == b"ours"
    assert [*tmp_path.iterdir()] == [path]


class Killed(BaseException): ...


def deadly(monkeypatch, call: int) -> None:
    """Let the process end right before its nth system call that matters."""
    count = 0

    def watch(function):
        def watched(*arguments):
            nonlocal count
            count += 1
            if count == call:
                raise Killed
            return function(*arguments)

        return watched

    monkeypatch.setattr(os, "fsync", watch(os.fsync))
    monkeypatch.setattr(os, "replace", watch(os.replace))


@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("broken", [False, True])
def test_a_kill_at_any_step_of_a_save_leaves_the_newest_good_one(folder, monkeypatch, call, broken):
    if broken:
        (folder / LAST).write_bytes(b"broken")
        latest(folder)
    with monkeypatch.context() as patch:
        deadly(patch, call)
        with pytest.raises(Killed):
            save(folder, state_after(3))
    assert (folder / LAST).exists() == (call != 3)
    assert same(latest(folder), state_after(3 if call == 4 else 1 if broken else 2))
    save(folder, state_after(4))
    assert same(latest(folder), state_after(4))


def test_a_full_disk_leaves_the_last_good_one(folder, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(folder, state_after(3))
    assert same(latest(folder), state_after(2))


@st.composite
def mutations(draw, content: bytes) -> bytes:
    """A checkpoint with flipped bits, cut, lengthened, or with two of its parts exchanged."""
    length = len(content)
    match draw(st.sampled_from(["flip", "cut", "extend", "swap", "shift"])):
        case "flip":
            altered = bytearray(content)
            for position in draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=9, unique=True)):
                altered[position] ^= 1 << draw(st.integers(0, 7))
            return bytes(altered)
        case "cut":
            return content[: draw(st.integers(0, length - 1))]
        case "extend":
            return content + draw(st.binary(min_size=1, max_size=99))
        case "swap":
            a, b = sorted((draw(st.integers(0, length)), draw(st.integers(0, length))))
            size = draw(st.integers(1, 99))
            return content[:a] + content[b : b + size] + content[a + size : b] + content[a : a + size]
        case _:
            start = draw(st.integers(1, length - 1))
            return content[start:] + content[:start]


with tempfile.TemporaryDirectory() as place:
    save(Path(place), state_after(2))
    GOOD = (Path(place) / LAST).read_bytes()


@settings(max_examples=200)
@given(mutations(GOOD).filter(lambda content: content != GOOD))
def test_an_altered_checkpoint_never_loads_and_the_previous_one_is_used(content):
    with tempfile.TemporaryDirectory() as place:
        folder, told = Path(place), io.StringIO()
        (folder / LAST).write_bytes(content)
        with pytest.raises(BrokenFile, match=f"{folder / LAST} is truncated or altered"):
            read(folder / LAST)
        with pytest.raises(BrokenFile, match=f"{folder / LAST} .*: delete it to start anew"):
            latest(folder)
        (folder / PREVIOUS).write_bytes(GOOD)
        with contextlib.redirect_stdout(told):
            assert same(latest(folder), state_after(2))
        assert told.getvalue() == f"{folder / LAST} is truncated or altered; going on from {PREVIOUS}\n"
        (folder / LAST).write_bytes(content)
        (folder / PREVIOUS).write_bytes(content)
        with pytest.raises(BrokenFile, match=f"{folder / LAST} .*{folder / PREVIOUS} .*: delete"):
            latest(folder)


def envelope(body: bytes) -> bytes:
    return MAGIC + hashlib.sha256(body).digest() + body


@settings(max_examples=100)
@given(mutations(GOOD[HEADER:]))
def test_whatever_a_sound_envelope_holds_is_loaded_or_refused_by_name(content):
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / LAST
        path.write_bytes(envelope(content))
        try:
            read(path)
        except BrokenFile as error:
            assert str(path) in str(error)  # noqa: PT017


class Hostile:
    """A pickle that makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("archive", [True, False])
def test_a_hostile_pickle_in_a_sound_envelope_never_runs(tmp_path, archive):
    mark, stream = tmp_path / "mark", io.BytesIO()
    torch.save({"config": Hostile(mark)}, stream, _use_new_zipfile_serialization=archive)
    torch.load(io.BytesIO(stream.getvalue()), weights_only=False)
    assert mark.is_dir(), "the pickle is not hostile"
    mark.rmdir()
    for body in (stream.getvalue(), pickle.dumps(Hostile(mark), 2)):
        (tmp_path / LAST).write_bytes(envelope(body))
        with pytest.raises(BrokenFile, match="is not a checkpoint"):
            latest(tmp_path)
        assert not mark.exists()


def test_a_folder_is_held_by_one_and_free_after_an_error(tmp_path):
    (tmp_path / ".last.ckpt.tmp").write_bytes(b"half of a checkp")
    with contextlib.suppress(ZeroDivisionError), locked(tmp_path):
        assert not (tmp_path / ".last.ckpt.tmp").exists()
        with pytest.raises(Busy, match=f"another run is writing to {tmp_path}"), locked(tmp_path):
            pass
        raise ZeroDivisionError
    with locked(tmp_path):
        pass
