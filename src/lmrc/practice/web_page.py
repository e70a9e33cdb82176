"""``lmrc export --web``: a model as a web page that runs in the browser alone.

All is in scripts, also the model and the runtime, as base64: browsers load those from a folder on
disk, too, and no web server has to know the types of other files.
"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from lmrc.cache_folder import cache_folder
from lmrc.practice.export import convert
from lmrc.practice.usage import Say, UsageError, count, format_bytes
from lmrc.store.files import write_atomically

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
INTEGRITY = (  # SHA-512 of the package, as npm states it
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
)
SCRIPT, GLUE, WASM = "ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"
NPM_SECONDS = 600
#: The page's modules, each after those that it imports: of `lmrc serve`, and its own.
MODULES = ("dom.js", "pictures.js", "classify.js", "pixels.js", "start.js")
#: Licences of ONNX Runtime; the npm package does not contain them.
LICENCES = ("LICENSE", "ThirdPartyNotices.txt")
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def export_page(path: Path, out: Path, package: Path | None = None, *, say: Say = print) -> None:
    """Write a model as a web page, after comparing its outputs with those of the model.

    `package` is the folder of the npm package onnxruntime-web; None: from the cache, or fetched by
    npm.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: name a folder for the web page")
    model, content = convert(path, out)  # before a download that a model may have no use for
    runtime = _read_package(package) if package else _fetched_package(say)
    files = {**_page_files(), **runtime, **_licences()}
    files["model.js"] = _script("MODEL", describe(path.absolute().name, content))
    out.mkdir(parents=True, exist_ok=True)
    for name, of_file in files.items():
        write_atomically(out / name, of_file)
    size = format_bytes(sum(map(len, files.values())))
    classes = count(len(model.classes_), "class", "classes")
    say(f"{out}: {size}, {classes}; open {out / 'index.html'} in a browser")


def describe(name: str, content: bytes) -> dict[str, Any]:
    """Return what the page needs to know of a model, of which `content` is the ONNX file."""
    import onnx

    about = {p.key: p.value for p in onnx.load_from_string(content).metadata_props}
    threshold = about.get("unknown_threshold")
    return {
        "name": name.removesuffix(".lmrc"),
        "classes": json.loads(about["classes"]),
        **{side: int(about[side]) for side in ("height", "width", "channels")},
        "unknown_threshold": None if threshold is None else float(threshold),
        "onnx": base64.b64encode(content).decode(),
    }


def _script(name: str, value: dict[str, Any]) -> bytes:
    """Return a script that sets a global."""
    return f"const {name} = {json.dumps(value)};\n".encode()


def _page_files() -> dict[str, bytes]:
    """Return the files of the page: its modules are one script, which may be loaded from a file."""
    package = resources.files("lmrc")
    folders = package / "practice" / "web", package / "serve" / "page"

    def read(name: str) -> str:
        files = (folder / name for folder in folders)
        return next(file for file in files if file.is_file()).read_text(encoding="utf-8")

    modules = [_EXPORT.sub("", _IMPORT.sub("", read(name))) for name in MODULES]
    script = "(() => {\n" + "\n".join(modules) + "})();\n"
    files = {name: read(name).encode() for name in ("index.html", "style.css", "icon.svg")}
    return {**files, "app.js": script.encode()}


def _licences() -> dict[str, bytes]:
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent
    found = {name: folder / name for name in LICENCES}
    return {
        f"{Path(name).stem}-onnxruntime.txt": file.read_bytes()
        for name, file in found.items()
        if file.exists()
    }


def _read_package(folder: Path) -> dict[str, bytes]:
    """Return the files of onnxruntime-web that the page needs, from its folder."""
    place = folder if (folder / SCRIPT).exists() else folder / "dist"
    missing = [name for name in (SCRIPT, GLUE, WASM) if not (place / name).is_file()]
    if missing:
        raise UsageError(
            f"{folder} is not the npm package {PACKAGE}: {missing[0]} is not in it, nor in dist/"
        )
    glue, wasm = ((place / name).read_bytes() for name in (GLUE, WASM))
    content = {"mjs": base64.b64encode(glue).decode(), "wasm": base64.b64encode(wasm).decode()}
    return {SCRIPT: (place / SCRIPT).read_bytes(), "runtime.js": _script("RUNTIME", content)}


def _fetched_package(say: Say) -> dict[str, bytes]:
    """Return the files of onnxruntime-web from the cache; npm fetches them the first time."""
    kept = cache_folder() / f"{PACKAGE}-{VERSION}"
    if not kept.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise UsageError(
                f"--web needs the npm package {PACKAGE}, and npm is not installed: install it, or "
                "give the package's folder with --onnxruntime-web"
            )
        say(f"fetching {PACKAGE} {VERSION} by npm (33 MB), once")
        _fetch(npm, kept)
    return _read_package(kept)


def _fetch(npm: str, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as place:
        command = [npm, "pack", "--silent", f"{PACKAGE}@{VERSION}"]
        try:
            done = subprocess.run(
                command, cwd=place, capture_output=True, text=True, timeout=NPM_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"npm pack took more than {NPM_SECONDS} s") from error
        packed = list(Path(place).glob("*.tgz"))
        if done.returncode or len(packed) != 1:
            reason = (done.stderr.strip().splitlines() or ["no file"])[-1]
            raise OSError(
                f"npm cannot fetch {PACKAGE}@{VERSION}: {reason}; give its folder with "
                "--onnxruntime-web"
            )
        digest = hashlib.sha512(packed[0].read_bytes()).digest()
        if base64.b64encode(digest).decode() != INTEGRITY:
            raise OSError(f"what npm fetched as {PACKAGE}@{VERSION} has another checksum than it")
        unpacked = Path(place, "unpacked")
        unpacked.mkdir()
        with tarfile.open(packed[0]) as archive:
            for name in (SCRIPT, GLUE, WASM):
                file = archive.extractfile(f"package/dist/{name}")
                assert file is not None
                (unpacked / name).write_bytes(file.read())
        try:
            unpacked.rename(kept)
        except OSError:
            if not kept.exists():  # another process was faster
                raise
