import pytest
from small_files import as_file, idx, idx_pair, random_split, same

from mocapsnet.data.idx import parse
from mocapsnet.errors import BrokenFile

SPLIT = random_split(7, (1, 5, 4), 10)
IMAGES, LABELS = idx_pair(SPLIT)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 1, 1), (1, 3, 7)])
def test_what_is_written_as_idx_is_read_again(shape):
    split = random_split(11, shape, 10)
    images, labels = idx_pair(split)
    assert same(parse([as_file(images), as_file(labels)]), split)


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (b"", "begins with nothing"),
        (IMAGES[:3], "begins with 000008"),
        (IMAGES[:10], "not an idx file"),
        (b"\x01" + IMAGES[1:], "begins with 01000803"),
        (IMAGES[:2] + b"\x0d" + IMAGES[3:], "begins with 00000d03"),
        (LABELS, "begins with 00000801"),
        (IMAGES[:-1], "has 155 bytes, its header promises 156"),
        (IMAGES + b"\0", "has 157 bytes, its header promises 156"),
        (IMAGES[:4] + b"\xff" * 12 + IMAGES[16:], "its header promises"),
    ],
)
def test_malformed_idx_images_are_refused_by_name(images, reason):
    with pytest.raises(BrokenFile, match=reason) as error:
        parse([as_file(images, "images"), as_file(LABELS, "labels")])
    assert str(error.value).startswith("data/images ")


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (idx(SPLIT.labels[:-1]), "holds 6 labels for 7 images"),
        (idx([0, 1, 2, 3, 4, 5, 10]), r"holds the label 10, outside 0\.\.9"),
        (IMAGES, "not an idx file of bytes with 1 axes"),
    ],
)
def test_malformed_idx_labels_are_refused_by_name(labels, reason):
    with pytest.raises(BrokenFile, match=reason) as error:
        parse([as_file(IMAGES, "images"), as_file(labels, "labels")])
    assert str(error.value).startswith("data/labels ")


def test_idx_files_of_no_image_are_refused():
    with pytest.raises(BrokenFile, match="data/batch holds no image"):
        parse([as_file(idx(SPLIT.images[:0, 0])), as_file(idx([]))])
