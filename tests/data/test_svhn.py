import io
import sys

import numpy as np
import pytest
from scipy.io import savemat
from small_files import as_file, mat, random_split, same

from mocapsnet.data.svhn import parse
from mocapsnet.errors import BrokenFile

SPLIT = random_split(12, (3, 32, 32), 10)
X = SPLIT.images.numpy().transpose(2, 3, 1, 0)
Y = np.arange(1, 13, dtype=np.uint8)[:, None].clip(max=10)


def saved(**content):
    stream = io.BytesIO()
    savemat(stream, content)
    return stream.getvalue()


def test_what_is_written_as_mat_is_read_again():
    assert same(parse([as_file(mat(SPLIT))]), SPLIT)


def test_label_ten_is_the_digit_zero():
    assert parse([as_file(saved(X=X, y=Y))]).labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read"),
        (b"not a mat file" * 20, "cannot be read"),
        (saved(X=X, y=Y)[:2000], "cannot be read"),
        (saved(y=Y), r"holds no X of bytes \[H,W,3,N\]"),
        (saved(X=X[:, :, 0], y=Y), r"holds no X of bytes \[H,W,3,N\]"),
        (saved(X=X.astype(float), y=Y), r"holds no X of bytes \[H,W,3,N\]"),
        (saved(X=X), r"holds no y of whole numbers \[12,1\]"),
        (saved(X=X, y=Y[1:]), r"holds no y of whole numbers \[12,1\]"),
        (saved(X=X, y=Y + 0.5), r"holds no y of whole numbers \[12,1\]"),
        (saved(X=X, y=Y - 1), r"holds a label outside 1\.\.10"),
        (saved(X=X, y=Y + 1), r"holds a label outside 1\.\.10"),
    ],
)
def test_malformed_mat_files_are_refused_by_name(content, reason):
    with pytest.raises(BrokenFile, match=reason) as error:
        parse([as_file(content)])
    assert str(error.value).startswith("data/batch ")


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ImportError, match=r"need scipy: pip install 'mocapsnet\[svhn\]'"):
        parse([as_file(mat(SPLIT))])
