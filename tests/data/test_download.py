import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from small_files import ARCHIVES, same, small, write_archive

from mocapsnet.data import download
from mocapsnet.data.catalog import load_files


class Handler(BaseHTTPRequestHandler):
    """Serves what the server holds; /broken/ cuts it short, /altered/ changes it, /silent/ never answers."""

    def do_GET(self):
        _, manner, name = self.path.split("/")
        self.server.asked.append(self.path)
        content = self.server.contents.get(name)
        if manner == "silent":
            time.sleep(1)
        if manner == "missing" or content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if manner == "altered":
            content = content[:-20] + bytes(20)
        self.wfile.write(content[: len(content) // 2] if manner == "broken" else content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server on this computer alone."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.contents, server.asked = {}, []
        server.handle_error = lambda *_: None
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def addresses(server, *manners):
    host = f"http://127.0.0.1:{server.server_port}"
    return {name: [f"{host}/{manner}/{name}" for manner in manners] for name in server.contents}


def serve_mnist(server):
    made = small("mnist", "idx")
    server.contents = {f"{name}.gz": gzip.compress(content) for name, content in made.contents.items()}
    return made


@pytest.mark.parametrize("bad", ["missing", "broken", "altered", "silent"])
def test_the_next_mirror_is_asked_when_one_fails(server, bad, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "SILENCE", 0.2 if bad == "silent" else 10)
    made = serve_mnist(server)
    loaded = load_files("mnist", tmp_path, True, made.table, addresses(server, bad, "good"))
    assert same(loaded, made.dataset)
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(server.contents)


@pytest.mark.parametrize("form", ["binary", "python"])
def test_an_archive_is_fetched_once_and_kept_as_it_is(server, form, tmp_path):
    made, archive = small("cifar10", form), ARCHIVES["cifar10", form]
    write_archive(tmp_path / archive, made.contents)
    server.contents = {archive: (tmp_path / archive).read_bytes()}
    (tmp_path / archive).unlink()
    for _ in range(2):
        assert same(
            load_files("cifar10", tmp_path, True, made.table, addresses(server, "good")), made.dataset
        )
    assert len(server.asked) == 1
    assert (tmp_path / "cifar10" / archive).read_bytes() == server.contents[archive]


def test_only_what_is_missing_is_fetched(server, tmp_path):
    made = serve_mnist(server)
    (tmp_path / "mnist").mkdir()
    have = "train-images-idx3-ubyte.gz"
    (tmp_path / "mnist" / have).write_bytes(server.contents[have])
    assert same(load_files("mnist", tmp_path, True, made.table, addresses(server, "good")), made.dataset)
    assert f"/good/{have}" not in server.asked
    assert len(server.asked) == 3


def test_another_set_in_the_folder_does_not_stop_a_download(server, tmp_path):
    made, clothes = serve_mnist(server), small("fashion_mnist", "idx")
    clothes.write(tmp_path)
    table = made.table | clothes.table
    assert same(load_files("mnist", tmp_path, True, table, addresses(server, "good")), made.dataset)


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("missing", "127.0.0.1: HTTP Error 404: Not Found"),
        ("broken", "127.0.0.1 sent a broken file"),
        ("altered", "127.0.0.1 sent a broken file"),
        ("silent", "127.0.0.1: timed out"),
    ],
)
def test_a_download_that_fails_is_one_line_and_leaves_nothing(server, manner, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "SILENCE", 0.2 if manner == "silent" else 10)
    made = serve_mnist(server)
    with pytest.raises(ConnectionError) as error:
        load_files("mnist", tmp_path, True, made.table, addresses(server, manner, manner))
    assert str(error.value) == (
        f"train-images-idx3-ubyte.gz could not be downloaded ({reason}; {reason}); "
        f"put it in {tmp_path / 'mnist'} by hand"
    )
    assert list((tmp_path / "mnist").iterdir()) == []


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/file", "no address", "gopher://127.0.0.1/file"])
def test_an_address_that_leads_nowhere_is_one_line(address, tmp_path):
    with pytest.raises(ConnectionError, match=r"^file could not be downloaded \(.*\); put it in .* by hand$"):
        download.fetch({"file": [address]}, tmp_path, check=lambda path: None)
