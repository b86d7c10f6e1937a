import numpy as np
import pytest
from small_files import random_split, same

from mocapsnet.data import load
from mocapsnet.data.npz import read
from mocapsnet.errors import BrokenFile

SPLIT = random_split(10, (3, 5, 4), 7)
X = SPLIT.images.numpy().transpose(0, 2, 3, 1)
Y = SPLIT.labels.numpy()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kind", [np.uint8, np.int64])
def test_what_is_written_as_npz_is_read_again(save, kind, tmp_path):
    save(tmp_path / "a.npz", X=X, Y=Y.astype(kind), n_train=6)
    train, test, classes = read(tmp_path / "a.npz")
    assert same(train, SPLIT.take(slice(6)))
    assert same(test, SPLIT.take(slice(6, None)))
    assert classes == Y.max() + 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"X": None}, "X is not a file in the archive"),
        ({"n_train": None}, "n_train is not a file in the archive"),
        ({"X": X.astype(np.float32)}, r"must have X uint8 \[N,H,W,C\], got float32 \[10, 5, 4, 3\]"),
        ({"X": X[..., 0]}, r"must have X uint8 \[N,H,W,C\], got uint8 \[10, 5, 4\]"),
        ({"X": X[:0], "Y": Y[:0]}, r"got uint8 \[0, 5, 4, 3\]"),
        ({"X": X.astype(object)}, "Object arrays cannot be loaded"),
        ({"Y": Y[:9]}, r"must have Y of whole numbers \[10\], got int64 \[9\]"),
        ({"Y": Y / 2}, r"must have Y of whole numbers \[10\], got float64 \[10\]"),
        ({"Y": Y - 1}, "holds the label -1, outside"),
        ({"Y": Y + 9}, r"outside 0\.\.9"),
        ({"Y": 0 * Y + 5}, "must have Y of two classes or more, got 5 alone"),
        ({"n_train": 0}, r"n_train in 1\.\.9, got 0"),
        ({"n_train": 10}, r"n_train in 1\.\.9, got 10"),
        ({"n_train": 5.0}, r"n_train in 1\.\.9, got 5.0"),
        ({"n_train": [5]}, r"n_train in 1\.\.9, got \[5\]"),
    ],
)
def test_a_malformed_npz_is_refused_by_name(changes, reason, tmp_path):
    arrays = {"X": X, "Y": Y, "n_train": 6} | changes
    path = tmp_path / "a.npz"
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(BrokenFile, match=reason) as error:
        read(path)
    assert str(error.value).startswith(f"{path} ")
    assert "\n" not in str(error.value)


def test_what_is_no_zip_file_is_refused_by_name(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, X=X, Y=Y, n_train=6)
    whole = path.read_bytes()
    for content in (b"", b"words", whole[:-1], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(BrokenFile, match=r"a\.npz cannot be read .*; make it again with numpy\.savez"):
            read(path)
    with path.open("wb") as stream:
        np.save(stream, X)
    with pytest.raises(BrokenFile, match=r"a\.npz cannot be read"):
        read(path)


def test_any_npz_is_a_data_set_by_its_name(tmp_path):
    np.savez(tmp_path / "birds.npz", X=X, Y=Y, n_train=6)
    dataset = load("birds", tmp_path)
    assert dataset.name == "birds"
    assert dataset.image_shape == (3, 5, 4)
    assert dataset.class_names == tuple(str(label) for label in range(Y.max() + 1))


@pytest.mark.parametrize("place", ["cifar10.npz", "cifar10/cifar10.npz"])
def test_an_npz_of_a_known_name_has_its_classes(place, tmp_path):
    (tmp_path / "cifar10").mkdir()
    np.savez(tmp_path / place, X=X, Y=Y, n_train=6)
    assert load("cifar10", tmp_path).class_names[:2] == ("airplane", "automobile")
    np.savez(tmp_path / place, X=X, Y=Y + 4, n_train=6)
    with pytest.raises(BrokenFile, match=r"outside 0\.\.9"):
        load("cifar10", tmp_path)
