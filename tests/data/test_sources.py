import hashlib
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lmrc.data.datasets import load_dataset
from lmrc.data.sources import DatasetNotFoundError, RemoteFile, cache_folder, data_folder, download


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine, and the folder it offers."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    offered = tmp_path / "offered"
    offered.mkdir()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=offered))
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", offered
    http.shutdown()
    thread.join()
    http.server_close()


def offer(server, name, content):
    address, offered = server
    (offered / name).write_bytes(content)
    return RemoteFile(name, (f"{address}/{name}",), f"md5:{hashlib.md5(content).hexdigest()}")


def test_a_missing_set_is_downloaded_into_the_data_folder(
    server, data, cifar, write_tar, tmp_path, monkeypatch
):
    members = {f"cifar-100-python/{name}": content for name, content in cifar.members.items()}
    content = write_tar(tmp_path / "made.tar.gz", members).read_bytes()
    remote = offer(server, "cifar-100-python.tar.gz", content)
    monkeypatch.setattr("lmrc.data.public.CIFAR100", remote)

    assert len(load_dataset("cifar100").y_train) == 6
    assert (data / "cifar-100-python.tar.gz").read_bytes() == content

    (server[1] / remote.name).unlink()
    assert len(load_dataset("cifar100").y_train) == 6  # not downloaded again


def test_the_second_address_is_tried_where_the_first_fails(server, data):
    address, _ = server
    remote = offer(server, "set.bin", b"content")
    both = RemoteFile(remote.name, (f"{address}/no-such-file", *remote.urls), remote.checksum)
    download("Toy", [both], data)
    assert (data / "set.bin").read_bytes() == b"content"


def test_a_download_that_does_not_match_its_checksum_is_not_kept(server, data):
    remote = offer(server, "set.bin", b"content")
    (server[1] / "set.bin").write_bytes(b"something else")
    with pytest.raises(DatasetNotFoundError, match=r"MD5 hash .*does not match"):
        download("Toy", [remote], data)
    assert list(data.iterdir()) == []


def test_without_network_each_missing_file_its_address_and_its_place_are_named(
    data, monkeypatch, mnist_files
):
    closed = "http://127.0.0.1:9/"  # the discard port: nothing listens
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(
        "lmrc.data.public.MNIST",
        {
            part: RemoteFile(name, (closed + name,), "md5:0")
            for part, name in zip(
                ("X_train", "X_test", "y_train", "y_test"), mnist_files.gz, strict=True
            )
        },
    )
    (data / "train-images-idx3-ubyte.gz").write_bytes(mnist_files.gz["train-images-idx3-ubyte.gz"])
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset("mnist")
    message = str(caught.value)
    assert isinstance(caught.value, DatasetNotFoundError)
    assert "train-images" not in message
    for name in ("train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        assert f"{name} from {closed}{name}" in message
    assert (
        f"could not be downloaded: {closed}t10k-images-idx3-ubyte.gz cannot be reached." in message
    )
    assert f"{closed}t10k-labels-idx1-ubyte.gz.\nPut them, as downloaded, into {data}" in message
    assert "LMRC_DATA" in message


def test_the_bar_shows_the_download_on_a_terminal(server, data, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    download("Toy", [offer(server, "set.bin", bytes(300_000))], data)
    shown = capsys.readouterr().err
    assert "set.bin" in shown
    assert "300.0/300.0 kB" in shown


def test_the_argument_counts_before_the_variable_before_the_cache(data, tmp_path, monkeypatch):
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == data
    monkeypatch.setenv("LMRC_DATA", "")
    assert data_folder() == cache_folder() == tmp_path / "home-cache" / "lmrc"


def test_a_folder_that_is_not_there_is_named_with_who_named_it(data, tmp_path, monkeypatch):
    monkeypatch.setenv("LMRC_DATA", str(tmp_path / "moved"))
    with pytest.raises(DatasetNotFoundError, match=r"variable LMRC_DATA names \S*moved"):
        load_dataset("mnist")
    with pytest.raises(DatasetNotFoundError, match=r"data_dir names \S*typo"):
        load_dataset("mnist", data_dir=tmp_path / "typo")


def test_each_platform_has_its_place_for_caches(data, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    places = {
        "Linux": tmp_path / "home-cache" / "lmrc",
        "Darwin": tmp_path / "Library" / "Caches" / "lmrc",
        "Windows": tmp_path / "Local" / "lmrc",
    }
    for system, place in places.items():
        monkeypatch.setattr("platform.system", lambda system=system: system)
        assert cache_folder() == place
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path(tmp_path, ".cache", "lmrc")
    monkeypatch.setenv("LMRC_CACHE", "~/elsewhere")
    assert cache_folder() == tmp_path / "elsewhere"
