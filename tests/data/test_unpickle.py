import contextlib
import copyreg
import os
import pickle
from hashlib import md5

import pytest
from small_files import as_file, python2_pickle, same, small

from mocapsnet.data.catalog import load_files
from mocapsnet.data.cifar import parse_python
from mocapsnet.data.unpickle import unpickle
from mocapsnet.errors import BrokenFile

SMALL = small("cifar10", "python")


class Reduced:
    """Pickles as the call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def text(word):
    return b"X" + len(word).to_bytes(4, "little") + word.encode()


def payloads(sentinel):
    """Pickles that leave a file behind as soon as anything in them runs."""
    touch, code = f"touch {sentinel}", f"open({str(sentinel)!r}, 'w').close()"
    run = Reduced(os.system, touch)
    runs = pickle.dumps(run, 0)[:-1]
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tX\x01\x00\x00\x00btR"
    return {
        "os.system": pickle.dumps(run),
        "eval": pickle.dumps(Reduced(eval, code)),
        "exec": pickle.dumps(Reduced(exec, code)),
        "open": pickle.dumps(Reduced(open, str(sentinel), "w")),
        "numpy's runstring": b"cnumpy.testing._private.utils\nrunstring\n(" + text(code) + b"}tR.",
        "a call in an argument": pickle.dumps(Reduced(str, Reduced(list, Reduced(os.system, touch)))),
        "a call in a value": pickle.dumps({"labels": [0], "data": run}),
        "a call in a key": b"}(" + runs + b"K\x01u.",
        "a call in the arguments of numpy's dtype": b"cnumpy\ndtype\n(" + runs + b"tR.",
        "a call in the state of an array": array + b"(K\x01" + runs + b"tb.",
        "getattr of an imported module": b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n("
        + (text("os") + b"tR" + text("system") + b"tR(" + text(touch) + b"tR."),
        "a dotted name": b"\x80\x04" + text("os") + text("path.os.system") + b"\x93(" + text(touch) + b"tR.",
        "the opcode INST": b"(" + text(touch) + b"ios\nsystem\n.",
        "the opcode OBJ": b"(cos\nsystem\n" + text(touch) + b"o.",
        "a second pickle's worth after an array": array + b"0" + runs + b".",
    }


@pytest.mark.parametrize("kind", payloads(""))
def test_a_hostile_pickle_never_runs(kind, tmp_path):
    sentinel = tmp_path / "sentinel"
    payload = payloads(sentinel)[kind]
    with contextlib.suppress(Exception):
        pickle.loads(payload)
    assert sentinel.exists(), "the payload must be live, or the test proves nothing"
    sentinel.unlink()
    with pytest.raises(BrokenFile, match=r"^data/batch cannot be read \(it asks for .*\); delete it"):
        unpickle(as_file(payload))
    assert not sentinel.exists()


@pytest.mark.parametrize("kind", payloads(""))
def test_a_hostile_pickle_never_runs_even_where_its_checksum_is_right(kind, tmp_path):
    sentinel = tmp_path / "sentinel"
    folder = SMALL.write(tmp_path / "cifar-10-batches-py")
    payload = payloads(sentinel)[kind]
    (folder / "data_batch_3").write_bytes(payload)
    table = {"cifar10": SMALL.table["cifar10"] | {"data_batch_3": md5(payload).hexdigest()}}
    with pytest.raises(BrokenFile, match="data_batch_3 cannot be read"):
        load_files("cifar10", tmp_path, table=table)
    assert not sentinel.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "getattr"),
        ("builtins", "bytearray"),
        ("_codecs", "encode"),
        ("copyreg", "_reconstructor"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy", "dtype.__class__"),
        ("numpy", "ndarray.tofile"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("mocapsnet.data.unpickle", "Call"),
    ],
)
def test_a_pickle_may_name_nothing_but_what_makes_an_array(module, name):
    for content in (f"c{module}\n{name}\n.".encode(), b"\x80\x04" + text(module) + text(name) + b"\x93."):
        with pytest.raises(BrokenFile, match=f"it asks for {module}.{name}, which no data set needs"):
            unpickle(as_file(content))


def test_a_registered_extension_code_is_no_way_around():
    copyreg.add_extension("posix", "system", 240)
    try:
        with pytest.raises(BrokenFile, match=r"it asks for posix\.system"):
            unpickle(as_file(b"\x80\x02\x82\xf0(" + text("true") + b"tR."))
    finally:
        copyreg.remove_extension("posix", "system", 240)


@pytest.mark.parametrize("content", [b"Pname\n.", text("name") + b"Q."])
def test_a_persistent_name_is_refused(content):
    with pytest.raises(BrokenFile, match="cannot be read"):
        unpickle(as_file(content))


def test_a_forged_array_of_pointers_is_refused():
    dtype = (
        b"cnumpy\ndtype\n("
        + text("O8")
        + b"tR(K\x03"
        + text("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\n(NNNtR(K\x01(K\x01t" + dtype + b"\x89C\x08AAAAAAAAtb"
    with pytest.raises(BrokenFile, match="not of plain bytes"):
        unpickle(as_file(b"}(" + text("data") + array + b"u."))


def test_a_pickle_cannot_change_how_the_next_one_is_read():
    poison = b"cnumpy\ndtype\n(N}(" + text("__defaults__") + b"(K\x01K\x02tutb0}."
    unpickle(as_file(poison))
    split = SMALL.dataset.train
    assert same(parse_python([as_file(python2_pickle(split, 10))], 10), split)
