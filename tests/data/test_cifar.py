import pickle

import numpy as np
import pytest
from small_files import as_file, python2_pickle, random_split, records, same

from mocapsnet.data.cifar import join, parse_binary, parse_python
from mocapsnet.errors import BrokenFile

SHAPE = (3, 32, 32)
SPLIT = random_split(6, SHAPE, 10)
ROWS = SPLIT.images.numpy().reshape(6, -1)
CLASSES = pytest.mark.parametrize("classes", [10, 100])


@CLASSES
@pytest.mark.parametrize(("parse", "write"), [(parse_binary, records), (parse_python, python2_pickle)])
def test_batches_are_read_one_after_another(classes, parse, write):
    first, second = random_split(4, SHAPE, classes), random_split(3, SHAPE, classes, seed=1)
    files = [as_file(write(split, classes)) for split in (first, second)]
    assert same(parse(files, classes), join([first, second]))


def test_the_small_python_2_pickle_is_what_pickle_itself_understands():
    batch = pickle.loads(python2_pickle(SPLIT, 10), encoding="bytes")
    assert np.array_equal(batch[b"data"], ROWS)
    assert batch[b"labels"] == SPLIT.labels.tolist()


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_python_3_pickles_are_read_in_either_order_of_the_axes(protocol, order):
    batch = {"data": np.array(ROWS, order=order), "labels": SPLIT.labels.tolist()}
    assert same(parse_python([as_file(pickle.dumps(batch, protocol))], 10), SPLIT)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no image"),
        (records(SPLIT, 10)[:-1], "not a whole number of records of 3073"),
        (records(SPLIT, 10) + b"\0", "not a whole number of records of 3073"),
        (b"\x0a" + records(SPLIT, 10)[1:], r"holds the label 10, outside 0\.\.9"),
    ],
)
def test_malformed_binary_batches_are_refused_by_name(content, reason):
    with pytest.raises(BrokenFile, match=reason) as error:
        parse_binary([as_file(content)], 10)
    assert str(error.value).startswith("data/batch ")


def pickled(**changes):
    return pickle.dumps({"data": ROWS, "labels": SPLIT.labels.tolist()} | changes, 4)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read"),
        (pickled()[:-10], "cannot be read"),
        (pickle.dumps({"data": ROWS}, 5), "it asks for numpy._core.numeric._frombuffer"),
        (b"\x00" + pickled(), "cannot be read"),
        (pickled() + b"\0", "not one pickled dictionary"),
        (pickle.dumps([ROWS], 4), "not one pickled dictionary"),
        (pickle.dumps([1, 2, 3]), "not one pickled dictionary"),
        (pickled(data=None), r"holds no data \[N,3072\]"),
        (pickled(data=ROWS[0]), r"holds no data \[N,3072\]"),
        (pickled(data=ROWS[:, 1:]), r"holds no data \[N,3072\]"),
        (pickled(data=ROWS[:0], labels=[]), "holds no image"),
        (pickled(data=ROWS.astype(np.float32)), "not of plain bytes"),
        (pickled(data=ROWS.astype(object)), "not of plain bytes"),
        (pickled(labels=None), "holds no list of labels"),
        (pickled(labels=["cat"] * 6), "holds no list of labels"),
        (pickled(labels=[True] * 6), "holds no list of labels"),
        (pickled(labels=[0] * 5), "holds 5 labels for 6 images"),
        (pickled(labels=[0, 1, 2, 3, 4, 10]), r"holds a label outside 0\.\.9"),
        (pickled(labels=[0, 1, 2, 3, 4, 2**70]), r"holds a label outside 0\.\.9"),
        (pickled(labels=[0, 1, 2, 3, 4, -1]), r"holds a label outside 0\.\.9"),
    ],
)
def test_malformed_pickled_batches_are_refused_by_name(content, reason):
    with pytest.raises(BrokenFile, match=reason) as error:
        parse_python([as_file(content)], 10)
    assert str(error.value).startswith("data/batch ")
    assert "\n" not in str(error.value)
