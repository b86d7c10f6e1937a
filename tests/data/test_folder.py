import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from mocapsnet.data import load
from mocapsnet.data.folder import picture
from mocapsnet.errors import BrokenFile


def save(path, mode="RGB", size=(10, 8), value=100, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value,) * 3 if mode == "RGB" else value).save(path, **options)


def pictures(folder, classes=("cat", "dog"), count=10, **options):
    for name in classes:
        for number in range(count):
            save(folder / name / f"{number:02}.png", value=number, **options)
    return f"folder:{folder}"


def load_beside_dogs(folder):
    """The cats of a folder, and as many dogs that look like them."""
    shutil.copytree(folder / "cat", folder / "dog")
    return load(f"folder:{folder}")


def test_sub_folders_are_the_classes_in_sorted_order(tmp_path):
    dataset = load(pictures(tmp_path, ("zebra", "ant", "Bee")))
    assert dataset.class_names == ("Bee", "ant", "zebra")
    assert dataset.train.labels.bincount().tolist() == [8, 8, 8]
    assert dataset.test.labels.bincount().tolist() == [2, 2, 2]
    assert dataset.train.images.dtype == torch.uint8
    assert dataset.train.labels.dtype == torch.int64


def test_every_fifth_picture_of_a_class_is_for_testing(tmp_path):
    dataset = load(pictures(tmp_path, count=11))
    assert dataset.test.images[:, 0, 0, 0].tolist() == [4, 9, 4, 9]
    assert dataset.train.images[:, 0, 0, 0].tolist() == 2 * [0, 1, 2, 3, 5, 6, 7, 8, 10]


def test_train_and_test_sub_folders_are_the_splits(tmp_path):
    pictures(tmp_path / "train", count=3)
    pictures(tmp_path / "test", ("dog",), count=2)
    dataset = load(f"folder:{tmp_path}")
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [1, 1]


def test_a_test_class_without_training_pictures_is_refused(tmp_path):
    pictures(tmp_path / "train")
    pictures(tmp_path / "test", ("cat", "cow"))
    with pytest.raises(BrokenFile, match=r"test has the class cow, which .*train has not"):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ([(10, 8)], (8, 10)),
        ([(64, 64)], (64, 64)),
        ([(65, 20)], (32, 32)),
        ([(10, 8), (8, 10)], (32, 32)),
        ([(300, 200), (10, 10)], (32, 32)),
    ],
)
def test_a_small_shared_size_is_kept_and_all_others_become_32_by_32(sizes, shape, tmp_path):
    for number in range(5):
        save(tmp_path / "cat" / f"{number}.png", size=sizes[number % len(sizes)])
    assert load_beside_dogs(tmp_path).image_shape == (3, *shape)


def test_a_picture_of_the_shared_size_keeps_its_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9, 7, 3), np.uint8)
    (tmp_path / "cat").mkdir()
    for number, values in enumerate(pixels):
        Image.fromarray(values).save(tmp_path / "cat" / f"{number}.png")
    dataset = load_beside_dogs(tmp_path)
    read = torch.cat([dataset.train.images[:4], dataset.test.images[:1]])
    assert torch.equal(read, torch.from_numpy(pixels).movedim(-1, 1))


@pytest.mark.parametrize("mode", ["1", "L", "LA"])
def test_gray_pictures_have_one_channel(mode, tmp_path):
    for number in range(5):
        Image.new(mode, (6, 6)).save(tmp_path_class(tmp_path) / f"{number}.png")
    assert load_beside_dogs(tmp_path).image_shape == (1, 6, 6)


def tmp_path_class(tmp_path):
    (tmp_path / "cat").mkdir(exist_ok=True)
    return tmp_path / "cat"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
def test_one_coloured_picture_makes_all_rgb(mode, tmp_path):
    pictures(tmp_path, mode="L")
    Image.new(mode, (10, 8)).save(tmp_path / "cat" / "coloured.tiff")
    dataset = load(f"folder:{tmp_path}")
    assert dataset.image_shape == (3, 8, 10)
    assert dataset.train.images[1].unique().tolist() == [1]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_ink_on_nothing_is_ink_on_paper(mode, tmp_path):
    ink = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    ink.paste((0, 0, 0, 255), (2, 0, 4, 8))
    ink.convert(mode).save(tmp_path / "ink.png")
    for wanted in ("L", "RGB"):
        row = picture(tmp_path / "ink.png", (8, 8), wanted)[0, 3]
        assert row.tolist() == [255, 255, 0, 0, 255, 255, 255, 255]


def test_sixteen_bit_pictures_keep_their_upper_eight(tmp_path):
    for number in range(5):
        values = np.full((4, 4), 256 * 40 * number + 255, np.uint16)
        Image.fromarray(values).save(tmp_path_class(tmp_path) / f"{number}.png")
    assert load_beside_dogs(tmp_path).train.images[:, 0, 0, 0].tolist() == 2 * [0, 40, 80, 120]


def test_pixels_of_unknown_range_are_refused_by_name(tmp_path):
    pictures(tmp_path, mode="L")
    Image.new("F", (4, 4)).save(tmp_path / "cat" / "float.tiff")
    with pytest.raises(BrokenFile, match=r"float\.tiff has 32-bit pixels of unknown range"):
        load(f"folder:{tmp_path}")


def test_a_picture_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3
    picture = Image.new("L", (8, 8))
    picture.putpixel((0, 0), 255)
    for number in range(5):
        picture.save(tmp_path_class(tmp_path) / f"{number}.png", exif=exif)
    assert load_beside_dogs(tmp_path).test.images[0, 0, 7, 7] == 255


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "webp", "tiff", "ppm"])
def test_any_format_that_pillow_opens_is_read(suffix, tmp_path):
    for number in range(5):
        save(tmp_path / "cat" / f"{number}.{suffix}", size=(16, 16))
    image = load_beside_dogs(tmp_path).train.images[0]
    assert image.shape == (3, 16, 16)
    assert image.float().mean().item() == pytest.approx(100, abs=2)


def test_pictures_in_deeper_folders_belong_to_the_class_and_hidden_names_are_passed_over(tmp_path):
    save(tmp_path / "cat" / "indoors" / "1.png", value=200)
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"\0")
    (tmp_path / "cat" / ".thumbnails").mkdir()
    (tmp_path / "cat" / ".thumbnails" / "1.png").write_bytes(b"\0")
    (tmp_path / ".git").mkdir()
    (tmp_path / "notes.txt").write_text("beside the classes")
    dataset = load(pictures(tmp_path, count=9))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.test.images[:, 0, 0, 0].tolist() == [4, 200, 4]


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: b"",
        lambda content: b"no picture",
        lambda content: content[:8],
        lambda content: content[: len(content) // 2],
    ],
)
def test_a_picture_that_cannot_be_read_is_named(harm, tmp_path):
    name = pictures(tmp_path)
    broken = tmp_path / "dog" / "03.png"
    broken.write_bytes(harm(broken.read_bytes()))
    with pytest.raises(
        BrokenFile, match=r"dog.03\.png cannot be read .*; repair it or take it away"
    ) as error:
        load(name)
    assert "\n" not in str(error.value)


def test_a_picture_that_is_not_there_is_not_called_broken(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png"):
        picture(tmp_path / "nowhere.png", (8, 8), "L")


def test_a_folder_that_is_not_there_or_has_no_classes_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere; folder:PATH needs"):
        load(f"folder:{tmp_path}/nowhere")
    with pytest.raises(BrokenFile, match="has no sub-folders; folder:PATH needs one per class"):
        load(f"folder:{tmp_path}")
    (tmp_path / "cat").mkdir()
    with pytest.raises(BrokenFile, match=r"cat is empty; put pictures of that class there"):
        load(f"folder:{tmp_path}")
    with pytest.raises(BrokenFile, match="leaves no picture to test with; put 5 in a class"):
        load(pictures(tmp_path, count=4))


@pytest.mark.parametrize(
    "names", [("train", "val"), ("Testing", "Training"), ("train", "valid", "validation")]
)
def test_splits_are_no_classes(names, tmp_path):
    for name in names:
        pictures(tmp_path / name)
    told = (
        f"has only {', '.join(names)}, which are no classes; give PATH/CLASS, or PATH/train/CLASS and PATH/"
    )
    with pytest.raises(BrokenFile, match=told):
        load(f"folder:{tmp_path}")


def test_a_class_may_be_called_test(tmp_path):
    assert load(pictures(tmp_path, ("exam", "test"))).class_names == ("exam", "test")


def test_one_class_is_refused_as_all_of_it_would_be_right(tmp_path):
    with pytest.raises(BrokenFile, match="has only the class cat; put two sub-folders or more there"):
        load(pictures(tmp_path, ("cat",)))
