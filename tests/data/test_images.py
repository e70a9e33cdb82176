import io
from base64 import b64decode
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from lmrc.data.images import (
    THUMBNAIL,
    UnreadableImageError,
    common_form,
    list_images,
    read_image,
    thumbnail,
)

RNG = np.random.default_rng(0)


def corner(width=60, height=40):
    """White, with a dark top left quarter."""
    pixels = np.full((height, width, 3), 255, np.uint8)
    pixels[: height // 2, : width // 2] = 0
    return Image.fromarray(pixels)


def exif(orientation):
    data = Image.Exif()
    data[0x0112] = orientation
    return data


@pytest.mark.parametrize(
    ("suffix", "exact"),
    [("png", True), ("bmp", True), ("tiff", True), ("gif", True), ("jpg", False), ("webp", False)],
)
def test_the_formats_people_have_are_read(tmp_path, suffix, exact):
    corner().save(tmp_path / f"a.{suffix}")
    pixels = read_image(tmp_path / f"a.{suffix}")
    assert pixels.shape == (40, 60, 3)
    assert pixels.dtype == np.uint8
    np.testing.assert_allclose(pixels.astype(int), np.asarray(corner()), atol=0 if exact else 30)


@pytest.mark.parametrize(
    ("orientation", "dark_at"),
    [
        (1, (0, 0)),
        (2, (0, -1)),
        (3, (-1, -1)),
        (4, (-1, 0)),
        (5, (0, 0)),
        (6, (0, -1)),
        (7, (-1, -1)),
        (8, (-1, 0)),
    ],
)
@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff", "webp"])
def test_images_are_rotated_by_their_exif_orientation(tmp_path, suffix, orientation, dark_at):
    path = tmp_path / f"a.{suffix}"
    corner().save(path, exif=exif(orientation))
    pixels = read_image(path)
    assert pixels.shape == ((40, 60, 3) if orientation < 5 else (60, 40, 3))
    assert pixels[dark_at].max() < 60
    assert (np.array([pixels[y, x].mean() for y in (0, -1) for x in (0, -1)]) > 200).sum() == 3
    assert common_form([path])[0] == pixels.shape[:2]


def test_scaled_to_the_shorter_side_and_cropped_at_the_centre():
    pixels = np.zeros((20, 80, 3), np.uint8)
    pixels[:, 30:50] = [0, 200, 0]  # the centre square
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    small = read_image(file, size=10)
    assert small.shape == (10, 10, 3)
    assert (small[:, 2:-2] == [0, 200, 0]).all()  # the edge sees its neighbours
    assert read_image(file, size=(10, 20)).shape == (10, 20, 3)
    assert read_image(file, size=100).shape == (100, 100, 3)


def test_an_image_of_the_right_size_keeps_its_pixels(tmp_path):
    pixels = RNG.integers(0, 256, (32, 48, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", size=(32, 48)), pixels)


def test_shrinking_averages_instead_of_picking_pixels():
    stripes = np.zeros((128, 128), np.uint8)
    stripes[:, ::2] = 255
    file = io.BytesIO()
    Image.fromarray(stripes).save(file, "PNG")
    np.testing.assert_allclose(read_image(file, size=32, mode="L"), 127, atol=12)


def test_a_large_photo_looks_the_same_though_it_is_decoded_small(tmp_path):
    smooth = np.add.outer(np.linspace(0, 200, 1200), np.linspace(0, 55, 1600))
    image = Image.fromarray(smooth.astype(np.uint8)).convert("RGB")
    image.save(tmp_path / "a.jpg", quality=95)
    image.save(tmp_path / "a.png")
    from_jpeg, from_png = (read_image(tmp_path / f"a.{s}", 64).astype(int) for s in ("jpg", "png"))
    np.testing.assert_allclose(from_jpeg, from_png, atol=3)


def test_transparent_pixels_are_white(tmp_path):
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (read_image(tmp_path / "clear.png") == 255).all()
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([9, 9, 9])
    palette.save(tmp_path / "clear.gif", transparency=0)
    assert (read_image(tmp_path / "clear.gif") == 255).all()


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    ramp = np.array([[0, 256, 32768, 65535]], np.uint16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png", mode="L").tolist() == [[0, 1, 128, 255]]


def test_of_an_animation_the_first_frame_is_read(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (read_image(tmp_path / "a.gif") == [255, 0, 0]).all()


def test_grey_mode_gives_two_axes(tmp_path):
    corner().save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", size=16, mode="L").shape == (16, 16)


def broken_files(folder):
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8)).save(file, "JPEG")
    contents = {
        "cut.jpg": file.getvalue()[:800],
        "empty.png": b"",
        "text.jpg": b"hello",
        "head.png": b"\x89PNG\r\n\x1a\n" + b"\xff" * 40,
        "script.bmp": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "tags.tiff": b"II*\x00\x08\x00\x00\x00\xff\xff" + b"\xaa" * 50,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        yield folder / name


def test_broken_files_are_named_with_the_reason(tmp_path):
    for path in broken_files(tmp_path):
        with pytest.raises(UnreadableImageError, match=f"cannot read {path} as an image: .+"):
            read_image(path, 32)
    with pytest.raises(OSError, match=r"missing\.png as an image: No such file"):
        read_image(tmp_path / "missing.png")


def test_a_decompression_bomb_is_unreadable_not_fatal(tmp_path, monkeypatch):
    corner().save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UnreadableImageError, match=r"it has more than .* pixels\. Scale"):
        read_image(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)  # Pillow warns from here to the double
    assert read_image(tmp_path / "bomb.png").shape == (40, 60, 3)


@pytest.mark.parametrize("size", [0, -3, (4, 0), (2.5, 2), "64x"])
def test_a_wrong_size_is_named(tmp_path, size):
    corner().save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="size must be"):
        read_image(tmp_path / "a.png", size)


def test_a_wrong_mode_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"mode must be .* got 'CMYK'"):
        read_image(tmp_path / "a.png", mode="CMYK")


def test_images_are_listed_by_name_in_all_depths(tmp_path):
    names = ["b.JPG", "a.png", "deep/er/c.webp", "a/z.tif", "a.b/y.gif"]
    others = [".hidden.png", ".cache/d.png", "deep/.e.jpg", "notes.txt", "Thumbs.db", "noext"]
    for name in names + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "deep" / "loop").symlink_to(tmp_path, target_is_directory=True)
    found = [path.relative_to(tmp_path).as_posix() for path in list_images(tmp_path)]
    assert found == ["a/z.tif", "a.b/y.gif", "a.png", "b.JPG", "deep/er/c.webp"]


def test_links_to_one_another_are_followed_once(tmp_path):
    folders = [tmp_path / f"{i:02}" for i in range(12)]
    for here, there in pairwise(folders):
        here.mkdir()
        for name in ("left", "right"):
            (here / name).symlink_to(there, target_is_directory=True)
    folders[-1].mkdir()
    (folders[-1] / "a.png").touch()
    assert len(list_images(folders[0])) == 1


def test_common_form_keeps_one_size_and_else_takes_64(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in paths:
        corner(48, 32).save(path)
    assert common_form(paths) == ((32, 48), "RGB")
    corner(48, 33).save(paths[1])
    assert common_form(paths) == ((64, 64), "RGB")
    corner(4000, 3000).save(paths[0])
    assert common_form(paths[:1]) == ((64, 64), "RGB")


def test_common_form_is_grey_only_if_all_are(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "b.png", tmp_path / "c.png"]
    corner().convert("L").save(paths[0])
    corner().convert("1").save(paths[1])
    Image.fromarray(np.zeros((40, 60), np.uint16)).save(paths[2])
    assert common_form(paths) == ((40, 60), "L")
    corner().save(paths[2])
    assert common_form(paths) == ((40, 60), "RGB")


def test_common_form_passes_over_what_is_no_image(tmp_path):
    corner(20, 20).save(tmp_path / "a.png")
    assert common_form([*broken_files(tmp_path), tmp_path / "a.png"])[0] in ((20, 20), (64, 64))
    (tmp_path / "text.jpg").write_bytes(b"hello")
    assert common_form([tmp_path / "text.jpg", tmp_path / "a.png"]) == ((20, 20), "RGB")


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((8, 8), (96, 96)),
        ((300, 200, 3), (64, 96)),
        ((32, 32, 1), (96, 96)),
        ((60, 40, 4), (40, 60)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_of_all_kinds_become_small(shape, size, dtype):
    pixels = np.full(shape, 200 if dtype == np.uint8 else 200 / 255, dtype)
    image = Image.open(io.BytesIO(b64decode(thumbnail(pixels))))
    assert image.size == size
    assert max(image.size) <= THUMBNAIL
    assert abs(int(np.asarray(image).mean()) - 200) <= 2


def test_vectors_are_no_images():
    assert thumbnail(np.zeros(5)) == thumbnail(np.zeros((4, 4, 7))) == ""
