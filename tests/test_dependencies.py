"""What a hospital's processes load is what docs/dependencies.md says; and pins, hashes and extras agree."""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
LOADED = """
import sys, importlib.metadata
owners = importlib.metadata.packages_distributions()
tops = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
print("LOADED", *sorted({owner for top in tops for owner in owners.get(top, ())} - {"concilium"}))
"""
PROCESSES = {
    "site": """
import concilium as cc
with open("records.csv", "w") as file:
    file.write("age,sex,death\\n")
    file.writelines(f"{30 + n % 50},{'fm'[n % 2]},{('no', 'yes')[n % 3 > 0]}\\n" for n in range(300))
for release in ("exact", "masked"):
    sites = [
        cc.Site(name, cc.Records.read("records.csv"), ledger=f"{release}-{name}.ledger")
        for name in ("north", "south", "coast")
    ]
    cc.DecisionTree("death", release=release, max_depth=2, bins={"age": [40, 60]}).fit(cc.House(sites))
from concilium.privacy.mechanisms import add_laplace
add_laplace([5], epsilon=1e-6)
""",
    "gateway": """
import http.client, threading
from concilium import policy
from concilium.console.gateway import Gateway, _make_server, _WebApp, listen
from concilium.console.mllp import MllpChannel
gateway = Gateway(policy.parse("graph N { node x + eliminate x.name; }"))
MllpChannel(gateway, "127.0.0.1", 1)
server = _make_server(_WebApp(gateway))
with listen("127.0.0.1", 0, "--port") as listener:
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    web = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1])
    for body in (b'{"nodes": []}', rb"MSH|^~\\&|A|B|C|D|2020||ORU^R01|7|P|2.5"):
        web.request("POST", "/transactions", body)
        reply = web.getresponse()
        assert reply.status == 200, reply.read()
        reply.read()
    web.close()
    server.should_exit = server.force_exit = True
    thread.join()
""",
    "console": """
import asyncio, pathlib
from concilium.console.access import UserBook
from concilium.console.gateway import make_server
from concilium.console.serving import make_console
UserBook(pathlib.Path(".console/users.json")).add("A", ["viewer"], "a long password")
app, _ = make_console(pathlib.Path("."), host="127.0.0.1")
make_server(app, app.connections, "the console")
replies = []
async def receive():
    return {"type": "http.request", "body": b"name=A&password=a+long+password", "more_body": False}
async def send(message):
    replies.append(message)
headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/x-www-form-urlencoded")]
scope = {"type": "http", "method": "POST", "path": "/login", "query_string": b"", "client": ("127.0.0.1", 1)}
asyncio.run(app({**scope, "headers": headers}, receive, send))
assert replies[0]["status"] == 303, replies
""",
    "FLARE site": "from concilium.transports.flare import launcher, site_job, starting; site_job.rehearse()",
}


def read_tool() -> Any:
    """The file that makes hashes.txt, as a module."""
    spec = importlib.util.spec_from_file_location("hashes", ROOT / ".ci" / "hashes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HASHES = read_tool()
LOCKED = (ROOT / "hashes.txt").read_text(encoding="utf-8")


def read_table() -> dict[str, set[str]]:
    """By package, the processes that load it."""
    rows = re.findall(r"^\| ([\w.-]+) \| ([\w, ]+) \| [^|]{8,120} \|$", PAGE, flags=re.MULTILINE)
    return {name: set(processes.split(", ")) for name, processes in rows if name != "package"}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_loads_what_the_page_says(process: str, tmp_path: Path) -> None:
    needs = HASHES.find_needs() | {"concilium"}
    absent = [
        top
        for top, owners in metadata.packages_distributions().items()
        if needs.isdisjoint(map(canonicalize_name, owners))
    ]
    # What only tests need is not installed at a hospital, where some packages look for it.
    without = f"import sys\nsys.modules.update(dict.fromkeys({absent!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", without + PROCESSES[process] + LOADED],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    loaded = {canonicalize_name(name) for name in done.stdout.splitlines()[-1].split()[1:]}
    stated = {canonicalize_name(name) for name, processes in read_table().items() if process in processes}
    assert sorted(loaded) == sorted(stated)


def test_every_row_is_a_package_of_ours() -> None:
    assert {canonicalize_name(name) for name in read_table()} <= HASHES.find_needs()


def test_hashes_are_of_what_is_pinned() -> None:
    pins = HASHES.read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    locked = HASHES.read_pins(LOCKED)
    assert locked.keys() == HASHES.find_needs() | HASHES.find_build_needs()
    assert locked == {name: pins[name] for name in locked}
    for block in re.split(r"\n(?=\w)", LOCKED)[1:]:
        assert re.fullmatch(r"[\w.-]+==\S+(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n?", block), block[:80]


def test_no_file_of_pins_names_an_address() -> None:
    for name in ("constraints.txt", "hashes.txt", "Makefile", ".ci/hashes.py"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(
            r"https?:|[a-z]\.(?:org|com|net|io)\b|--(?:extra-)?index-url|--find-links", text
        ), name


def test_files_of_other_versions_and_platforms_are_left_out() -> None:
    files = {
        "one-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": True,
        "one-1.0-cp39-abi3-win_amd64.whl": True,
        "one-1.0-py3-none-any.whl": True,
        "one-1.0-cp311-cp311-musllinux_1_2_x86_64.whl": False,
        "one-1.0-cp313-cp313t-win_amd64.whl": False,
        "one-1.0-pp310-pypy310_pp73-win_amd64.whl": False,
        "one-1.1-py3-none-any.whl": False,
        "one-1.0.tar.gz": False,
    }
    digests = {name: f"{number:064x}" for number, name in enumerate(files)}
    page = "".join(f'<a href="../{name}#sha256={digest}">' for name, digest in digests.items())
    assert HASHES.find_hashes(page, "1.0") == [digests[name] for name, kept in files.items() if kept]
    source = f'<a href="../one-1.0.tar.gz#sha256={"a" * 64}">'
    assert HASHES.find_hashes(source, "1.0") == ["a" * 64]
