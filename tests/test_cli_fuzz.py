"""The command line under any words, values and config files: it works, or says one line and exits 1 or 2."""

import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mocapsnet.cli import VERBS, ExploreSettings, ExportSettings, main
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.paper.settings import ReproduceSettings
from mocapsnet.train.settings import Settings

NAMES = sorted(
    {
        *Settings.__annotations__,
        *BenchSettings.__annotations__,
        *ReproduceSettings.__annotations__,
        *ExploreSettings.__annotations__,
        *ExportSettings.__annotations__,
        "csv",
        "runs",
        "what",
        "target",
        "json",
        "config",
        "run",
        "images",
        "help",
        "print_config",
        "x",
    }
)
NUMERALS = [".nan", ".inf", "-1", "0", "0.5", "1e3", "1e400", "0x1F", "1_0", "½", "9" * 40, "9" * 5000]
LETTERS = ["-", "--", "=", "é", "日本", "'", "%s", "{}", "${HOME}", "/", "\U0001f600", "a" * 3000]
WORDS = ["null", "~", "rbb", "mnist6k", "folder:", 'Parser key "x"', "Got value: 3"]
SPACES = ["", " ", "\n", "\u2028", "\x00", "\ud800", "\udcff"]
YAMLISH = ["[1", "{a: b}", "- a", "!!python/object:os.system", "!!binary x", "*a", "&a b", "[" * 2000]
NASTY = NUMERALS + LETTERS + WORDS + SPACES + YAMLISH
values = st.one_of(st.sampled_from(NASTY), st.text(max_size=12), st.integers().map(str), st.floats().map(str))
flags = st.sampled_from(NAMES).map("--{}".format) | st.text(max_size=8).map("--{}".format)
arguments = st.one_of(
    st.tuples(flags),
    st.tuples(values),
    st.tuples(flags, values),
    st.tuples(flags, values).map(lambda both: ("=".join(both),)),
    st.tuples(st.sampled_from(["-h", "-x", "--version", "--epochs.a", "--epochs+", "--print_config=x"])),
)
lines = st.lists(arguments, max_size=4).map(lambda parts: [word for part in parts for word in part])


class Told(NamedTuple):
    """How a command ended, and what its verb was called with."""

    code: int
    out: str
    err: str
    calls: list


def call(words: list[str], record: bool = True) -> Told:
    """Run a command, by default with verbs that only note their call; it must end as every command has to."""
    out, err, calls, code = io.StringIO(), io.StringIO(), [], 0

    def noted(*given, **named):
        calls.append((given, named))

    verbs = {name: verb._replace(function=noted) for name, verb in VERBS.items()} if record else {}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(VERBS, verbs):
        try:
            main(words)
        except SystemExit as stopped:
            code = stopped.code
    told = Told(code, out.getvalue(), err.getvalue(), calls)
    assert code in (0, 1, 2), told
    assert len(told.err.splitlines()) == bool(code), told
    assert not code or (told.err.startswith("mocapsnet") and told.err.endswith("\n") and not calls), told
    return told


@settings(max_examples=250)
@given(st.sampled_from([*VERBS, "trian", ""]) | values, lines)
@example("--zzz", [])
@example("--", ["train"])
@example("train", ["--epochs.a=3"])
@example("train", ["--config", "\x00"])
@example("bench", ["memory", "--depths+", "3"])
@example("bench", ["memory", "--depths.a=3"])
def test_any_words_are_understood_or_refused_in_one_line(verb, words):
    told = call([verb, *words])
    if told.calls:
        (given, named), settings = told.calls[0], VERBS[verb].settings
        assert isinstance(given[0], settings)
        assert named.keys() == VERBS[verb].positionals.keys()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--zzz", "mocapsnet: there is no --zzz; --help lists what there is"),
        ("evaluate", "mocapsnet: evaluate needs run; --help says more"),
        ("predict", "mocapsnet: predict needs run, images; --help says more"),
        ("bench", "mocapsnet: bench needs what; --help says more"),
        ("predict run", "mocapsnet: predict needs images; --help says more"),
        ("evaluate run other", "mocapsnet evaluate: there is no other; --help lists what there is"),
        ("train --epochs.a=3", "mocapsnet train: there is no --epochs.a; did you mean --epochs?"),
        ("evaluate run --json maybe", "mocapsnet evaluate: --json must be true or false, got maybe"),
    ],
)
def test_the_line_says_what_to_do(words, expected):
    assert call(words.split()).err == f"{expected}\n"


@settings(max_examples=60)
@given(st.sampled_from(sorted(VERBS)), st.text(min_size=1, max_size=10).filter(lambda word: word not in "-h"))
def test_a_flag_that_is_not_there_is_named(verb, word):
    flag = f"--zz{''.join(filter(str.isalnum, word))}"
    told = call(
        [verb, *(["x"] if VERBS[verb].positionals else []), *(["y"] if verb == "predict" else []), flag]
    )
    assert told.code == 2
    assert told.err.startswith(f"mocapsnet {verb}: there is no {flag}; ")


def wrong_for(hint: str) -> st.SearchStrategy[str]:
    """Values that a setting of that type can never take."""
    words = st.sampled_from(["[1", "{a: b}", "!!python/object:os.system x", "many", "é", "1e", "--"])
    return words if "float" in hint else words | st.floats(0.1, 0.9).map(str)


NUMBERS = {
    name: str(hint)
    for name, hint in Settings.__annotations__.items()
    if any(kind in str(hint) for kind in ("int", "float")) and "Literal" not in str(hint)
}


@settings(max_examples=60)
@given(st.data(), st.sampled_from(sorted(NUMBERS)))
def test_a_value_of_the_wrong_type_is_named_with_its_flag(data, name):
    value = data.draw(wrong_for(NUMBERS[name]))
    told = call(["train", f"--{name}={value}"])
    assert told.code == 2
    kind = "a number" if "float" in NUMBERS[name] else "a whole number"
    assert told.err.startswith(f"mocapsnet train: --{name} must be {kind}, got "), told


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    """Arguments that train on a very small set, where the loop does nothing."""
    place = tmp_path_factory.mktemp("tiny")
    images = np.random.default_rng(0).integers(0, 256, (12, 9, 9, 1), np.uint8)
    np.savez(place / "tiny.npz", X=images, Y=np.arange(12) % 3, n_train=9)
    sizes = {"kernel_size": 3, "channels": 4, "capsule_dim": 4, "class_dim": 4, "capsules": 3}
    told = sizes | {"dataset": "tiny", "data": place, "output": place / "run"}
    return ["train", *(f"--{name}={value}" for name, value in told.items())]


HUGE = ["-1", "0", "1", "2", "1000000000000", "9" * 30, ".nan", ".inf", "-.inf", "1e-300", "1e300", "null"]


# Blocks that nobody could wait for are left out: each of them is a layer.
@pytest.mark.parametrize("name", sorted(NUMBERS.keys() - {"blocks"}))
@pytest.mark.parametrize("value", HUGE)
def test_any_number_builds_a_network_or_is_refused_in_one_line(tiny, name, value):
    with mock.patch("mocapsnet.train.fit.train") as loop:
        loop.return_value.test_accuracy = 0.5
        told = call([*tiny, f"--{name}={value}"], record=False)
    assert loop.called == (told.code == 0)
    if told.code:
        assert name in told.err or "torch cannot make such a network" in told.err, told


@settings(max_examples=60)
@given(name=st.sampled_from(["dataset", "data", "output", "run", "images"]), value=values)
@example(name="output", value="\x00")
@example(name="output", value="\ud800")
@example(name="run", value="\x00")
def test_any_text_as_a_name_works_or_is_refused_in_one_line(tiny, name, value):
    if name in ("run", "images"):
        verb = "evaluate" if name == "run" else "predict"
        told = call([verb, "--", *([f"{value} run"] if name == "run" else ["no run", value])], record=False)
        assert told.code
        return
    here = Path(tiny[-1].removeprefix("--output=")).parent
    with mock.patch("mocapsnet.train.fit.train") as loop:
        loop.return_value.test_accuracy = 0.5
        place = f"{here / 'new'}/{value.replace('..', '')}" if name == "output" else value
        told = call([*tiny, f"--{name}={place}"], record=False)
    assert loop.called == (told.code == 0)


content = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(NASTY),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=9), inner)
    ),
    max_leaves=6,
)
files = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(lambda text: text.encode(errors="replace")),
    content.map(lambda value: yaml.safe_dump(value, allow_unicode=True).encode(errors="replace")),
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NASTY)).map(
        lambda both: ": ".join(both).encode(errors="replace")
    ),
)


@settings(max_examples=200)
@given(st.sampled_from(sorted(VERBS)), files)
@example("train", b"\xff\xfe\x00")
@example("train", b"[" * 5000)
@example("evaluate", b"run: 3")
@example("predict", b"images: 3")
@example("bench", b"what: 3")
@example("bench", b"depths: [1, [2]]")
@example("bench", b"depths: {a: b}")
@example("train", b'output: "\\0"')
@example("train", b"a: &a [*a]")
def test_any_config_file_is_understood_or_refused_in_one_line(verb, content):
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "file.yaml").write_bytes(content)
        words = {"evaluate": ["run"], "predict": ["run", "image"], "bench": ["memory"]}.get(verb, [])
        told = call([verb, *words, "--config", str(Path(place) / "file.yaml")])
        for _, named in told.calls:
            for name, value in named.items():
                found = value if name in ("images", "runs") else [value or ""]
                assert all(isinstance(word, str) for word in found)


@pytest.mark.parametrize(
    ("content", "code", "expected"),
    [
        ("epochs: 3", 0, ""),
        ("epoks: 3", 2, "mocapsnet: train has no setting epoks; did you mean epochs?"),
        ("epochs: many", 2, "mocapsnet train: --epochs must be a whole number, got many"),
        ("epochs: [1", 1, "is not YAML: while parsing a flow sequence"),
        ("- 3", 1, "must hold lines such as `epochs: 3`"),
        ("", 1, "must hold lines such as `epochs: 3`"),
    ],
)
def test_a_config_file_is_named_when_it_is_broken(tmp_path, content, code, expected):
    (tmp_path / "run.yaml").write_text(content)
    told = call(["train", "--config", str(tmp_path / "run.yaml")])
    assert told.code == code
    assert expected in told.err
    assert (code == 1) == (str(tmp_path / "run.yaml") in told.err)
    if code == 0:
        assert told.calls[0][0][0].epochs == 3


def test_a_missing_config_file_ends_with_1():
    told = call(["train", "--config", "nowhere.yaml"])
    assert told.code == 1
    assert told.err == (
        "mocapsnet train: the config file 'nowhere.yaml' cannot be read: No such file or directory\n"
    )


@pytest.mark.parametrize("tag", ["object/apply:os.mkdir [{}]", "object/new:os.mkdir [{}]", "name:os.mkdir"])
def test_yaml_never_runs_python(tmp_path, tag):
    value = f"!!python/{tag.format(tmp_path / 'mark')}"
    (tmp_path / "run.yaml").write_text(f"output: {value}\nepochs: {value}\n")
    assert call(["train", "--config", str(tmp_path / "run.yaml")]).code == 1
    assert call(["train", f"--epochs={value}"]).code == 2
    assert os.listdir(tmp_path) == ["run.yaml"]
