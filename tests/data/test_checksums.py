import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_files import ARCHIVES, FORMS, same, small, write_archive

from mocapsnet.data.catalog import load_files, load_npz
from mocapsnet.errors import BrokenFile

PLAIN, GZIPPED, ARCHIVED = "plain", "gzipped", "archived"
PACKAGES = [
    *((*form, PLAIN) for form in FORMS),
    *((*form, GZIPPED) for form in FORMS),
    *((*form, ARCHIVED) for form in ARCHIVES),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Every small data set in every packaging, each in its folder."""
    made = {}
    for name, form, package in PACKAGES:
        folder = tmp_path_factory.mktemp("set")
        content = small(name, form)
        if package == ARCHIVED:
            write_archive(folder / ARCHIVES[name, form], content.contents)
        else:
            content.write(folder, gzipped=package == GZIPPED)
        made[name, form, package] = content, folder
    return made


@st.composite
def mutations(draw):
    """A way to harm a file: flip a bit, cut the end off, add to it, or overwrite a stretch."""
    where = draw(st.floats(0, 1, exclude_max=True))
    how = draw(st.sampled_from(("flip", "cut", "add", "overwrite")))
    bit, junk = draw(st.integers(0, 7)), draw(st.binary(min_size=1, max_size=40))

    def mutate(content):
        at = int(where * len(content))
        if how == "flip":
            return content[:at] + bytes((content[at] ^ 1 << bit,)) + content[at + 1 :]
        if how == "cut":
            return content[:at]
        if how == "add":
            return content + junk
        return content[:at] + junk + content[at + len(junk) :]

    return mutate


HARM = settings(max_examples=200)


def attempt(file, harmed, read, *arguments, **options):
    """What is read while a file is harmed: a data set, or the one line that refuses it."""
    whole = file.read_bytes()
    file.write_bytes(harmed)
    try:
        return read(*arguments, **options)
    except BrokenFile as error:
        return str(error)
    finally:
        file.write_bytes(whole)


@HARM
@given(st.sampled_from(PACKAGES), st.integers(0, 5), mutations())
def test_a_harmed_file_is_refused_by_name_unless_its_content_is_whole(packages, package, number, mutate):
    made, folder = packages[package]
    files = sorted(folder.iterdir())
    file = files[number % len(files)]
    whole = file.read_bytes()
    harmed = mutate(whole)
    result = attempt(file, harmed, load_files, package[0], folder, table=made.table)
    if isinstance(result, str):
        assert file.name in result
        assert "\n" not in result
    else:
        # Packaging has room for change (a date, a name); content has none.
        assert same(result, made.dataset)
        assert package[2] != PLAIN or harmed == whole


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    """A small data set as one .npz file."""
    path, dataset = tmp_path_factory.mktemp("set") / "svhn.npz", small("svhn", "mat").dataset
    X, Y = (torch.cat(parts).numpy() for parts in zip(dataset.train, dataset.test, strict=True))
    np.savez(path, X=X.transpose(0, 2, 3, 1), Y=Y, n_train=len(dataset.train.labels))
    return path, dataset


def test_no_flipped_bit_of_a_compressed_npz_changes_an_image(tmp_path):
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, X=np.zeros((70, 32, 32, 3), np.uint8), Y=np.arange(70) % 10, n_train=60)
    whole, dataset = path.read_bytes(), load_npz("svhn", path)
    # Here X begins, and numpy alone, which may stop short of the zip's checksum, misses several flips.
    for bit in range(8 * 100, 8 * 150):
        harmed = bytearray(whole)
        harmed[bit // 8] ^= 1 << bit % 8
        result = attempt(path, harmed, load_npz, "svhn", path)
        assert isinstance(result, str) or same(result, dataset)


@HARM
@given(mutations())
def test_a_harmed_npz_is_refused_by_name_unless_its_content_is_whole(npz, mutate):
    path, dataset = npz
    result = attempt(path, mutate(path.read_bytes()), load_npz, "svhn", path)
    if isinstance(result, str):
        assert result.startswith(f"{path} ")
        assert "\n" not in result
    else:
        assert same(result, dataset)
