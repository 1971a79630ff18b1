"""Decoding: the same pixels whatever the order and the caching; what is wrong is told together."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenprune.cache_command import CacheFlags, listed
from evenprune.data import image_cache, image_decoding, image_pool, image_store
from evenprune.data.image_cache import decode, decode_encoded
from evenprune.tally import InputProblems

PIL = pytest.importorskip("PIL", reason="needs Pillow: pip install 'evenprune[images]'")
from PIL import Image, ImageOps  # noqa: E402


def picture(seed: int = 0, width: int = 12, height: int = 12) -> Image.Image:
    """Soft shapes, as photographs have them."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def files(folder: Path, count: int, **options) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03d}.jpg" for i in range(count)]
    for i, path in enumerate(paths):
        path.write_bytes(encoded(picture(i, **options), "JPEG", quality=90))
    return paths


def hwc(pixels: np.ndarray) -> np.ndarray:
    return pixels.transpose(1, 2, 0)


# --- one image ---


def test_pixels_are_those_of_pillow():
    image = picture(1, 9, 7)
    assert np.array_equal(hwc(image_decoding.pixels(encoded(image), None, Image)), np.asarray(image))
    small = np.asarray(image.resize((5, 5), Image.Resampling.BICUBIC))
    assert np.array_equal(hwc(image_decoding.pixels(encoded(image), 5, Image)), small)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_honoured(form, orientation):
    exif = Image.Exif()
    exif[image_decoding.ORIENTATION] = orientation
    data = encoded(picture(2, 9, 7), form, exif=exif)
    seen = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert seen.shape == ((9, 7, 3) if orientation > 4 else (7, 9, 3))
    assert np.array_equal(hwc(image_decoding.pixels(data, None, Image)), seen)
    resized = image_decoding.pixels(data, 6, Image)
    expected = np.asarray(Image.fromarray(seen).resize((6, 6), Image.Resampling.BICUBIC))
    assert np.abs(hwc(resized).astype(int) - expected).max() <= 2  # the two passes round in another order


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "LA", "CMYK", "YCbCr"])
def test_other_colour_modes_become_rgb(mode):
    form = {"CMYK": "JPEG", "YCbCr": "JPEG"}.get(mode, "PNG")
    image = picture(3, 8, 8).convert(mode)
    data = encoded(image, form)
    pixels = image_decoding.pixels(data, None, Image)
    assert (pixels.shape, pixels.dtype) == ((3, 8, 8), np.uint8)
    assert np.array_equal(hwc(pixels), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_a_palette_with_transparency_and_sixteen_bits(recwarn):
    image = picture(4, 8, 8).quantize(16)
    data = encoded(image, transparency=bytes(range(16)))
    assert image_decoding.pixels(data, None, Image).shape == (3, 8, 8)
    grey = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    pixels = image_decoding.pixels(encoded(Image.fromarray(grey)), None, Image)
    assert np.array_equal(pixels[1], grey >> 8)
    portable = b"P5 8 8 65535 " + grey.astype(">u2").tobytes()
    assert np.array_equal(image_decoding.pixels(portable, None, Image)[1], grey >> 8)
    with pytest.raises(image_decoding.Unreadable, match="32-bit numbers"):
        image_decoding.pixels(encoded(Image.fromarray(grey.astype(np.float32)), "TIFF"), None, Image)
    assert not recwarn.list


def test_a_large_jpeg_is_reduced_while_it_is_decoded():
    image = picture(5, 640, 480)
    data = encoded(image, "JPEG", quality=95)
    exact = np.asarray(Image.open(io.BytesIO(data)).resize((40, 40), Image.Resampling.BICUBIC)).astype(int)
    pixels = hwc(image_decoding.pixels(data, 40, Image)).astype(int)
    assert np.abs(pixels - exact).max() <= 6
    assert np.abs(pixels - exact).mean() < 1


# --- order and caching ---


@pytest.fixture(scope="module")
def some(tmp_path_factory) -> list[Path]:
    return files(tmp_path_factory.mktemp("images"), 70)


def test_order_is_kept_and_memory_equals_disk(some, tmp_path):
    plain = decode(some, size=8)
    assert plain.images.shape == (70, 3, 8, 8)
    assert plain.kept.tolist() == list(range(70))
    assert plain.skipped == []
    first, again = (decode(some, size=8, cache=tmp_path / "c") for _ in range(2))
    for cached in (first, again):
        assert isinstance(cached.images, np.memmap)
        assert not cached.images.flags.writeable
        assert np.array_equal(cached.images, plain.images)
    for i in (0, 31, 32, 69):
        assert np.array_equal(plain.images[i], image_decoding.pixels(some[i].read_bytes(), 8, Image))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.integers(0, 69), max_size=40), cached=st.booleans(), size=st.sampled_from([None, 5])
)
def test_the_pixels_of_a_file_depend_on_nothing_else(some, tmp_path, places, cached, size):
    paths = [some[place] for place in places]
    decoded = decode(paths, size=size, cache=tmp_path if cached else None)
    assert len(decoded.images) == len(paths)
    for path, pixels in zip(paths, decoded.images, strict=True):
        assert np.array_equal(pixels, image_decoding.pixels(path.read_bytes(), size, Image))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged=st.sets(st.integers(0, 39)), cached=st.booleans())
def test_kept_and_skipped_are_all(some, tmp_path, damaged, cached):
    data = [path.read_bytes() for path in some[:40]]
    names = [f"{i}" for i in range(40)]

    def read(place):
        return data[place][:60] if place in damaged else data[place]

    def decoded(**options):
        cache = tmp_path / "c" if cached else None
        return decode_encoded(read, names, keys=names, size=None, cache=cache, **options)

    if not damaged:
        assert decoded().kept.tolist() == list(range(40))
        return
    with pytest.raises(InputProblems, match=f"{len(damaged)} of 40 images cannot be read"):
        decoded()
    if len(damaged) == 40:
        with pytest.raises(InputProblems, match="40 of 40"):
            decoded(corrupt="skip")
        return
    for _ in range(2):
        found = decoded(corrupt="skip")
        assert sorted([*found.kept.tolist(), *(int(name) for name, _ in found.skipped)]) == list(range(40))
        assert {int(name) for name, _ in found.skipped} == damaged
        assert len(found.images) == len(found.kept)
        for place, pixels in zip(found.kept, found.images, strict=True):
            assert np.array_equal(pixels, image_decoding.pixels(data[place], None, Image))
    with pytest.raises(InputProblems, match="cannot be read"):
        decoded()  # what was cached with some left out is still refused where that is not wanted


def cached_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("images-*.npy")}


def test_any_change_of_the_files_makes_a_new_cache(tmp_path):
    paths, cache = files(tmp_path / "a", 5), tmp_path / "c"
    before = decode(paths, size=None, cache=cache)
    known = cached_files(cache)
    stamp = paths[2].stat()
    data = bytearray(paths[2].read_bytes())
    other = encoded(picture(99), "JPEG", quality=90)
    data = bytes(other[: len(data)].ljust(len(data), b"\0"))  # other content, the same length and date
    paths[2].write_bytes(data)
    os.utime(paths[2], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    after = decode(paths, size=None, cache=cache, corrupt="skip")
    assert len(cached_files(cache) - known) == 1
    assert len(after.skipped) or not np.array_equal(after.images[2], before.images[2])
    for change in (paths[:4], [*paths, paths[0]]):
        known = cached_files(cache)
        decode(change, size=None, cache=cache, corrupt="skip")
        assert len(cached_files(cache) - known) == 1
    known = cached_files(cache)
    decode(paths, size=6, cache=cache, corrupt="skip")
    paths[1].rename(paths[1].with_name("x.jpg"))
    decode([paths[0], paths[1].with_name("x.jpg")], size=6, cache=cache)
    assert len(cached_files(cache) - known) == 2


def test_dates_and_places_do_not_matter(tmp_path, monkeypatch):
    paths, cache = files(tmp_path / "a" / "b", 4), tmp_path / "c"
    decode(paths, size=None, cache=cache)
    for path in paths:
        os.utime(path, (1, 1))
    (tmp_path / "a" / "b").rename(tmp_path / "d")
    monkeypatch.setattr(image_decoding, "pixels", None)  # nothing is decoded any more
    moved = decode([tmp_path / "d" / path.name for path in paths], size=None, cache=cache)
    monkeypatch.chdir(tmp_path)
    relative = decode([Path("d") / path.name for path in paths], size=None, cache=Path("c"))
    assert np.array_equal(moved.images, relative.images)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations(range(12)), damaged=st.sets(st.integers(0, 11), max_size=9), copied=st.booleans()
)
def test_another_order_is_the_same_cache(some, tmp_path, order, damaged, copied: bool):
    """The slow twin decodes in memory. Caches too large to be copied are made again in the other order."""
    cache = tmp_path / f"{sorted(damaged)}{copied}"
    data = [b"junk" if i in damaged else some[i % 11].read_bytes() for i in range(12)]  # two are the same
    names = [f"{i}" for i in range(12)]

    def decoded(places, **options):
        own = [names[i] for i in places]
        return decode_encoded(
            lambda place: data[places[place]], own, keys=own, size=7, corrupt="skip", **options
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_store, "MOST_COPIED", 10**9 if copied else 0)
        decoded(range(12), cache=cache)
        plain, found = decoded(order), decoded(order, cache=cache)
        if copied:
            assert len(cached_files(cache)) == 1
        else:
            assert isinstance(found.images, np.memmap)
    assert np.array_equal(found.images, plain.images)
    assert found.kept.tolist() == plain.kept.tolist()
    assert found.skipped == plain.skipped


def test_nothing_is_decoded_again_in_another_order(tmp_path, monkeypatch):
    paths, cache = files(tmp_path / "a", 9), tmp_path / "c"
    first = decode(paths, size=None, cache=cache).images
    monkeypatch.setattr(image_decoding, "pixels", None)
    assert np.array_equal(decode(paths[::-1], size=None, cache=cache).images, first[::-1])


# --- what is kept ---


def test_caches_are_listed_and_removed(tmp_path):
    cache = tmp_path / "c"
    assert "nothing is kept" in listed(CacheFlags(folder=str(cache)))
    decode(files(tmp_path / "a", 3), size=5, cache=cache)
    decode(files(tmp_path / "b", 4), size=6, cache=cache)
    (old,) = (path for path in cache.glob("*.json") if json.loads(path.read_text())["given"] == 3)
    os.utime(old, (time.time() - 9 * 86400,) * 2)
    os.utime(old.with_suffix(".npy"), (time.time() - 9 * 86400,) * 2)
    (cache / f"images-{'0' * 32}.json").write_text('{"version": 1}')
    (cache / f"images-{'1' * 32}-{'2' * 8}.npy").write_text("half a pair")
    (cache / "images-of-mine.json").write_text("{}")
    said = listed(CacheFlags(folder=str(cache)))
    assert f"used    9 d ago  3 images of 5×5 from {tmp_path / 'a'}" in said
    assert f"used today       4 images of 6×6 from {tmp_path / 'b'}" in said
    assert "of another version of evenprune" in said
    assert "damaged, no longer used" in said
    assert "4 caches, " in said
    assert "--remove" in said
    assert "1 cache removed, " in listed(CacheFlags(folder=str(cache), unused=8, remove=True))
    assert not old.exists()
    assert "3 caches removed, " in listed(CacheFlags(folder=str(cache), remove=True))
    assert [path.name for path in cache.iterdir()] == ["images-of-mine.json"]


def test_a_cache_that_is_used_is_not_an_old_one(tmp_path):
    paths, cache = files(tmp_path / "a", 3), tmp_path / "c"
    decode(paths, size=5, cache=cache)
    for path in cache.iterdir():
        os.utime(path, (time.time() - 9 * 86400,) * 2)
    decode(paths, size=5, cache=cache)
    assert "0 caches" in listed(CacheFlags(folder=str(cache), unused=1))


def test_a_damaged_cache_is_made_again(tmp_path):
    paths, cache = files(tmp_path / "a", 5), tmp_path / "c"
    whole = np.array(decode(paths, size=None, cache=cache).images)
    (file,) = cache.glob("*.npy")
    record = file.with_suffix(".json")
    good = record.read_bytes(), file.read_bytes()
    for place, content in (
        (file, good[1][:-1]), (file, good[1][:200]), (file, b""), (file, b"junk"), (record, b""),
        (record, b"[]"), (record, b'{"left out": {"0": "x"}}'), (record, b'{"left out": 3}'),
        (record, good[0].replace(b"[0, 1, 2, 3, 4]", b"[0, 1, 2, 3, 3]")),
        (record, good[0].replace(b"[0, 1, 2, 3, 4]", b"[0, 1, 2]")),
    ):  # fmt: skip
        place.write_bytes(content)
        assert np.array_equal(decode(paths, size=None, cache=cache).images, whole)
        assert (record.read_bytes(), file.read_bytes()) == good
    objects = io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    file.write_bytes(objects.getvalue())
    assert np.array_equal(decode(paths, size=None, cache=cache).images, whole)  # never unpickled


def test_a_process_that_is_killed_leaves_nothing_to_use(tmp_path):
    paths, cache = files(tmp_path / "a", 64), tmp_path / "c"
    program = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from evenprune.data import image_cache
        paths = sorted(Path({str(tmp_path / "a")!r}).iterdir())
        def slow(done, total):
            print(done, flush=True)
            time.sleep(60)
        image_cache.decode(paths, size=None, cache=Path({str(cache)!r}), progress=slow)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "32"
        process.send_signal(signal.SIGKILL)
    (left,) = cache.iterdir()
    assert left.name.endswith(".tmp")
    assert decode(paths, size=None, cache=cache).images.shape == (64, 3, 12, 12)
    assert left.exists()  # it might still be in use
    os.utime(left, (time.time() - 7200,) * 2)
    decode(paths[:3], size=None, cache=cache)
    assert not left.exists()


def test_an_interruption_leaves_nothing(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(files(tmp_path / "a", 40), size=None, cache=tmp_path / "c", progress=stop)
    assert list((tmp_path / "c").iterdir()) == []


def test_a_full_disk_stops_everything(tmp_path, monkeypatch):
    def full(file, shape):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(image_store, "_write_header", full)
    before = list(warnings.filters)
    with pytest.raises(OSError, match="No space left on device") as caught:
        decode(files(tmp_path / "a", 200), size=None, cache=tmp_path / "c")
    assert caught.value.errno == errno.ENOSPC
    assert not [thread for thread in threading.enumerate() if "evenprune" in thread.name]
    assert warnings.filters == before
    assert list((tmp_path / "c").iterdir()) == []


# --- what is wrong ---


def test_all_that_cannot_be_read_is_listed_together(tmp_path):
    paths = files(tmp_path, 20)
    paths[3].write_bytes(b"")
    paths[5].write_bytes(b"a text")
    paths[6].write_bytes(paths[6].read_bytes()[:100])
    paths[7].unlink()
    (tmp_path / "d").mkdir()
    paths[9] = tmp_path / "d"
    eps = tmp_path / "x.eps"
    eps.write_bytes(encoded(picture(), "EPS"))  # would start Ghostscript
    paths[11] = eps
    with pytest.raises(InputProblems) as caught:
        decode(paths, size=None)
    said = str(caught.value)
    for part in ("6 of 20 images cannot be read", "003.jpg' (empty file)", "(no image of a known format)",
                 "007.jpg' (No such file or directory)", "x.eps'", 'corrupt="skip"'):  # fmt: skip
        assert part in said
    skipped = decode(paths, size=None, corrupt="skip")
    assert skipped.kept.tolist() == [i for i in range(20) if i not in (3, 5, 6, 7, 9, 11)]
    assert [path for path, _ in skipped.skipped] == [paths[i] for i in (3, 5, 6, 7, 9, 11)]


def test_a_hundred_unreadable_files_are_named_and_the_rest_counted(tmp_path):
    paths = [tmp_path / f"{i:03d}.jpg" for i in range(103)]
    with pytest.raises(InputProblems) as caught:
        decode(paths, size=8)
    (said,) = caught.value.problems
    assert said.startswith("103 of 103 images cannot be read: ")
    assert "/099.jpg' (No such file or directory) … and 3 more. Repair" in said


def test_unequal_sizes_are_counted_and_nothing_is_cached(tmp_path):
    paths = files(tmp_path / "a", 6) + files(tmp_path / "b", 3, width=20) + files(tmp_path / "c", 1, height=5)
    paths[9].with_name("x.jpg").write_bytes(b"x")
    with pytest.raises(InputProblems) as caught:
        decode([*paths, paths[9].with_name("x.jpg")], size=None, cache=tmp_path / "cache")
    assert len(caught.value.problems) == 2
    said = caught.value.problems[1]
    assert "3 different sizes: 12×12 (6, such as" in said
    assert "20×12 (3, such as" in said
    assert "12×5 (1, such as" in said
    assert "image_size" in said
    assert list((tmp_path / "cache").iterdir()) == []
    assert decode(paths, size=10).images.shape == (10, 3, 10, 10)


@pytest.mark.parametrize("cached", [False, True])
def test_unequal_sizes_are_told_before_all_is_decoded(tmp_path, monkeypatch, cached):
    paths = files(tmp_path / "a", 50) + files(tmp_path / "b", 30, width=20)
    decoded, pixels = [], image_decoding.pixels
    monkeypatch.setattr(image_decoding, "pixels", lambda *given: decoded.append(0) or pixels(*given))
    with pytest.raises(InputProblems, match=r"2 different sizes: 12×12 \(50, .* 20×12 \(30, "):
        decode(paths, size=None, cache=tmp_path / "c" if cached else None)
    assert len(decoded) == 2


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_headers_refuse_no_images_that_are_of_one_size(form):
    exif = Image.Exif()
    exif[image_decoding.ORIENTATION] = 6
    turned, upright = encoded(picture(1, 9, 7), form, exif=exif), encoded(picture(2, 7, 9), form)
    damaged = encoded(picture(3, 40, 40), "PNG")[:-60]  # its header is sound, and of another size
    data = [turned, upright, damaged]
    decoded = decode_encoded(
        data.__getitem__, ["a", "b", "c"], keys=["a", "b", "c"], size=None, corrupt="skip"
    )
    assert decoded.images.shape == (2, 3, 9, 7)
    assert [name for name, _ in decoded.skipped] == ["c"]


@pytest.mark.parametrize("cached", [False, True])
def test_files_that_are_the_same_are_twins(tmp_path, cached):
    paths = files(tmp_path / "a", 5)
    paths[3].write_bytes(paths[1].read_bytes())
    for _ in range(2):
        assert decode(paths, size=6, cache=tmp_path / "c" if cached else None).twins == [[1, 3]]


def test_another_word_for_corrupt_is_refused(tmp_path):
    with pytest.raises(InputProblems, match="corrupt is 'refused'; it must be 'refuse' or 'skip'"):
        decode(files(tmp_path, 2), size=None, corrupt="refused")


def test_decompression_bombs_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    path.write_bytes(encoded(Image.new("1", (400, 400))))
    for most in (100_000, 10_000):  # Pillow warns of the first and refuses the second
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(InputProblems, match=f"more than {most:,} pixels"):
            decode([path], size=8)


def test_remarks_of_pillow_are_not_shown(tmp_path):
    exif = Image.Exif()
    exif[0x0110] = "camera model name"
    data = bytearray(encoded(picture(), "JPEG", exif=exif))
    offset = data.index(b"Exif\0\0MM") + 24  # where the name lies
    data[offset : offset + 4] = b"\xff\xff\xff\x7f"
    with pytest.warns(UserWarning, match="Truncated"):
        Image.open(io.BytesIO(data)).getexif()
    (tmp_path / "a.jpg").write_bytes(data)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert len(decode([tmp_path / "a.jpg"], size=None).images) == 1
    assert not heard


def test_sizes_that_make_no_sense_and_no_images(tmp_path):
    for size in (0, "64", (20, 20), 20.0, True):
        with pytest.raises(InputProblems, match=r"image_size is .*: give a side in pixels, or None"):
            decode(files(tmp_path, 1), size=size)
    assert decode([], size=7).images.shape == (0, 3, 7, 7)
    assert decode([], size=None, cache=tmp_path / "c").images.shape == (0, 3, 0, 0)


def test_a_cache_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "c").write_text("a file")
    for inside, said in (("", "c', a file: give a folder"), ("d", "d', but '.*c' is a file: give a folder")):
        with pytest.raises(InputProblems, match=said):
            decode(files(tmp_path / "a", 2), size=None, cache=tmp_path / "c" / inside)


def test_the_record_says_what_was_left_out(tmp_path):
    paths = files(tmp_path / "a", 5)
    paths[1].write_bytes(b"no")
    decode(paths, size=4, cache=tmp_path / "c", corrupt="skip")
    (record,) = (tmp_path / "c").glob("*.json")
    assert json.loads(record.read_text()) == {
        "version": image_cache.VERSION,
        "given": 5,
        "size": 4,
        "folder": str(tmp_path / "a"),
        "left out": {"1": "no image of a known format"},
        "order": [0, 1, 2, 3, 4],
    }


# --- the pool ---


def test_results_come_in_order_and_progress_reaches_the_end():
    heard = []
    squares = list(image_pool.in_order(lambda i: i * i, 1000, lambda *news: heard.append(news)))
    assert squares == [i * i for i in range(1000)]
    assert heard[-1] == (1000, 1000)
    assert heard == sorted(heard)
    assert list(image_pool.in_order(lambda i: i, 0, image_pool.nothing_shown)) == []


def test_few_results_wait_for_a_slow_reader():
    started = []
    stream = image_pool.in_order(lambda i: started.append(i), 100_000, image_pool.nothing_shown)
    next(stream)
    time.sleep(0.05)
    assert len(started) <= image_pool.TOGETHER * image_pool.AHEAD * image_pool.cores()
    stream.close()


def test_without_a_terminal_or_rich_there_is_no_bar(capfd, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    decode(files(tmp_path, 3), size=None)
    monkeypatch.undo()
    decode(files(tmp_path, 3), size=None)
    assert capfd.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar(capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    decode(files(tmp_path, 40), size=None)
    assert "decoding images" in capfd.readouterr().err


def test_without_pillow_the_pip_line_is_shown(monkeypatch, tmp_path):
    paths = files(tmp_path, 1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'evenprune\[images\]'"):
        decode(paths, size=None)
