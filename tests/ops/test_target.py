import pytest
import torch

from mocapsnet.ops.target import target


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (torch.tensor([2, 0]), [[0, 0, 1], [1, 0, 0]]),
        (torch.tensor([1, 1], dtype=torch.int32), [[0, 1, 0], [0, 1, 0]]),
        (torch.tensor([0, 2], dtype=torch.uint8), [[1, 0, 0], [0, 0, 1]]),
        (torch.tensor([[1, 0, 1], [0, 0, 0]]), [[1, 0, 1], [0, 0, 0]]),
        (torch.tensor([[True, False, True], [True, True, True]]), [[1, 0, 1], [1, 1, 1]]),
        (torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]]), [[0.25, 0.75, 0], [1, 0, 0]]),
    ],
    ids=["int64", "int32", "uint8", "multi-hot", "bool", "soft"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_labels_become_one_row_per_image_in_the_dtype_of_lengths(labels, expected, dtype):
    T = target(labels, torch.zeros(2, 3, dtype=dtype))
    assert T.dtype == dtype
    assert T.tolist() == expected


@pytest.mark.parametrize(
    "labels", [torch.tensor([0, 1]), torch.eye(2, dtype=torch.long)], ids=["index", "hot"]
)
def test_as_many_images_as_classes_is_no_ambiguity(labels):
    assert target(labels, torch.zeros(2, 2)).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(("labels", "shape"), [([0], (1, 1)), ([[1]], (1, 1)), ([], (0, 3))], ids=str)
def test_one_class_and_no_image_work(labels, shape):
    assert target(torch.tensor(labels, dtype=torch.long), torch.zeros(shape)).tolist() == [[1.0]] * shape[0]


@pytest.mark.parametrize(
    ("labels", "parts"),
    [
        (torch.tensor([0, 3]), ["0..2", "got 3", "classes"]),
        (torch.tensor([-1, 0]), ["0..2", "got -1"]),
        (torch.tensor([[2.0, 0, 0], [0, 1, 0]]), ["0..1", "got 2"]),
        (torch.tensor([[0, 1, 0], [0, -1, 0]]), ["0..1", "got -1"]),
        (torch.tensor([[0, float("nan"), 0], [0, 1, 0]]), ["0..1", "got nan"]),
        (torch.tensor([0, 1, 2]), ["B=2", "(3,)"]),
        (torch.tensor([[0], [1]]), ["B=2", "K=3", "(2, 1)"]),
        (torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0]]), ["K=3", "(2, 4)"]),
        (torch.tensor([0.0, 1.0]), ["float32", "(2,)"]),
        (torch.tensor([True, False]), ["bool", "(2,)"]),
        (torch.tensor(1), ["B=2", "()"]),
    ],
    ids=[
        "too-large",
        "negative",
        "hot-two",
        "hot-negative",
        "hot-nan",
        "too-many",
        "column",
        "wide",
        "float",
        "bool",
        "scalar",
    ],
)
def test_labels_that_cannot_be_meant_are_refused(labels, parts):
    with pytest.raises(ValueError, match="labels must be") as error:
        target(labels, torch.zeros(2, 3))
    assert all(part in str(error.value) for part in parts), str(error.value)
