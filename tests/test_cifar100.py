"""The same images from every form of CIFAR-100, damaged files told plainly, and no pickle runs anything."""

import codecs
import contextlib
import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from evenprune.data import array_pickle, cifar100
from evenprune.data.cifar100 import CLASSES, MEAN, STD, SUPERCLASS_OF, SUPERCLASSES, Images
from evenprune.download import Remote
from evenprune.tally import InputProblems

Sets = dict[str, Images]
REAL = Path(__file__).parents[2] / "shared" / "data" / "cifar100"


# --- small sets, in every form ---


def made(*, train: int = 7, test: int = 3, seed: int = 0) -> Sets:
    rng = np.random.default_rng(seed)

    def some(count: int) -> Images:
        fine = rng.integers(0, 100, count)
        return Images(rng.integers(0, 256, (count, 3, 32, 32), np.uint8), fine, SUPERCLASS_OF[fine])

    return {"train": some(train), "test": some(test)}


def python2_pickle(fields: dict[str, Any]) -> bytes:
    """The pickle that Python 2 wrote into the official archive: protocol 2, texts as byte strings."""
    out, memo = [b"\x80\x02"], 0

    def keep() -> None:
        nonlocal memo
        memo += 1
        out.append(b"q" + bytes([memo]) if memo < 256 else b"r" + struct.pack("<I", memo))

    def put(value: Any) -> None:
        if isinstance(value, np.ndarray):
            put_array(value)
        elif isinstance(value, bytes | str):
            raw = value.encode() if isinstance(value, str) else value
            out.append(b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)))
            out.append(raw)
            keep()
        elif isinstance(value, int):
            small = 0 <= value < 256
            out.append(b"K" + bytes([value]) if small else b"J" + struct.pack("<i", value))
        elif isinstance(value, list):
            out.append(b"]")
            keep()
            for first in range(0, len(value), 1000):
                out.append(b"(")
                for item in value[first : first + 1000]:
                    put(item)
                out.append(b"e")
        else:
            raise TypeError(value)

    def put_array(array: np.ndarray) -> None:
        out.append(b"cnumpy.core.multiarray\n_reconstruct\n")
        keep()
        out.append(b"cnumpy\nndarray\n")
        keep()
        out.append(b"K\x00\x85U\x01b\x87R")
        keep()
        out.append(b"(K\x01")
        for length in array.shape:
            put(length)
        out.append(b"\x86cnumpy\ndtype\n")
        keep()
        out.append(b"U\x02u1K\x00K\x01\x87R")
        keep()
        out.append(b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
        out.append(b"T" + struct.pack("<i", array.nbytes) + array.tobytes() + b"tb")

    out.append(b"}")
    keep()
    out.append(b"(")
    for key, value in fields.items():
        put(key)
        put(value)
    out.append(b"u.")
    return b"".join(out)


def python_files(sets: Sets) -> dict[str, bytes]:
    meta = {"fine_label_names": list(CLASSES), "coarse_label_names": list(SUPERCLASSES)}
    files = {"meta": python2_pickle(meta), "file.txt~": b""}
    for name, split in sets.items():
        fields = {
            "filenames": [f"image_{i}.png" for i in range(len(split))],
            "batch_label": f"{name} batch 1 of 1",
            "fine_labels": split.fine.tolist(),
            "coarse_labels": split.coarse.tolist(),
            "data": split.images.reshape(-1, 3072),
        }
        files[name] = python2_pickle(fields)
    return files


def binary_files(sets: Sets) -> dict[str, bytes]:
    files = {"fine_label_names.txt": "\n".join(CLASSES).encode() + b"\n"}
    files["coarse_label_names.txt"] = "\n".join(SUPERCLASSES).encode() + b"\n"
    for name, split in sets.items():
        labels = np.stack([split.coarse, split.fine], axis=1).astype(np.uint8)
        files[f"{name}.bin"] = np.hstack([labels, split.images.reshape(-1, 3072)]).tobytes()
    return files


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def write_archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def frame_of(split: Images, column: str = "img") -> pl.DataFrame:
    rows = [{"bytes": png(pixels), "path": f"{i}.png"} for i, pixels in enumerate(split.images)]
    kind = pl.Struct({"bytes": pl.Binary, "path": pl.String})
    labels = {"fine_label": split.fine, "coarse_label": split.coarse}
    return pl.DataFrame({column: pl.Series(rows, dtype=kind), **labels})


def as_python(folder: Path, sets: Sets) -> None:
    write(folder, python_files(sets))


def as_python_below(folder: Path, sets: Sets) -> None:
    write(folder / "cifar-100-python", python_files(sets))


def as_binary(folder: Path, sets: Sets) -> None:
    write(folder / "cifar-100-binary", binary_files(sets))


def as_python_archive(folder: Path, sets: Sets) -> None:
    write_archive(folder / "cifar-100-python.tar.gz", python_files(sets))


def as_binary_archive(folder: Path, sets: Sets) -> None:
    write_archive(folder / "cifar-100-binary.tar.gz", binary_files(sets))


def as_parquet(folder: Path, sets: Sets) -> None:
    (folder / "cifar100").mkdir()
    for name, split in sets.items():
        frame_of(split).write_parquet(folder / "cifar100" / f"{name}-00000-of-00001.parquet")


def as_parquet_in_parts(folder: Path, sets: Sets) -> None:
    for name, split in sets.items():
        frame = frame_of(split, "image")
        frame.head(1).write_parquet(folder / f"{name}-00000-of-00002.parquet")
        frame.slice(1).write_parquet(folder / f"{name}-00001-of-00002.parquet")


def as_mosaics(folder: Path, sets: Sets, side: int = 2) -> None:
    names = {"fine_label_names": CLASSES, "coarse_label_names": SUPERCLASSES}
    (folder / "meta.json").write_text(json.dumps(names))
    for name, split in sets.items():
        labels = {"fine": split.fine.astype(np.uint8), "coarse": split.coarse.astype(np.uint8)}
        np.savez(folder / f"{name}_labels.npz", **labels)
        each = side * side
        for number in range(-(-len(split) // each)):
            part = split.images[number * each : (number + 1) * each]
            tiles = np.zeros((each, 3, 32, 32), np.uint8)
            tiles[: len(part)] = part
            rows = tiles.reshape(side, side, 3, 32, 32).transpose(0, 3, 1, 4, 2)
            picture = Image.fromarray(np.ascontiguousarray(rows).reshape(side * 32, side * 32, 3))
            picture.save(folder / f"{name}_{number:02d}.webp", lossless=True, exact=True)


FORMS: dict[str, Callable[[Path, Sets], None]] = {
    write.__name__: write
    for write in (
        as_python, as_python_below, as_binary, as_python_archive, as_binary_archive,
        as_parquet, as_parquet_in_parts, as_mosaics,
    )
}  # fmt: skip


def check_same(found: Images, wanted: Images) -> None:
    for name in ("images", "fine", "coarse"):
        mine, theirs = getattr(found, name), getattr(wanted, name)
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
        assert mine.flags.writeable
        assert mine.flags.c_contiguous


def refused(path: Path, *said: str, **options: Any) -> list[str]:
    with pytest.raises(InputProblems) as caught:
        cifar100.load(path, **{"strict": False} | options)
    for part in said:
        assert part in str(caught.value)
    return caught.value.problems


# --- what is read ---


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=5)
@given(train=st.integers(1, 9), test=st.integers(1, 5), seed=st.integers(0, 999))
def test_every_form_gives_the_same_arrays(form, tmp_path_factory, train, test, seed):
    folder, sets = tmp_path_factory.mktemp("set"), made(train=train, test=test, seed=seed)
    FORMS[form](folder, sets)
    found = cifar100.load(folder, strict=False)
    check_same(found.train, sets["train"])
    check_same(found.test, sets["test"])
    assert (found.classes, found.superclasses, found.groups) == (CLASSES, SUPERCLASSES, CLASSES)


@pytest.mark.parametrize("form", ["as_python_archive", "as_binary_archive"])
def test_an_archive_is_read_by_its_own_path_and_under_any_name(form, tmp_path):
    sets = made()
    FORMS[form](tmp_path, sets)
    (path,) = tmp_path.iterdir()
    path = path.rename(tmp_path / "mine.tgz")
    check_same(cifar100.load(path, strict=False).train, sets["train"])
    assert list(tmp_path.iterdir()) == [path], "nothing is unpacked"


def test_groups_and_split(tmp_path):
    sets = made()
    as_python(tmp_path, sets)
    fine = cifar100.load(str(tmp_path), strict=False)
    coarse = cifar100.load(tmp_path, groups="superclass", strict=False)
    assert (fine.groups, coarse.groups) == (CLASSES, SUPERCLASSES)
    assert repr(fine).startswith("CIFAR-100: 7 images")
    for groups, ids in (("class", "fine"), ("superclass", "coarse"), (coarse.groups, "coarse")):
        split = cifar100.split(coarse.train, groups)
        assert split.inputs.dtype == torch.uint8
        assert split.inputs.shape == (7, 3, 32, 32)
        assert split.labels.tolist() == sets["train"].fine.tolist()
        assert split.groups.tolist() == getattr(sets["train"], ids).tolist()
        assert split.group_names().tolist() == [split.names[i] for i in split.groups]
    torch.testing.assert_close(split.mean, torch.tensor(MEAN))
    expected = (sets["train"].images[2] / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    np.testing.assert_allclose(split.at(torch.tensor([2]))[0].numpy(), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputProblems, match='"superclass"'):
        cifar100.split(coarse.train, ("cat", "dog"))
    refused(tmp_path / "absent", "groups is 'race'", "does not exist", groups="race")


def test_the_names_and_the_table_of_superclasses():
    assert len(CLASSES) == len(set(CLASSES)) == 100
    assert (CLASSES[0], CLASSES[26], CLASSES[-1], len(SUPERCLASSES)) == ("apple", "crab", "worm", 20)
    assert np.bincount(SUPERCLASS_OF).tolist() == [5] * 20
    assert SUPERCLASSES[SUPERCLASS_OF[CLASSES.index("worm")]] == "non-insect_invertebrates"


def test_the_real_images():
    if not REAL.is_dir():
        pytest.skip(f"the real images are not at {REAL}")
    data = cifar100.load(REAL)
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert data.train.fine.tolist() == [i // 500 for i in range(50_000)]
    values = np.arange(256) / 255
    for channel in range(3):
        counts = np.bincount(data.train.images[:, channel].ravel(), minlength=256) / (50_000 * 1024)
        mean = counts @ values
        assert mean == pytest.approx(MEAN[channel], abs=1e-8)
        assert np.sqrt(counts @ values**2 - mean**2) == pytest.approx(STD[channel], abs=1e-8)


def test_an_archive_beside_what_it_was_unpacked_to_is_read(tmp_path):
    as_python_archive(tmp_path, made())
    as_python_below(tmp_path, made(train=2))  # unpacked in part
    assert len(cifar100.load(tmp_path, strict=False).train) == 7


# --- what is refused ---


def test_nothing_there_and_several_there(tmp_path):
    refused(tmp_path / "no", "does not exist", "evenprune data get cifar100")
    (tmp_path / "photo.jpg").write_bytes(b"")
    (tmp_path / "cifar-100-python.tar.gz.part").write_bytes(b"")
    refused(tmp_path, "holds no CIFAR-100", "'photo.jpg'", "unfinished download", "train.bin", "Parquet")
    refused(tmp_path / "photo.jpg", "neither a folder nor a .tar.gz")
    as_python_below(tmp_path, made())
    as_binary_archive(tmp_path, made())
    refused(tmp_path, "more than once", "(cifar-100-python)", "(archive)", "Name the one to read")
    cifar100.load(tmp_path / "cifar-100-python", strict=False)


def test_official_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar100, "COUNTS", {"train": 2, "test": 1})
    fine = np.tile(np.arange(100), 2)
    images = np.zeros((200, 3, 32, 32), np.uint8)
    whole = Images(images, fine, SUPERCLASS_OF[fine])
    test = Images(images[:100], fine[:100], SUPERCLASS_OF[fine[:100]])
    as_binary(tmp_path, {"train": whole, "test": test})
    cifar100.load(tmp_path)
    short = Images(images[1:], fine[1:], SUPERCLASS_OF[fine[1:]])
    as_binary(tmp_path, {"train": short, "test": whole})
    problems = refused(tmp_path, "199 instead of 200; not 2 of each class: apple 1", strict=True)
    assert len(problems) == 2
    assert "200 instead of 100; not 1 of each class: apple 2, aquarium_fish 2, baby 2 …" in problems[1]
    cifar100.load(tmp_path, strict=False)
    other = Images(images, np.where(fine == 99, 0, fine), SUPERCLASS_OF[np.where(fine == 99, 0, fine)])
    as_binary(tmp_path, {"train": other, "test": test})
    (problem,) = refused(tmp_path, "train images in", strict=True)
    assert ": not 2 of each class: apple 4, worm 0. " in problem  # as many as there should be, in all


def test_labels_that_cannot_be(tmp_path):
    train, test = made()["train"], made()["test"]
    train.fine[3], test.coarse[1] = 100, 20
    as_binary(tmp_path, {"train": train, "test": test})
    refused(
        tmp_path, "2 problems", "outside 0 … 99; the first is 100 of sample 3", "the first is 20 of sample 1"
    )
    train = made()["train"]
    train.coarse[:] = SUPERCLASS_OF[train.fine]
    train.coarse[5] = (train.coarse[5] + 1) % 20
    as_mosaics(tmp_path / "cifar-100-binary", {"train": train, "test": made()["test"]})
    for name in ("train.bin", "test.bin"):
        (tmp_path / "cifar-100-binary" / name).unlink()
    refused(tmp_path, "1 samples in a superclass that is not theirs", "sample 5")


def test_other_names_mean_other_classes(tmp_path):
    files = binary_files(made())
    files["fine_label_names.txt"] = files["fine_label_names.txt"].replace(b"crab", b"lobstrosity")
    files["coarse_label_names.txt"] = b"a\nb\n"
    refused(write(tmp_path, files), "'lobstrosity' for 'crab'", "holds 2 names; CIFAR-100 has 20")


def damaged(folder: Path) -> dict[str, list[str]]:
    """Sets with something wrong, by the folder that holds them, and what is to be said of it."""
    sets = made()
    python, binary = python_files(sets), binary_files(sets)
    short = {**sets, "train": Images(sets["train"].images[:-1], sets["train"].fine, sets["train"].coarse)}
    write(folder / "no test", {name: data for name, data in python.items() if name != "test"})
    write(folder / "cut pickle", {**python, "train": python["train"][:-500], "test": b""})
    write(folder / "unequal", python_files(short))
    fields = {"data": np.zeros((7, 100), np.uint8), "fine_labels": ["x"], "coarse_labels": [256]}
    write(folder / "odd", {**python, "train": python2_pickle(fields)})
    write(folder / "cut binary", {**binary, "train.bin": binary["train.bin"][:-1], "test.bin": b""})
    archive = write_archive(folder / "cifar-100-python.tar.gz", python).read_bytes()
    (folder / "cifar-100-python.tar.gz").unlink()
    write(folder / "cut archive", {"cifar-100-python.tar.gz": archive[: len(archive) // 2]})
    write(folder / "no archive", {"cifar-100-python.tar.gz": b"<html>404</html>"})
    return {
        "no test": ["has no file test, the test images"],
        "cut pickle": ["2 problems", "train in", "test in", "damaged or cut short"],
        "unequal": ["unequal numbers: 6 images, 7 fine labels, 7 coarse labels"],
        "odd": ["3 problems", "shape [7, 100]", "'fine_labels' is no list", "outside 0 … 255"],
        "cut binary": ["2 problems", "no rows of 3,074", "test.bin"],
        "cut archive": ["is damaged or cut short", "fetch it again"],
        "no archive": ["is damaged or cut short", "fetch it again"],
    }


def test_a_bit_that_changed_within_an_archive_is_noticed(tmp_path):
    """Where it lies among stored bytes, unpacking notices nothing until the checksum behind the last one."""
    path = write_archive(tmp_path / "mine.tar.gz", binary_files(made()))
    packed = bytearray(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=0))
    place = packed.index(made()["train"].images[3].tobytes()[:64])
    packed[place + 7] ^= 1
    (tmp_path / "set.tar.gz").write_bytes(packed)
    refused(tmp_path / "set.tar.gz", "is damaged or cut short (CRC check failed", "fetch it again")
    packed[place + 7] ^= 1
    (tmp_path / "set.tar.gz").write_bytes(packed)
    check_same(cifar100.load(tmp_path / "set.tar.gz", strict=False).train, made()["train"])


def test_an_archive_by_an_official_name_has_the_published_checksums(tmp_path, monkeypatch):
    path = write_archive(tmp_path / "cifar-100-python.tar.gz", python_files(made()))
    size = f"{path.stat().st_size:,} bytes instead of 169,001,437"
    refused(tmp_path, "is not the archive published at https://www.cs.toronto.edu", size, strict=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for sha256, wrong in ((digest, []), ("0" * 64, [f"SHA256 {digest} instead of 0000"])):
        own = Remote("https://x/cifar-100-python.tar.gz", path.stat().st_size, {"sha256": sha256})
        monkeypatch.setattr(cifar100, "ARCHIVES", {"python": own})
        problems = refused(tmp_path, *wrong, "of each class", strict=True)
        assert any("is not the archive" in problem for problem in problems) == bool(wrong)
    path.rename(tmp_path / "mine.tar.gz")
    problems = refused(tmp_path / "mine.tar.gz", "of each class", strict=True)
    assert not any("is not the archive" in problem for problem in problems)


def test_damaged_official_files(tmp_path):
    for name, said in damaged(tmp_path).items():
        refused(tmp_path / name, *said)


def test_damaged_mosaics(tmp_path):
    as_mosaics(tmp_path, made(train=12))
    (tmp_path / "train_01.webp").unlink()
    (tmp_path / "train_02.webp").write_bytes(b"RIFF")
    (tmp_path / "test_labels.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "meta.json").write_text("[")
    refused(
        tmp_path, "4 problems", "lacks 'train_01.webp'", "train_02.webp' is damaged", "test_labels", "meta"
    )
    as_mosaics(tmp_path, made(train=12))
    (tmp_path / "train_02.webp").unlink()
    Image.new("RGB", (40, 64)).save(tmp_path / "test_00.webp")
    refused(tmp_path, "2 train mosaics hold 8 tiles for 12 labels; the last is train_01.webp", "40×64 pixels")
    np.savez(tmp_path / "train_labels.npz", fine=np.zeros(12))
    np.savez(tmp_path / "test_labels.npz", fine=np.zeros(3), coarse=np.zeros((3, 1), int))
    refused(
        tmp_path, "needs arrays 'fine' and 'coarse'", "'fine' is float64", "'coarse' is int64 of shape [3, 1]"
    )
    for path in tmp_path.glob("test*"):
        path.unlink()
    refused(tmp_path, "lacks 'test_00.webp'", "test_labels.npz' cannot be read: No such file")


def test_damaged_parquet(tmp_path):
    as_parquet_in_parts(tmp_path, made())
    frame = frame_of(made()["train"])
    frame.drop("coarse_label").write_parquet(tmp_path / "train-00000-of-00002.parquet")
    frame.with_columns(img=pl.lit("a.png"), fine_label=pl.lit(0.5)).write_parquet(
        tmp_path / "train-00001-of-00002.parquet"
    )
    (tmp_path / "test-00000-of-00002.parquet").write_bytes(b"PAR1")
    problems = refused(tmp_path, "no column 'coarse_label'", "'img' is String", "'fine_label' is Float64")
    assert len(problems) == 4
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    hollow = frame.with_columns(img=pl.struct(pl.lit(None, pl.Binary).alias("bytes"), path=pl.lit("a.png")))
    hollow.write_parquet(tmp_path / "train.parquet")
    refused(tmp_path, "7 rows without image", "has no test*.parquet")
    bad = frame.with_columns(img=pl.struct(pl.lit(b"\x89PNG\r\n\x1a\n....").alias("bytes")))
    large = frame.with_columns(img=pl.struct(pl.lit(png(np.zeros((3, 64, 32), np.uint8))).alias("bytes")))
    bad.write_parquet(tmp_path / "train.parquet")
    large.write_parquet(tmp_path / "test.parquet")
    refused(tmp_path, "row 0 of the train images", "is damaged, or no PNG", "32×64 pixels, not 32×32")


def test_without_pillow_the_official_forms_are_read_and_the_others_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    for name in ("official", "pictures"):
        (tmp_path / name).mkdir()
    as_python(tmp_path / "official", made())
    cifar100.load(tmp_path / "official", strict=False)
    (tmp_path / "pictures" / "train_00.webp").write_bytes(b"")
    with pytest.raises(ImportError, match=r"pip install 'evenprune\[images\]'"):
        cifar100.load(tmp_path / "pictures", strict=False)


def test_importing_it_loads_neither_torch_nor_pillow():
    code = "import sys, evenprune.data.cifar100; print({'torch', 'PIL'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- pickles ---


class Runs:
    """What a hostile pickle holds: a call that Python makes while it loads it."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", [os.mkdir, exec, getattr, np.load, np.dtype.newbyteorder, type])
def test_a_hostile_pickle_is_refused_and_nothing_runs(tmp_path, protocol, call):
    marker = tmp_path / "ran"
    argument = f"import os; os.mkdir({str(marker)!r})" if call is exec else str(marker)
    hostile = pickle.dumps({"data": Runs(call, argument)}, protocol=protocol)
    folder = write(tmp_path / "set", python_files(made()) | {"train": hostile, "meta": hostile})
    problems = refused(folder, "can run code", "train in", "meta in")
    assert len(problems) == 2
    assert not marker.exists()


def test_names_are_not_looked_up_through_others():
    """Protocol 4 names 'a.b' would walk from a harmless name to any attribute of it."""
    for name in ("ndarray.__class__", "dtype.__reduce__", "load"):
        program = b"\x80\x04\x8c\x05numpy\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
        with pytest.raises(array_pickle.NotPlainData, match="can run code"):
            array_pickle.read(program)


ARRAY = b"\x80\x02}U\x01ac" + b"numpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
DTYPE = b"cnumpy\ndtype\nU\x02%sK\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


@pytest.mark.parametrize(
    "program",
    [
        ARRAY + b"(K\x01K\x08\x85" + DTYPE % b"O8" + b"\x89U\x08AAAAAAAAtbs.",  # bytes as addresses
        ARRAY + b"(K\x01K\x09\x85" + DTYPE % b"u1" + b"\x89U\x08AAAAAAAAtbs.",  # longer than its bytes
        ARRAY + b"(K\x01J\xff\xff\xff\xffJ\xf8\xff\xff\xff\x86" + DTYPE % b"u1" + b"\x89U\x08AAAAAAAAtbs.",
        b"\x80\x02}U\x01acnumpy\nndarray\nK\x08\x85Rs.",  # ndarray(8): memory as it was left
        b"\x80\x02}U\x01acnumpy\nndarray\nN}U\x07meaningU\x01xs\x86bs.",  # another meaning for a name
        b"\x80\x02}U\x01acnumpy\ndtype\nN}U\x05childK\x01s\x86bs.",
        b"\x80\x02U\x01aQ.",  # persistent identifiers
        b"\x80\x02\x82\x01.",  # the extension registry
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # place 2,147,483,647 of the memory of a pickle: 17 GB elsewhere
        b"\x80\x02T\xff\xff\xff\x7fabc.",
        b"\x80\x02]}s.",
        b"\x80\x02K\x01.",
        b"",
    ],
)  # fmt: skip
def test_forged_pickles(program):
    with pytest.raises(array_pickle.NotPlainData):
        array_pickle.read(program)


PLAIN = st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=5) | st.floats(allow_nan=False) | st.none())


@given(fields=st.dictionaries(st.text(max_size=5), PLAIN), protocol=st.integers(0, 5))
def test_plain_data_is_read_as_pickle_reads_it(fields, protocol):
    assert array_pickle.read(pickle.dumps(fields, protocol=protocol)) == fields


@given(text=st.text(st.characters(max_codepoint=127)), protocol=st.integers(0, 5))
def test_bytes_become_text_in_every_protocol(text, protocol):
    """Python 3 spells bytes as a call of _codecs.encode in the protocols that Python 2 reads."""
    fields = {text.encode(): [text.encode()]}
    assert array_pickle.read(pickle.dumps(fields, protocol=protocol)) == {text: [text]}


@pytest.mark.parametrize(
    "arguments", [("a", "utf-8"), ("€", "latin1"), (1, "latin1"), ("a",), ("a", "latin1", 1)]
)
def test_no_other_encoding_is_called(arguments):
    with pytest.raises(array_pickle.NotPlainData, match="unknown way"):
        array_pickle.read(pickle.dumps({"data": Runs(codecs.encode, *arguments)}, protocol=2))


@given(shape=st.lists(st.integers(0, 5), min_size=2, max_size=2), protocol=st.integers(2, 4))
def test_arrays_of_python_3_and_of_python_2(shape, protocol):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    for program in (pickle.dumps({"x": array}, protocol=protocol), python2_pickle({"x": array})):
        found = array_pickle.read(program)["x"]
        np.testing.assert_array_equal(found, array)
        assert found.shape == array.shape


def test_the_pickles_made_here_are_those_of_numpy():
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    program = python2_pickle({"x": array, "y": [1, 300, "z" * 300]}).replace(b"numpy.core.", b"numpy._core.")
    loaded = pickle.loads(program, encoding="bytes")
    np.testing.assert_array_equal(loaded[b"x"], array)
    assert loaded[b"y"] == [1, 300, b"z" * 300]


@settings(max_examples=300)
@given(data=st.data())
def test_a_changed_pickle_gives_data_or_a_plain_error(data):
    program = bytearray(python2_pickle({"x": np.zeros((2, 3), np.uint8), "y": [1, 300, "abc"]}))
    for _ in range(data.draw(st.integers(1, 4))):
        program[data.draw(st.integers(0, len(program) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(array_pickle.NotPlainData):
        assert isinstance(array_pickle.read(bytes(program)), dict)
