"""Requests nobody should send: each gets its 4xx, and the server goes on, in bounded memory."""

import io
import json
import pickle
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image
from server import serving

PATIENCE = 2.0


@pytest.fixture(scope="module")
def server(runs):
    with serving(runs / "momentum", patience=PATIENCE) as server:
        assert server.ask("api/see", {"index": 0, "inside": True})[0] == 200
        yield server


@pytest.fixture(autouse=True)
def alive(server):
    yield
    status, told = server.ask("api/see", {"index": 0})
    assert (status, len(told["lengths"])) == (200, 4)


def png(width: int, height: int, rows: bytes | None = None) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    rows = b"\0" * (1 + (width + 7) // 8) * height if rows is None else rows
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def saved(kind: str, size: tuple[int, int] = (40, 30)) -> bytes:
    content = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(content, kind)
    return content.getvalue()


def raw(server, request: bytes, wait: float = 30) -> bytes:
    """What comes back on a connection of our own."""
    with server.connect() as connection:
        connection.settimeout(wait)
        connection.sendall(request)
        return connection.recv(65536)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_picture_comes_back_in_the_network_s_shape(server, kind):
    status, pixels = server.ask("api/upload", content=saved(kind))
    assert (status, len(pixels)) == (200, 3 * 9 * 11)
    assert len(set(pixels)) > 10


def many_scans(count: int) -> bytes:
    """A JPEG whose last words are scans that say nothing, each of which is a pass over all its pixels."""
    content = io.BytesIO()
    Image.new("L", (4_000, 4_000)).save(content, "JPEG", progressive=True)
    end = content.getvalue().rindex(b"\xff\xd9")
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x00\x00\x00"
    return content.getvalue()[:end] + count * scan + content.getvalue()[end:]


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_the_largest_picture_that_is_let_in_leaves_memory_bounded(server, mode):
    content = io.BytesIO()
    Image.new(mode, (6_000, 4_000), (1, 2, 3, 4)[: len(mode)]).save(content, "PNG", compress_level=1)
    before = server.peak_memory()
    assert server.ask("api/upload", content=content.getvalue())[0] == 200
    assert server.peak_memory() - before < 12 * 24_000_000


BOMB = png(20_000, 20_000)
UPLOADS = {
    "truncated png": saved("PNG")[:700],
    "truncated jpeg": saved("JPEG")[:400],
    "header alone": saved("PNG")[:40],
    "empty": b"",
    "400 megapixels": BOMB,
    "2 gigapixels, no rows": png(65_000, 32_000, b""),
    "24 megapixels and one row": png(6_000, 4_001),
    "jpeg of 50,000 scans": many_scans(50_000),
    "text": b"no picture at all",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
    "pickle": pickle.dumps({"a": 1}),
    "tiff, which nobody asked for": saved("TIFF"),
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run",
}


@pytest.mark.parametrize("name", UPLOADS)
def test_a_hostile_upload_is_refused_in_bounded_memory(server, name):
    before = server.peak_memory()
    status, told = server.ask("api/upload", content=UPLOADS[name])
    assert status == 400
    assert "picture" in told["error"] or "upload" in told["error"]
    assert server.peak_memory() - before < 30e6


def test_a_bomb_is_refused_before_it_is_decoded(server):
    assert len(BOMB) < 100_000
    started = time.monotonic()
    assert "24,000,000 pixels" in server.ask("api/upload", content=BOMB)[1]["error"]
    # To inflate its 50 megabytes of rows takes longer.
    assert time.monotonic() - started < 1


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(server):
    assert server.ask("api/upload", content=many_scans(10))[0] == 200
    started = time.monotonic()
    assert "more than 100 scans" in server.ask("api/upload", content=many_scans(50_000))[1]["error"]
    # To decode it takes a minute of the one thread that answers.
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_a_body_of_100_megabytes_is_refused_while_it_arrives(server, declared):
    before = server.peak_memory()
    piece = b"x" * 1_000_000
    with server.connect() as connection:
        how = b"content-length: 100000000" if declared else b"transfer-encoding: chunked"
        connection.sendall(b"POST /api/upload HTTP/1.1\r\nhost: localhost\r\n" + how + b"\r\n\r\n")
        for _ in range(100):
            connection.sendall(piece if declared else b"f4240\r\n" + piece + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert server.peak_memory() - before < 30e6


@pytest.mark.parametrize("length", [b"-1", b"1e9", b"99999999999999999999", b"x"])
def test_a_length_that_cannot_be_is_refused(server, length):
    answer = raw(
        server, b"POST /api/upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + length + b"\r\n\r\n"
    )
    assert answer.split()[1] in (b"400", b"413")


def test_a_slow_body_is_given_up(server):
    started = time.monotonic()
    with server.connect() as connection:
        connection.sendall(b"POST /api/upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\nx")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")
    assert PATIENCE <= time.monotonic() - started < PATIENCE + 3


@pytest.mark.parametrize(
    "first", [b"", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"], ids=["first", "second"]
)
def test_a_dripping_head_is_given_up(server, first):
    with server.connect() as connection:
        connection.sendall(first)
        started = time.monotonic()
        connection.settimeout(0.2)
        while time.monotonic() - started < PATIENCE + 3:
            try:
                connection.sendall(b"G")
                if connection.recv(65536) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() - started < PATIENCE + 2


def test_a_request_that_breaks_off_leaves_no_trace(server):
    for _ in range(20):
        with server.connect() as connection:
            connection.sendall(b"POST /api/see HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_200_requests_at_once_are_all_answered(server):
    def ask(n: int) -> int:
        return server.ask("api/see", {"index": n % 50, "inside": True})[0]

    before = server.peak_memory()
    with ThreadPoolExecutor(200) as threads:
        statuses = list(threads.map(ask, range(200)))
    assert len(statuses) == 200
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 64
    assert server.peak_memory() - before < 100e6


def test_100_uploads_at_once_leave_memory_bounded(server):
    def upload(_: int) -> bytes:
        with server.connect() as connection:
            connection.sendall(
                b"POST /api/upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4900000\r\n\r\n"
            )
            try:
                connection.sendall(b"x" * 4_900_000)
                return connection.recv(65536).split()[1]
            # Refused before all of it was sent.
            except ConnectionError:
                return b"503"

    before = server.peak_memory()
    with ThreadPoolExecutor(100) as threads:
        statuses = list(threads.map(upload, range(100)))
    assert set(statuses) <= {b"400", b"503"}
    assert statuses.count(b"400") >= 8
    assert server.peak_memory() - before < 150e6


SEE = {"index": 0}
CAPSULE = {"class": 0, "capsule": [0.0] * 5}
WRONG = {
    "no JSON": ("see", b"{"),
    "a list": ("see", b"[]"),
    "a number": ("see", b"3"),
    "not UTF-8": ("see", b'{"index": "\xff"}'),
    "deep": ("see", b"[" * 50_000 + b"]" * 50_000),
    "a number of 5,000 digits": ("see", b'{"index": ' + b"9" * 5000 + b"}"),
    "nothing to see": ("see", {}),
    "an index too far": ("see", {"index": 50}),
    "an index below": ("see", {"index": -1}),
    "an index that is no number": ("see", {"index": "0"}),
    "a true index": ("see", {"index": True}),
    "pixels of another shape": ("see", {"pixels": "AAAA"}),
    "pixels that are no base64": ("see", {"pixels": "é!"}),
    "pixels that are no text": ("see", {"pixels": [1, 2]}),
    "a run too far": ("see", SEE | {"run": 1}),
    "a run that is none": ("see", SEE | {"run": "../momentum"}),
    "a view that is none": ("see", SEE | {"view": 3}),
    "a view of something else": ("see", SEE | {"view": {"__class__": 1}}),
    "a turn too far": ("see", SEE | {"view": {"turn": 1e9}}),
    "a turn of NaN": ("see", SEE | {"view": {"turn": float("nan")}}),
    "a scale of zero": ("see", SEE | {"view": {"scale": 0}}),
    "a scale that is no number": ("see", SEE | {"view": {"scale": "2"}}),
    "a mirror that is a number": ("see", SEE | {"view": {"mirror": 1}}),
    "a sweep of nothing": ("sweep", SEE | {"of": "mirror"}),
    "a class too far": ("reconstruct", CAPSULE | {"class": 4}),
    "a class that is none": ("reconstruct", CAPSULE | {"class": None}),
    "a capsule too short": ("reconstruct", CAPSULE | {"capsule": [0.0]}),
    "a capsule of words": ("reconstruct", CAPSULE | {"capsule": ["0"] * 5}),
    "a capsule of NaN": ("reconstruct", CAPSULE | {"capsule": [float("nan")] * 5}),
    "a capsule of large numbers": ("reconstruct", CAPSULE | {"capsule": [10**400] * 5}),
    "a span of zero": ("sheet", CAPSULE | {"span": 0}),
    "a span too wide": ("sheet", CAPSULE | {"span": 2}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_question_is_a_clear_400(server, name):
    path, content = WRONG[name]
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    status, told = server.ask(f"api/{path}", content=content, **{"content-type": "application/json"})
    assert status == 400
    assert set(told) == {"error"}
    assert len(told["error"]) > 10


@pytest.mark.parametrize(
    "query", ["label=x", "start=-1", "which=all", "run=9", "start=" + "9" * 30, "label=%00"]
)
def test_a_wrong_query_is_a_clear_400(server, query):
    status, told = server.ask(f"api/grid?{query}")
    assert (status, set(told)) == (400, {"error"})


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nothing.html", 404),
        ("api/nothing", 404),
        ("../momentum/run.json", 404),
        ("..%2f..%2fetc%2fpasswd", 404),
        ("app.py", 404),
        ("api/see", 405),
    ],
)
def test_what_is_not_there_is_not_there(server, path, status):
    assert server.ask(path)[0] == status


def test_only_this_page_may_ask(server):
    assert server.ask("api/about", host="evil.example")[0] == 400
    assert server.ask("api/about", origin="http://evil.example")[0] == 403
    assert server.ask("api/about", origin="null")[0] == 403
    assert server.ask("api/about", host="localhost:1", origin="http://localhost:1")[0] == 200
    assert server.ask("api/see", content=b"{}", **{"content-type": "text/plain"})[0] == 415


def test_a_question_of_many_bytes_is_refused(server):
    content = json.dumps({"index": 0, "more": "x" * 200_000}).encode()
    assert server.ask("api/see", content=content, **{"content-type": "application/json"})[0] == 413


def test_every_answer_has_the_strict_headers(server):
    for path in (b"/", b"/api/about", b"/nothing", b"/api/see"):
        answer = raw(server, b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n\r\n").lower()
        assert b"content-security-policy: default-src 'none'; script-src 'self';" in answer
        assert b"x-content-type-options: nosniff" in answer
        assert b"server: " not in answer
