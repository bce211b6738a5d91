"""`kf.show` of scenes and batches: the detected kinds of fields, and the content of the picture."""

import sys

import numpy as np
import pytest
import scenes

import kerasfeed as kf
from kerasfeed.explore.show.panels import draw_text
from kerasfeed.explore.show.parts import Panel, ScenePart, fields_of, parts_of

pytest.importorskip("matplotlib", reason="needs the extra `plot`")

RNG = np.random.default_rng(0)
CLOUD = RNG.normal(size=(100, 3)).astype(np.float32)
IMAGE = RNG.random((24, 32, 3))
SMOOTH = np.sin(np.arange(400) / 20)
VOLUME = RNG.normal(size=(9, 10, 11))
LABELS = RNG.integers(0, 3, (24, 32))

KINDS = [
    (IMAGE, "image"),
    ((255 * IMAGE).astype(np.uint8), "image"),
    (RNG.random((24, 32, 4)), "image"),
    (RNG.random((24, 32, 1)), "image"),
    (RNG.random((3, 24, 32)), "image"),
    (RNG.integers(0, 256, (28, 28), np.uint8), "image"),
    (RNG.normal(size=(64, 40)), "image"),
    (LABELS, "mask"),
    (LABELS > 0, "mask"),
    (CLOUD, "points"),
    (RNG.normal(size=(100, 6)), "points"),
    (np.stack([SMOOTH, SMOOTH[::-1]], 1), "signal"),
    (np.stack([SMOOTH, SMOOTH[::-1]]), "signal"),
    (SMOOTH, "signal"),
    (np.arange(100), "signal"),
    (np.abs(SMOOTH), "spectrum"),
    (SMOOTH + 1j, "spectrum"),
    (VOLUME, "volume"),
    (VOLUME[..., None], "volume"),
    (RNG.random((5, 16, 16, 3)), "volume"),
    (np.arange(5.0), "table"),
    (RNG.normal(size=(5, 4)), "table"),
    (3, "label"),
    (True, "label"),
    (0.5, "number"),
    ("door", "word"),
    ("a long text that no line over a picture can hold", "text"),
    (np.array(["a", "b"]), "text"),
]


@pytest.mark.parametrize(("value", "kind"), KINDS, ids=[f"{number}-{kind}" for number, (_, kind) in enumerate(KINDS)])
def test_the_kind_of_a_field_is_detected_from_shape_dtype_and_values(value, kind):
    assert [part.kind for part in parts_of(fields_of((value,)), {})] == [kind]
    figure = kf.show([(value,)] * 2)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert kf.show([(value,)] * 2, 1)._repr_png_().startswith(b"\x89PNG")


def test_kinds_given_by_the_user_override_detected_kinds():
    assert parts_of(fields_of({"x": np.stack([SMOOTH] * 3, 1)}), {"x": "signal"}) == (ScenePart("x", "signal"),)
    assert parts_of(fields_of((CLOUD, IMAGE)), {"1": "hidden"}) == (ScenePart("0", "points"),)


@pytest.mark.parametrize(
    ("scene", "part"),
    [
        ((IMAGE, LABELS), ScenePart("0", "image", "1")),
        ((IMAGE, LABELS[..., None]), ScenePart("0", "image", "1")),
        ((IMAGE, LABELS > 1), ScenePart("0", "image", "1")),
        ((IMAGE, (LABELS > 1).astype(np.float32)[..., None]), ScenePart("0", "image", "1")),
        ((IMAGE, np.eye(3)[LABELS][..., [0, 1, 2]] * 1.0), None),
        ((IMAGE, np.eye(5)[LABELS]), ScenePart("0", "image", "1")),
        ((VOLUME, np.zeros(VOLUME.shape, np.int8)), ScenePart("0", "volume", "1")),
        ((CLOUD, np.zeros(100, np.int64)), ScenePart("0", "points", "1")),
        ({"mask": LABELS, "image": IMAGE}, ScenePart("image", "image", "mask")),
        ((CLOUD, np.zeros(100, np.bool_)), ScenePart("0", "points", "1")),
        (((CLOUD, np.arange(100) < 60),), ScenePart("0.0", "points", "", "0.1")),
        ({"x": SMOOTH, "x_mask": np.arange(400) < 60}, ScenePart("x", "signal", "", "x_mask")),
    ],
)
def test_labels_and_masks_are_drawn_over_their_field(scene, part):
    found = parts_of(fields_of(scene), {})
    assert found[0] == part if part is not None else len(found) >= 1
    assert part is None or len(found) == 1
    assert kf.show([scene] * 2)._repr_png_().startswith(b"\x89PNG")


def words(figure):
    figure.canvas.draw()
    inside = [text for axes in figure.axes for text in axes.texts]
    tables = [table for axes in figure.axes for table in axes.tables]
    inside += [cell.get_text() for table in tables for cell in table.get_celld().values()]
    return [text.get_text() for text in [*figure.texts, *inside] if text.get_text()]


class Clouds(kf.SceneSequence):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 99:
            raise OSError("cloud 99 is truncated")
        return self.rng.normal(size=(5_000, 3)), index % 2


def test_a_grid_names_scenes_labels_and_omitted_points():
    found = words(kf.show(Clouds(), names=["chair", "door"]))
    assert found[0] == "Clouds, 12 of 100 scenes"
    assert "scene 0 · chair" in found
    assert "scene 9 · door" in found
    assert "2,500 of 5,000 points" in found
    assert any("cloud 99 is\ntruncated" in text for text in found)


@pytest.mark.parametrize("index", [[3, 16], slice(3, 17, 13), np.array([3, 16])])
def test_a_list_of_indices_draws_these_scenes(index):
    assert words(kf.show(Clouds(), index)) == words(kf.show(Clouds(), scenes=[3, 16]))


def test_a_single_scene_is_drawn_large_and_its_error_is_raised():
    figure = kf.show(Clouds(), -2)
    assert words(figure)[0] == "Clouds, scene 98 of 100"
    assert len(figure.axes[0].collections[0].get_offsets()) == 5_000
    assert figure.get_figwidth() > 5
    with pytest.raises(OSError, match="cloud 99 is truncated"):
        kf.show(Clouds(), 99)


def test_a_grid_does_not_measure_its_axes(monkeypatch):
    figure, measured = kf.show([(IMAGE, SMOOTH)] * 6), []
    monkeypatch.setattr(type(figure.axes[0]), "get_tightbbox", lambda axes, *_, **__: measured.append(axes))
    figure._repr_png_()
    assert len(figure.axes) == 12
    assert measured == []


def test_the_same_seed_and_epoch_draw_the_same_random_numbers_as_a_feed():
    with kf.Feed(Clouds()[:99], 4, seed=3, workers=0) as feed:
        fed = kf.show(feed, 5, epoch=2).axes[0].collections[0].get_offsets()
    assert np.array_equal(kf.show(Clouds(), 5, seed=3, epoch=2).axes[0].collections[0].get_offsets(), fed)


def test_points_are_coloured_by_their_labels_with_a_legend_and_equal_aspect():
    figure = kf.show([(CLOUD, np.arange(100) % 3)] * 3, names={0: "floor", 1: "wall", 2: "door"})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["floor", "wall", "door"]
    assert len(np.unique(figure.axes[0].collections[0].get_facecolor(), axis=0)) == 3
    assert figure.axes[0].get_aspect() == 1


class Sized(Clouds):
    def __getitem__(self, index):
        return self.rng.normal(size=(50 + 10 * (index % 4), 3)), index


def test_show_draws_a_batch_as_the_model_receives_it():
    with kf.Feed(Sized(), 8, shuffle=True, seed=1, collate=kf.Pad(mask=True), pad_remainder=True, workers=0) as feed:
        figure = kf.show(feed, step=12, epoch=1)
        found = words(figure)
        assert found[0] == "Sized, batch 12 of 13 in epoch 1, 8 scenes"
        indices = feed.plan.indices(1, 12)
        assert any(text.startswith(f"scene {indices[0]} · [1] {indices[0]} · [2] 1") for text in found)
        assert any(text.endswith("[2] 0") for text in found)  # padding rows
        assert any(text.endswith(" padded") for text in found)
        count = len(figure.axes[0].collections[0].get_offsets())
        assert count == 50 + 10 * (int(indices[0]) % 4)
        assert feed.stats().batches == 0


@pytest.mark.parametrize("collate", ["ragged", lambda rows: {"sum": np.sum([row[1] for row in rows])}])
def test_batches_of_any_collation_are_drawn(collate):
    with kf.Feed(Sized(), 8, seed=1, collate=collate, workers=0) as feed:
        assert words(kf.show(feed))[0].startswith("Sized, batch 0 of 13")


def test_a_stream_is_drawn_from_a_copy():
    def clouds():
        yield from ((CLOUD + number, number) for number in range(8))

    with kf.StreamFeed(clouds, 4, workers=0) as feed:
        assert words(kf.show(feed, step=1))[0] == "StreamFeed, batch 1, 4 scenes"
        with pytest.raises(TypeError, match=r"a stream have no index.* as step"):
            kf.show(feed, 0)
        with pytest.raises(IndexError, match="the stream ended earlier"):
            kf.show(feed, step=2)
        assert [labels.tolist() for _, labels in feed] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_scenes_of_numbers_and_short_texts_are_drawn_as_a_table():
    found = words(kf.show(kf.Zip(x=np.arange(3.0), name=["a", "b", "$c$"])))
    assert {"scene 0", "x", "name", "2", r"\$c\$"} <= set(found)


def test_show_reads_only_the_beginning_of_a_long_text():
    class Text(str):
        def __getitem__(self, place):
            assert place.stop <= 2_000
            return str.__getitem__(self, place)

        def __iter__(self):
            raise AssertionError("read to its end")

    scene = {"notes": Text("word " * 10_000)}
    panel = Panel(scene, ScenePart("notes", "text"), large=True)
    axes = kf.show([1.0]).add_subplot()
    assert draw_text(axes, panel) == "2000 of 50,000 characters"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_values_do_not_prevent_drawing(value):
    bad = [np.full(shape, value) for shape in ((30, 30, 3), (50, 3), (9, 9, 9), (100,))]
    figure = kf.show([{"spectrum": bad[3], **dict(zip("abcd", bad, strict=True))}] * 2)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert not any("Warning" in text or "Error" in text for text in words(figure))


def test_scenes_of_another_structure_show_an_error_in_their_cell():
    found = words(kf.show([(CLOUD, 1), (np.zeros(2), 1), {"x": 3}]))
    assert any("Error" in text for text in found)
    assert "no field '0'" in found


def test_scenes_that_exit_or_are_empty_show_an_error_in_their_cell():
    def scene(index):
        return sys.exit(3) if index == 1 else None if index == 2 else CLOUD

    found = " ".join(words(kf.show(kf.Map([0, 1, 2], scene)))).replace("\n", " ")
    assert "SystemExit: 3" in found
    assert "the scene holds no field" in found


def test_images_of_extension_dtypes_are_drawn():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    picture = kf.show([np.linspace(0, 1, 300).reshape(10, 10, 3).astype(ml_dtypes.bfloat16)])
    assert [len(axes.images) for axes in picture.axes] == [1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kinds": {"0": "picture"}}, ValueError, "must be one of 'image', 'mask', "),
        ({"kinds": {"7": "image"}}, ValueError, "kinds names the field '7', which scenes do not have"),
        ({"kinds": "image"}, TypeError, "kinds must be a dict from field to kind"),
        ({"names": 5}, TypeError, "names must be a list of the classes' names"),
        ({"index": 37}, IndexError, "index 37 is out of range: the sequence has 37 scenes"),
        ({"scenes": 0}, ValueError, "scenes must be"),
        ({"scenes": []}, ValueError, "scenes selects no scene"),
        ({"step": 3}, TypeError, "kf.show does not use step=3 to draw a sequence"),
        ({"batch_size": 3}, TypeError, "kf.show does not use batch_size=3 to draw scenes"),
    ],
)
def test_errors_for_wrong_arguments_name_a_remedy(arguments, error, message):
    with pytest.raises(error, match=message):
        kf.show(scenes.Clouds(), **arguments)


def test_the_error_of_a_scene_appears_once_in_a_table():
    def scene(index):
        if index == 1:
            raise OSError("a file of the archive is truncated, and has no end " * 9)
        return {"a": index, "b": index / 3, "c": "word"}

    figure = kf.show(kf.Map(range(3), scene))
    assert [text.startswith("OSError: a file") for text in words(figure)].count(True) == 1
    assert figure.get_figwidth() < 8


def test_fields_that_cannot_be_drawn_are_shown_by_dtype_and_shape():
    scene = {"many axes": np.zeros((2,) * 6), "records": np.zeros(3, [("x", "f4")]), "y": 3}
    assert {"float64[2, 2, 2, 2, 2, 2]", "void32[3]", "3"} <= set(words(kf.show([scene] * 2)))
    found = words(kf.show([{**scene, "image": IMAGE}], 0))
    assert "many axes float64[2, 2, 2, 2, 2, 2] · records void32[3] · y 3" in found


def test_the_largest_scene_determines_the_kinds_and_sizes_of_fields():
    figure = kf.show([np.zeros((count, 3), np.float32) for count in (0, 30, 60)])
    assert [len(axes.collections) for axes in figure.axes] == [0, 1, 1]
    figure = kf.show([np.zeros((count, 3)) for count in (1, 5)])
    height = figure.axes[1].get_window_extent().height
    assert kf.show([np.zeros((1, 3))] * 2).axes[1].get_window_extent().height < height / 4


@pytest.mark.parametrize("shape", [(4_000, 20), (20, 4_000)])
def test_an_image_with_sides_of_very_different_lengths_is_stretched(shape):
    figure = kf.show([RNG.random(shape)] * 2)
    assert "1 of 13 pixels, stretched" in words(figure)
    (image,) = figure.axes[0].images
    assert sorted(image.get_array().shape) == [20, 308]
    assert min(image.get_window_extent().size) > 40


def test_labels_and_padding_of_a_signal_are_drawn_as_one_background_image():
    scene = {"ecg": RNG.random((500, 2)), "part": RNG.integers(0, 5, 500)}
    axes = kf.show([scene], 0).axes[0]
    assert [image.get_array().shape for image in axes.images] == [(1, 500, 4)]
    assert len(axes.patches) == 0
    bottom, top = axes.get_ylim()
    assert bottom < scene["ecg"].min() < scene["ecg"].max() < top
    axes = kf.show([{"x": SMOOTH, "x_mask": np.arange(400) < 60}], 0).axes[0]
    assert axes.images[0].get_array()[0, :, 3].astype(bool).tolist() == [False] * 60 + [True] * 340


@pytest.mark.parametrize("large", [False, True])
def test_labels_and_masks_per_channel_do_not_colour_the_time_axis(large):
    ecg = np.cumsum(RNG.normal(size=(12, 1_000)), 1)
    shown = [{"ecg": ecg, "diagnoses": np.arange(12) % 2}] * 2
    for scenes_ in (shown, [{"ecg": ecg, "ecg_mask": np.arange(12) < 9}] * 2):
        figure = kf.show(scenes_, 0) if large else kf.show(scenes_)
        assert "8 of 12 channels" in " ".join(words(figure))
        curves = next(axes for axes in figure.axes if axes.lines)
        assert (len(curves.lines), len(curves.images)) == (8, 0)
    parts = parts_of(fields_of(shown[0]), {})
    assert [(part.path, part.labels) for part in parts] == [("diagnoses", ""), ("ecg", "")]


def test_a_signal_is_drawn_even_if_its_labels_do_not_fit():
    moments = np.arange(40)
    whole = {"signal": np.ones((40, 2)), "label": moments // 20}
    others = [{**whole, "label": moments[:20] // 5}, {"signal": np.ones((1, 2)), "label": np.zeros(1, np.int64)}]
    figure = kf.show([whole, *others])
    assert [(len(axes.lines), len(axes.images)) for axes in figure.axes[:3]] == [(2, 1), (2, 0), (1, 0)]
    assert not any("Error" in text for text in words(figure))


def test_empty_fields_are_labelled_as_empty():
    kinds = {"signal": "signal", "spectrum": "spectrum", "image": "image"}
    full = {"signal": np.ones((40, 2)), "spectrum": np.ones(40), "image": IMAGE, "label": np.arange(40) // 20}
    figure = kf.show([{name: value[:0] for name, value in full.items()}, full], kinds=kinds)
    found = words(figure)
    assert {f"{name} · empty" for name in kinds} <= set(found)
    assert not any("Error" in text for text in found)


def test_the_title_over_scenes_is_not_cut_off_if_some_fail():
    def scene(index):
        if index:
            raise OSError("truncated")
        return np.float32(index)

    name = "ScenesOfPointCloudsInTheWildWhichSomebodyMadeForAThesisOnThem"
    figure = kf.show(type(name, (scenes.Clouds,), {"__getitem__": lambda self, index: scene(index)})())
    figure.canvas.draw()
    assert figure.texts[0].get_text().startswith(name)
    assert figure.texts[0].get_window_extent().x1 < figure.bbox.width


def test_long_numbers_of_a_table_are_shortened():
    assert words(kf.show([np.array([2**64 - 1, 7], np.uint64)], 0))[1:] == ["1.84e+19", "7"]


def test_show_does_not_change_pyplot():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    kf.show(scenes.Clouds())
    assert plt.get_fignums() == before


@pytest.mark.parametrize("data", [scenes.Clouds(), kf.Shuffled()], ids=["scenes", "an order"])
def test_without_matplotlib_the_error_names_the_extra(monkeypatch, data):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "kerasfeed.explore.show.scene_picture", raising=False)
    with pytest.raises(ImportError, match="matplotlib, which is not installed: pip install matplotlib"):
        kf.show(data)


def test_describe_needs_no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert kf.describe(scenes.Clouds(), workers=0, progress=False).scenes == 37
