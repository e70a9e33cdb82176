"""``lmrc export --web``: a model as a web page that runs in the browser alone.

Everything is a script, the model and the runtime too, as base64: browsers load scripts from a
folder on disk, and web servers know their type.
"""

import base64
import json
import re
import tarfile
from importlib import resources
from pathlib import Path
from typing import Any

from lmrc.cache_folder import cache_folder
from lmrc.practice.export import convert
from lmrc.practice.usage import Say, UsageError, count, format_bytes
from lmrc.store.files import write_atomically

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
URL = f"https://registry.npmjs.org/{PACKAGE}/-/{PACKAGE}-{VERSION}.tgz"
CHECKSUM = (
    "sha512:ab4cbe26baedba45d2cec05610c71c55fa97db92d19a8b171c5f8269126683ca"
    "590a5cdc57bb2f35ce2b298de32f4d956fb42644c0ecd528a0a91e025c07ca61"
)
SCRIPT, GLUE, WASM = "ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"
#: The page's modules, each after those it imports: of `lmrc serve`, and its own.
MODULES = ("dom.js", "pictures.js", "classify.js", "pixels.js", "start.js")
#: Licences of ONNX Runtime; the npm package does not contain them.
LICENCES = ("LICENSE", "ThirdPartyNotices.txt")
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def export_page(path: Path, out: Path, package: Path | None = None, *, say: Say = print) -> None:
    """Write a model as a web page, after comparing its outputs with those of the model.

    `package` is the folder of the npm package onnxruntime-web; None downloads it once.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: name a folder for the web page")
    model, content = convert(path, out)  # before a download that a model may have no use for
    files = {**_page_files(), **_package(package, say), **_licences()}
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


def _package(folder: Path | None, say: Say) -> dict[str, bytes]:
    """Return the files of onnxruntime-web: from its folder, or from the cache, downloaded once."""
    if folder is not None:
        place = folder if (folder / SCRIPT).exists() else folder / "dist"
        missing = [name for name in (SCRIPT, GLUE, WASM) if not (place / name).is_file()]
        if missing:
            raise UsageError(
                f"{folder} is not the npm package {PACKAGE}: neither it nor its "
                f"folder dist/ has {missing[0]}"
            )
        content = {name: (place / name).read_bytes() for name in (SCRIPT, GLUE, WASM)}
    else:
        with tarfile.open(_archive(say)) as archive:
            content = {
                name: archive.extractfile(f"package/dist/{name}").read()  # type: ignore[union-attr]
                for name in (SCRIPT, GLUE, WASM)
            }
    runtime = {
        kind: base64.b64encode(content[name]).decode()
        for kind, name in (("mjs", GLUE), ("wasm", WASM))
    }
    return {SCRIPT: content[SCRIPT], "runtime.js": _script("RUNTIME", runtime)}


def _archive(say: Say) -> str:
    """Return the path of the npm package in the cache; it is downloaded if it is not there."""
    import pooch

    folder, name = cache_folder(), URL.rpartition("/")[2]
    if not (folder / name).exists():
        say(f"downloading {PACKAGE} {VERSION} (33 MB), once")
    pooch.get_logger().setLevel("WARNING")
    try:
        return str(pooch.retrieve(URL, CHECKSUM, name, folder))
    except (OSError, ValueError) as error:  # no network, or another checksum
        raise OSError(
            f"cannot download {URL}: {error}; give the folder of the npm package {PACKAGE} with "
            "--onnxruntime-web"
        ) from error
