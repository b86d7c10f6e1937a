import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_files import same

from mocapsnet.data import Dataset, Split, load
from mocapsnet.data.classes import CLASS_NAMES, shape_of
from mocapsnet.errors import WrongArgument

TOTAL = 50


def numbered(name="numbers"):
    """A data set whose labels say which image they belong to."""

    def split(start, count):
        labels = torch.arange(start, start + count)
        return Split(labels.to(torch.uint8)[:, None, None, None], labels)

    return Dataset(name, split(0, TOTAL), split(100, 7), ("a", "b"))


def test_mnist6k_is_embedded_and_balanced():
    dataset = load()
    assert dataset.name == "mnist6k"
    assert dataset.image_shape == (1, 28, 28)
    assert dataset.train.labels.bincount().tolist() == [500] * 10
    assert dataset.test.labels.bincount().tolist() == [100] * 10
    assert dataset.class_names == tuple("0123456789")
    assert dataset.validation is None
    assert dataset.train.images.dtype == dataset.test.images.dtype == torch.uint8
    assert dataset.train.labels.dtype == dataset.test.labels.dtype == torch.int64
    assert dataset.train.images.is_contiguous()


@given(st.integers(1, TOTAL), st.integers(1, TOTAL))
def test_a_smaller_limit_is_a_part_of_a_larger_one(one, other):
    smaller, larger = (numbered().limit(count) for count in sorted((one, other)))
    assert set(smaller.train.labels.tolist()) <= set(larger.train.labels.tolist())
    assert len(smaller.train.labels) == min(one, other)


def test_the_largest_limit_changes_nothing():
    assert same(numbered().limit(TOTAL), numbered())


@pytest.mark.parametrize("count", [0, -1, TOTAL + 1, 2.5, True])
def test_a_limit_that_cannot_be_is_refused(count):
    with pytest.raises(WrongArgument, match="limit must be"):
        numbered().limit(count)


@given(st.floats(0.02, 0.98), st.integers(0, 2**32))
def test_training_and_validation_images_are_the_old_training_images(fraction, seed):
    dataset = numbered().hold_out(fraction, seed)
    train, validation = dataset.train.labels.tolist(), dataset.validation.labels.tolist()
    assert sorted(train + validation) == list(range(TOTAL))
    assert len(validation) == round(fraction * TOTAL)
    assert (train, validation) == (sorted(train), sorted(validation))
    for split in (dataset.train, dataset.validation):
        assert torch.equal(split.images.flatten(), split.labels.to(torch.uint8))


def test_holding_out_is_a_function_of_the_seed():
    first, again, other = (numbered().hold_out(0.2, seed) for seed in (3, 3, 4))
    assert same(first.validation, again.validation)
    assert not same(first.validation, other.validation)


def test_holding_out_nothing_changes_nothing():
    assert numbered().hold_out(0).validation is None
    assert same(numbered().hold_out(0), numbered())


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, math.nan, math.inf, 0.001, 0.999])
def test_a_fraction_that_cannot_be_held_out_is_refused(fraction):
    with pytest.raises(WrongArgument, match="validation must"):
        numbered().hold_out(fraction)


def test_the_test_split_is_never_touched():
    assert same(numbered().limit(10).hold_out(0.5).test, numbered().test)


def test_a_limit_after_holding_out_leaves_the_validation_split():
    held = numbered().hold_out(0.2)
    assert same(held.limit(10).validation, held.validation)


def test_what_a_data_set_is_can_be_known_without_its_files():
    embedded = load()
    assert shape_of("mnist6k") == (embedded.image_shape, embedded.classes)
    assert shape_of("cifar100") == ((3, 32, 32), 100)
    assert [shape_of(name)[1] for name in CLASS_NAMES] == [len(set(names)) for names in CLASS_NAMES.values()]
    with pytest.raises(WrongArgument, match="dataset must be one of"):
        shape_of("folder:birds")


@pytest.mark.parametrize(
    ("name", "slug"),
    [("cifar10", "cifar10"), ("folder:my/birds", "folder-my-birds"), ("folder:C:\\a b", "folder-C-a-b")],
)
def test_a_slug_is_fit_for_a_file(name, slug):
    assert numbered(name).slug == slug
