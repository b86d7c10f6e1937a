import gzip
import subprocess
import sys

import pytest
from small_files import ARCHIVES, FORMS, same, small, write_archive

from mocapsnet.data import load
from mocapsnet.data.catalog import ADDRESSES, LAYOUTS, load_files
from mocapsnet.data.checksums import MD5
from mocapsnet.data.classes import CLASS_NAMES
from mocapsnet.errors import BrokenFile

EVERY_FORM = pytest.mark.parametrize(("name", "form"), FORMS)
LEFT_BEHIND = {
    ("mnist", "idx"): "MNIST/raw",
    ("fashion_mnist", "idx"): "FashionMNIST/raw",
    ("svhn", "mat"): ".",
    ("cifar10", "binary"): "cifar-10-batches-bin",
    ("cifar10", "python"): "cifar-10-batches-py",
    ("cifar100", "binary"): "cifar-100-binary",
    ("cifar100", "python"): "cifar-100-python",
}


@EVERY_FORM
@pytest.mark.parametrize("where", [".", "{name}", "{left}", "{name}/{left}"])
@pytest.mark.parametrize("gzipped", [False, True])
def test_files_are_found_where_people_and_torchvision_put_them(name, form, where, gzipped, tmp_path):
    made = small(name, form)
    made.write(tmp_path / where.format(name=name, left=LEFT_BEHIND[name, form]), gzipped)
    loaded = load_files(name, tmp_path, table=made.table)
    assert same(loaded, made.dataset)
    assert loaded.name == name
    assert loaded.class_names == CLASS_NAMES[name]


@pytest.mark.parametrize(("name", "form"), ARCHIVES)
@pytest.mark.parametrize("where", [".", "{name}"])
def test_an_archive_is_read_as_it_is_and_nothing_is_written(name, form, where, tmp_path):
    made = small(name, form)
    folder = tmp_path / where.format(name=name)
    folder.mkdir(exist_ok=True)
    write_archive(folder / ARCHIVES[name, form], made.contents | {"readme.html": b"hello"})
    assert same(load_files(name, tmp_path, table=made.table), made.dataset)
    assert [path.name for path in folder.iterdir()] == [ARCHIVES[name, form]]


@pytest.mark.parametrize(("name", "form"), ARCHIVES)
def test_an_archive_that_lacks_a_file_is_refused_by_name(name, form, tmp_path):
    made = small(name, form)
    lacking, *rest = made.contents
    write_archive(tmp_path / ARCHIVES[name, form], {file: made.contents[file] for file in rest})
    with pytest.raises(BrokenFile, match=rf"{ARCHIVES[name, form]} holds no {lacking}; delete it"):
        load_files(name, tmp_path, table=made.table)


@EVERY_FORM
def test_official_files_are_what_they_were_published_as(name, form, tmp_path):
    small(name, form).write(tmp_path)
    with pytest.raises(
        BrokenFile, match=r"is truncated or altered \(md5 .*\); delete it and run with --down"
    ):
        load(name, tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_file_has_a_checksum_and_every_set_an_address(name):
    files = {file for layout in LAYOUTS[name] for file in layout.files}
    assert files == set(MD5[name])
    assert all(len(md5) == 32 for md5 in MD5[name].values())
    archives = {layout.archive for layout in LAYOUTS[name]}
    for file, mirrors in ADDRESSES[name].items():
        assert file in archives or file.removesuffix(".gz") in files
        assert all(address.endswith(f"/{file}") for address in mirrors)


def test_mnist_and_fashion_mnist_are_told_apart_by_their_content(tmp_path):
    digits, clothes = small("mnist", "idx"), small("fashion_mnist", "idx")
    table = digits.table | clothes.table
    digits.write(tmp_path)
    assert same(load_files("mnist", tmp_path, table=table), digits.dataset)
    with pytest.raises(BrokenFile, match="train-images-idx3-ubyte is mnist's, not fashion_mnist's; run with"):
        load_files("fashion_mnist", tmp_path, table=table)
    clothes.write(tmp_path / "fashion_mnist")
    assert same(load_files("fashion_mnist", tmp_path, table=table), clothes.dataset)
    assert same(load_files("mnist", tmp_path, table=table), digits.dataset)


def test_what_is_not_there_is_asked_for_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as error:
        load("cifar10")
    assert str(error.value) == (
        "cifar10 is not under data/; run with --download true or put cifar-10-binary.tar.gz there"
    )
    with pytest.raises(
        FileNotFoundError, match=r"svhn is not under .*put train_32x32.mat, test_32x32.mat there"
    ):
        load("svhn", tmp_path / "elsewhere")


def test_the_one_missing_file_is_named(tmp_path):
    made = small("mnist", "idx")
    made.write(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"mnist is not complete: .*raw has no t10k-labels-idx1-ubyte; "
    ):
        load_files("mnist", tmp_path, table=made.table)


def test_folders_called_train_and_test_are_not_taken_for_cifar100(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match="cifar100 is not under"):
        load("cifar100", tmp_path)


def test_a_misspelt_name_is_refused_with_a_suggestion(tmp_path):
    told = rf"one of .*'NAME of {tmp_path}/NAME\.npz', 'folder:PATH', got 'cifer10'; did you mean 'cifar10'"
    with pytest.raises(ValueError, match=told):
        load("cifer10", tmp_path)
    with pytest.raises(FileNotFoundError, match="is not under"):
        load(f"NAME of {tmp_path}/NAME.npz", tmp_path, download=True)


def test_a_file_that_swells_beyond_reason_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("mocapsnet.data.files.LARGEST", 1000)
    made = small("mnist", "idx")
    made.write(tmp_path, gzipped=True)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(10_000)))
    with pytest.raises(BrokenFile, match=r"train-images-idx3-ubyte\.gz is larger than 1000 bytes"):
        load_files("mnist", tmp_path, table=made.table)


def test_scipy_is_imported_only_for_svhn():
    code = "import sys, mocapsnet.data as data; data.load(); sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
