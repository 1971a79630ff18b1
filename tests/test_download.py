"""Downloads from a real server on this machine: broken off, continued, damaged, killed."""

import hashlib
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from evenprune import atomic, download
from evenprune.data import cifar100
from evenprune.download import DownloadFailed, Patience, Remote, fetch
from tests.test_cifar100 import check_same, made, python_files, write_archive

CONTENT = bytes(range(256)) * 1000 + b"the end"
QUICK = Patience(tries=3, pause=0.001, timeout=5)


@dataclass
class Site:
    """What the server does, and what it was asked."""

    content: bytes = CONTENT
    ranges: bool = True
    drops: list[int] = field(
        default_factory=list
    )  # bytes after which each answer ends early, one after another
    answers: list[int] = field(default_factory=list)  # status codes before the first good answer
    headers: dict[str, str] = field(default_factory=dict)  # instead of the right ones
    stall: float = 0.0  # seconds of silence in place of the early end
    pause: float = 0.0  # seconds after each 16 KiB
    asked: list[str | None] = field(default_factory=list)  # the Range of each request
    url: str = ""

    def remote(self, **other: Any) -> Remote:
        sums = {name: hashlib.new(name, CONTENT).hexdigest() for name in ("md5", "sha256")}
        return Remote(**{"url": self.url, "size": len(CONTENT), "checksums": sums} | other)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", site.url)
            self.end_headers()
            return
        site.asked.append(self.headers["Range"])
        if site.answers:
            self.send_error(site.answers.pop(0))
            return
        start, total = 0, len(site.content)
        if site.ranges and self.headers["Range"]:
            start = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])[1])
        self.send_response(206 if start else 200)
        right = {"Content-Length": str(total - start)}
        if start:
            right["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
        for name, value in (right | site.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self._send(site, start)

    def _send(self, site: Site, start: int) -> None:
        end = min(start + site.drops.pop(0), len(site.content)) if site.drops else len(site.content)
        for place in range(start, end, 1 << 14):
            self.wfile.write(site.content[place : min(place + (1 << 14), end)])
            self.wfile.flush()
            time.sleep(site.pause)
        if end < len(site.content):
            time.sleep(site.stall)

    def log_message(self, *arguments: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *arguments: Any) -> None:
        """The other side was killed: as meant."""


@pytest.fixture
def site() -> Iterator[Site]:
    server = Server(("127.0.0.1", 0), Handler)
    server.site = Site(url=f"http://127.0.0.1:{server.server_port}/~x/file.tar.gz")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.site  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failing(site: Site, folder: Path, *said: str, patience: Patience = QUICK, **other: Any) -> str:
    with pytest.raises(DownloadFailed) as caught:
        fetch(site.remote(**other), folder, patience=patience)
    text = str(caught.value)
    for part in (site.url, "other means", "sha256".upper(), *said):
        assert part in text
    assert "file.tar.gz" not in names(folder)
    return text


def test_a_file_is_fetched_once(site: Site, tmp_path: Path) -> None:
    heard: list[int] = []
    done = fetch(site.remote(), tmp_path / "new" / "folder", heard=lambda size, news: heard.append(size))
    assert (done.path.read_bytes(), done.received) == (CONTENT, len(CONTENT))
    assert names(tmp_path / "new" / "folder") == ["file.tar.gz"]
    assert heard == sorted(heard)
    assert heard[-1] == len(CONTENT)
    again = fetch(site.remote(), tmp_path / "new" / "folder")
    assert (again.path, again.received) == (done.path, 0)
    assert site.asked == [None]


def test_a_connection_that_drops_is_continued(site: Site, tmp_path: Path) -> None:
    """More often than there are tries: each one gets further."""
    site.drops = [50_000, 1, 70_000, 20_000, 5]
    news: list[str] = []
    done = fetch(site.remote(), tmp_path, patience=QUICK, heard=lambda size, new: new and news.append(new))
    assert (done.path.read_bytes(), done.received) == (CONTENT, len(CONTENT))
    starts = [50_000, 50_001, 120_001, 140_001, 140_006]
    assert site.asked == [None, *(f"bytes={start}-" for start in starts)]
    assert len(news) == 5
    assert all("trying again in 0.001 s" in new for new in news)


def test_a_server_without_ranges_starts_from_zero(site: Site, tmp_path: Path) -> None:
    site.ranges, site.drops = False, [100_000]
    done = fetch(site.remote(), tmp_path, patience=QUICK)
    assert (done.path.read_bytes(), done.received) == (CONTENT, 100_000 + len(CONTENT))
    assert site.asked == [None, "bytes=100000-"]


def test_a_server_without_ranges_that_never_gets_further_is_given_up(site: Site, tmp_path: Path) -> None:
    site.ranges, site.drops = False, [100_000] * 9
    failing(site, tmp_path, "ended early (3 tries without getting further)", "100,000 of 256,007 bytes")
    assert len(site.asked) == 3
    assert (tmp_path / "file.tar.gz.part").read_bytes() == CONTENT[:100_000]


def test_a_file_that_moved_is_continued_where_it_is_now(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.tar.gz.part").write_bytes(CONTENT[:1000])
    done = fetch(site.remote(url=site.url.replace("/~x/", "/moved/")), tmp_path, patience=QUICK)
    assert (done.path.read_bytes(), done.received) == (CONTENT, len(CONTENT) - 1000)
    assert site.asked == ["bytes=1000-"]


def test_after_a_failure_the_next_call_continues(site: Site, tmp_path: Path) -> None:
    site.drops = [1000, 0, 0, 0]
    text = failing(site, tmp_path, "1,000 of 256,007 bytes were received", "it continues there")
    assert str(tmp_path / "file.tar.gz.part") in text
    site.drops = []
    assert fetch(site.remote(), tmp_path).received == len(CONTENT) - 1000
    assert site.asked[-1] == "bytes=1000-"
    assert names(tmp_path) == ["file.tar.gz"]


def test_silence_counts_as_broken(site: Site, tmp_path: Path) -> None:
    site.drops, site.stall = [1000], 1.0
    done = fetch(site.remote(), tmp_path, patience=Patience(tries=3, pause=0.001, timeout=0.2))
    assert done.path.read_bytes() == CONTENT
    assert site.asked == [None, "bytes=1000-"]


def test_another_file_than_the_published_one(site: Site, tmp_path: Path) -> None:
    site.content = CONTENT[:-1] + b"!"
    failing(site, tmp_path, "MD5", hashlib.md5(site.content).hexdigest(), hashlib.md5(CONTENT).hexdigest())
    assert names(tmp_path) == []
    site.content = b"<html>Log in to use this network</html>"
    failing(site, tmp_path, "a file of 39 bytes there, not of 256,007")
    assert len(site.asked) == 2, "neither is tried again"
    assert names(tmp_path) == []


@pytest.mark.parametrize("length", [1000, len(CONTENT), len(CONTENT) + 1])
def test_what_lies_there_may_be_damaged(site: Site, tmp_path: Path, length: int) -> None:
    (tmp_path / "file.tar.gz.part").write_bytes(b"?" * length)
    assert fetch(site.remote(), tmp_path, patience=QUICK).path.read_bytes() == CONTENT
    assert site.asked == (["bytes=1000-", None] if length == 1000 else [None])


def test_a_whole_part_needs_no_server(site: Site, tmp_path: Path) -> None:
    """Killed after the last byte and before the file got its name."""
    (tmp_path / "file.tar.gz.part").write_bytes(CONTENT)
    assert fetch(site.remote(url="http://127.0.0.1:9/file.tar.gz"), tmp_path).received == 0
    assert names(tmp_path) == ["file.tar.gz"]


def test_a_file_that_is_there_is_never_overwritten(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.tar.gz").write_bytes(b"mine")
    with pytest.raises(DownloadFailed, match="4 bytes instead of 256,007"):
        fetch(site.remote(), tmp_path)
    (tmp_path / "file.tar.gz").write_bytes(CONTENT[::-1])
    with pytest.raises(DownloadFailed, match="left as it is; move it away"):
        fetch(site.remote(), tmp_path)
    assert (tmp_path / "file.tar.gz").read_bytes() == CONTENT[::-1]
    (tmp_path / "b" / "file.tar.gz").mkdir(parents=True)
    with pytest.raises(DownloadFailed, match="is no file"):
        fetch(site.remote(), tmp_path / "b")
    assert site.asked == []


def test_pauses_grow_and_passing_errors_pass(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(download.time, "sleep", lambda s: pauses.append(s) if s else None)
    site.answers = [503, 429, 500, 408]
    assert fetch(site.remote(), tmp_path).received == len(CONTENT)
    assert pauses == [1, 2, 4, 8]


def test_errors_that_stay_are_not_tried_again(site: Site, tmp_path: Path) -> None:
    site.answers = [404, 200]
    failing(site, tmp_path, "the server answered 404 Not Found", "0 of 256,007 bytes", "later")
    assert len(site.asked) == 1
    assert names(tmp_path) == []


def test_a_range_that_the_server_does_not_have(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.tar.gz.part").write_bytes(CONTENT[:1000])
    site.answers = [416]
    assert fetch(site.remote(), tmp_path, patience=QUICK).received == len(CONTENT)
    assert site.asked == ["bytes=1000-", None]


@pytest.mark.parametrize("answer", ["bytes 2000-256006/256007", "nonsense"])
def test_an_answer_to_another_question(site: Site, tmp_path: Path, answer: str) -> None:
    (tmp_path / "file.tar.gz.part").write_bytes(CONTENT[:1000])
    site.headers = {"Content-Range": answer}
    failing(site, tmp_path, f"the server sent '{answer}', not from 1,000 on")
    assert (tmp_path / "file.tar.gz.part").read_bytes() == CONTENT[:1000]


def test_no_connection(tmp_path: Path) -> None:
    site = Site(url="http://127.0.0.1:9/file.tar.gz")
    failing(site, tmp_path, "no connection (Connection refused) (3 tries", "0 of 256,007 bytes")
    assert names(tmp_path) == []


def test_one_at_a_time(site: Site, tmp_path: Path) -> None:
    with atomic.growing(tmp_path / "file.tar.gz.part") as file:
        file.write(b"half")
        file.flush()
        with pytest.raises(DownloadFailed, match="another process is writing it"):
            fetch(site.remote(), tmp_path)
    assert (tmp_path / "file.tar.gz.part").read_bytes() == b"half"
    assert site.asked == []


def test_a_disk_that_is_full_and_a_folder_that_cannot_be(site: Site, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "file.tar.gz.part").symlink_to("/dev/full")
    with pytest.raises(DownloadFailed, match="No space left on device"):
        fetch(site.remote(), tmp_path)
    assert len(site.asked) == 1
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(DownloadFailed, match=r"Not a directory|File exists"):
        fetch(site.remote(), tmp_path / "a" / "b")


def test_what_is_published() -> None:
    for name, remote in cifar100.ARCHIVES.items():
        assert remote.name == f"cifar-100-{name}.tar.gz"
        assert {key: len(value) for key, value in remote.checksums.items()} == {"md5": 32, "sha256": 64}


# --- the command ---

COMMAND = """
import sys
from evenprune import cli
from evenprune.data import cifar100
from evenprune.download import Remote
url, size, md5 = sys.argv.pop(1), int(sys.argv.pop(1)), sys.argv.pop(1)
cifar100.ARCHIVES["python"] = Remote(url=url, size=size, checksums={"md5": md5})
cli.main()
"""


@pytest.fixture
def archive(site: Site, tmp_path: Path) -> list[str]:
    """A small CIFAR-100 on the server; the command that fetches it."""
    path = write_archive(tmp_path / "cifar-100-python.tar.gz", python_files(made(train=300)))
    site.content, site.url = path.read_bytes(), site.url.replace("file.tar.gz", path.name)
    path.unlink()
    md5 = hashlib.md5(site.content).hexdigest()
    return [sys.executable, "-c", COMMAND, site.url, str(len(site.content)), md5, "data", "get", "cifar100"]


def run(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"} | more
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_get_killed_and_continued(site: Site, archive: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar100"
    part, site.pause = folder / "cifar-100-python.tar.gz.part", 0.02
    with subprocess.Popen(archive, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not part.exists() or part.stat().st_size < 200_000:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert names(folder) == [part.name]
    there, site.pause = part.stat().st_size, 0.0
    assert part.read_bytes() == site.content[:there]
    assert 200_000 <= there < len(site.content)

    done = run(archive, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert site.asked == [None, f"bytes={there}-"]
    assert f"fetched ({len(site.content) - there:,} bytes)" in done.stdout
    assert str(Path("data") / "cifar100" / "cifar-100-python.tar.gz") in done.stdout
    assert "Next: python -c 'from evenprune.data import cifar100" in done.stdout
    check_same(cifar100.load(folder, strict=False).train, made(train=300)["train"])

    again = run(archive, tmp_path)
    assert (again.returncode, again.stderr, len(site.asked)) == (0, "", 2)
    assert "already there" in again.stdout


def test_get_to_a_folder_with_a_bar_on_a_terminal(site: Site, archive: list[str], tmp_path: Path) -> None:
    done = run([*archive, "--to", "my data", "--format", "python"], tmp_path, FORCE_COLOR="1")
    assert done.returncode == 0
    assert "cifar-100-python.tar.gz" in done.stderr
    assert "--data 'my data'" in done.stdout
    assert names(tmp_path / "my data") == ["cifar-100-python.tar.gz"]


def test_get_that_fails(site: Site, archive: list[str], tmp_path: Path) -> None:
    site.answers = [403]
    done = run(archive, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"evenprune: {site.url} could not be fetched: the server answered 403")
    assert "Traceback" not in done.stderr


def test_data_alone_prints_help_and_unknown_sets_are_named() -> None:
    command = [sys.executable, "-m", "evenprune", "data"]
    alone = run(command, Path())
    assert "get" in alone.stdout + alone.stderr
    assert "Traceback" not in alone.stderr
    unknown = run([*command, "get", "mnist"], Path())
    assert unknown.returncode == 2
    assert "'mnist'" in unknown.stderr
    assert "'cifar100'" in unknown.stderr
