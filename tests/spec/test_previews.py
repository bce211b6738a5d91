"""Small pictures of arrays, and the tables of fields that show them."""

import base64
import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.spec.array_preview import preview


def _svg(picture):
    root = ElementTree.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return root


def _count(picture, name):
    return len(_svg(picture).findall(f".//{{http://www.w3.org/2000/svg}}{name}"))


def _numbers(picture, *names):
    return [float(number) for name in names for number in re.findall(rf' {name}="([^"]+)"', picture)]


def _pixels(picture):
    """Decode the PNG of an <img>: uint8[H, W, 4]."""
    data = base64.b64decode(re.search(r"base64,([^\"]+)", picture)[1])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        name, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(name + body)
        chunks[name] = body
        place += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 4 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 4)


def test_text_in_a_picture_is_escaped():
    assert preview(np.asarray("<x>")) == "&lt;x&gt;"


def test_a_point_cloud_becomes_a_scatter_of_at_most_300_points():
    rng = np.random.default_rng(0)
    assert _count(preview(rng.normal(size=(2048, 3)).astype(np.float32)), "circle") == 300
    assert _count(preview(rng.normal(size=(100, 2))), "circle") == 100
    assert _count(preview(rng.normal(size=(1024, 9)).astype(np.float16)), "circle") == 300


def test_a_scatter_stays_within_its_picture():
    cloud = np.random.default_rng(0).normal(size=(500, 3)) * [1e6, 1, 1e-6] + 1e7
    picture = preview(cloud)
    assert min(_numbers(picture, "cx", "cy")) > 0
    assert max(_numbers(picture, "cx", "cy")) < float(_svg(picture).get("height"))


def test_the_same_array_gives_the_same_picture():
    cloud = np.random.default_rng(0).normal(size=(2048, 3))
    assert preview(cloud) == preview(cloud.copy())


def test_points_that_are_not_finite_are_left_out():
    cloud = np.random.default_rng(0).normal(size=(200, 3))
    cloud[:50] = np.nan
    cloud[50:60, 1] = np.inf
    assert _count(preview(cloud), "circle") == 140
    assert preview(np.full((200, 3), np.nan)) == ""


def test_a_byte_image_keeps_its_colours():
    image = np.zeros((4, 6, 3), np.uint8)
    image[1, 2] = [10, 20, 30]
    pixels = _pixels(preview(image))
    assert pixels.shape == (4, 6, 4)
    assert pixels[1, 2].tolist() == [10, 20, 30, 255]


def test_a_large_image_becomes_a_small_one():
    assert _pixels(preview(np.ones((1000, 300, 4), np.uint8))).shape == (64, 64, 4)


def test_a_float_image_between_0_and_1_is_taken_as_brightness_and_others_are_stretched():
    assert _pixels(preview(np.full((3, 3), 0.2)))[0, 0].tolist() == [51, 51, 51, 255]
    stretched = _pixels(preview(np.array([[-7.0, 3.0], [3.0, 13.0]])))
    assert stretched[..., 0].tolist() == [[0, 128], [128, 255]]


def test_pixels_that_are_not_finite_are_transparent():
    image = np.ones((3, 3))
    image[1, 1] = np.nan
    alpha = _pixels(preview(image))[..., 3]
    assert alpha[1, 1] == 0
    assert alpha.sum() == 8 * 255


def test_a_mask_becomes_black_and_white():
    assert _pixels(preview(np.eye(3, dtype=bool)))[..., 0].tolist() == (255 * np.eye(3, dtype=int)).tolist()


def test_a_curve_breaks_where_values_are_not_finite():
    values = np.sin(np.arange(100.0))
    assert _count(preview(values), "polyline") == 1
    values[40:50] = np.nan
    assert _count(preview(values), "polyline") == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(np.int64(3), "3"), (np.float32(0.5), "0.5"), (np.asarray([True]), "True"), (np.asarray("wall"), "wall"),
     (np.asarray(1 + 2j), "(1+2j)"), (np.asarray("x" * 999), "x" * 59 + "…")],
)  # fmt: skip
def test_a_single_value_is_shown_as_text(value, text):
    assert preview(np.asarray(value)) == text


@pytest.mark.parametrize(
    "array",
    [np.zeros(0), np.zeros((0, 3)), np.zeros((5, 0)), np.zeros((0, 0, 3)), np.zeros((8, 8, 8)), np.zeros((4, 4, 2)),
     np.zeros((2, 2, 2, 3)), np.ones(9) * 1j, np.asarray(["a", "b"]), np.asarray(["a", "b"], object),
     np.zeros(3, "datetime64[s]"), np.zeros(3, [("x", "f4")]), np.full(9, np.nan), np.zeros((1, 500))],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)  # fmt: skip
def test_what_has_no_picture_gives_nothing(array):
    assert preview(array) == ""


@pytest.mark.parametrize("dtype", ["float16", ">f4", "float64", "int8", "uint64", ">i2", "bool"])
def test_no_values_break_a_picture(dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        least, most = False, True
    else:
        info = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        least, most = info.min, info.max
    for shape in [(40,), (40, 3), (9, 9), (9, 9, 1), (9, 9, 3)]:
        both = np.full(shape, least, dtype)
        both[::2] = most
        for array in [*(np.full(shape, value, dtype) for value in (0, 1, least, most)), both]:
            picture = preview(array)
            assert picture
            assert "nan" not in picture
            assert "inf" not in picture


@pytest.mark.timeout(120)  # it takes milliseconds, and to read every value many minutes
@pytest.mark.parametrize("shape", [(10**12,), (10**11, 3), (10**6, 10**6), (10**6, 10**6, 3)])
def test_an_array_larger_than_memory_costs_no_more_than_a_small_one(shape):
    assert preview(np.broadcast_to(np.float32(0.5), shape))


class Clouds(kf.SceneSequence):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"points": np.random.default_rng(index).normal(size=(64, 3)), "name": f"<scene {index}>"}, index


def test_a_sequence_shows_its_first_scene_with_pictures():
    shown = Clouds()._repr_html_()
    for text in ("Clouds", "0.points", "[64, 3]", "float64", "<svg", "&lt;scene 0&gt;"):
        assert text in shown
    assert "<scene" not in shown


def test_a_feed_shows_the_fields_of_a_batch():
    with kf.Feed(Clouds(), 2, workers=0) as feed:
        shown = feed._repr_html_()
    for text in ("Clouds", "0.points", "64, 3", "float64"):
        assert text in shown


def test_a_sequence_that_cannot_be_read_shows_the_error():
    class Broken(Clouds):
        def __getitem__(self, index):
            raise OSError("no <disk>")

    assert "OSError: no &lt;disk&gt;" in Broken()._repr_html_()
