"""Writes a wheel that holds one program: PEP 427, with the parts that the program is made of as CycloneDX (PEP 770).

    pack.py BINARY OUT GLIBC-MINOR CARGO-METADATA

GLIBC-MINOR: the newest 2.x that the binary asks for; empty for a static one. Two wheels of one binary are equal.
"""

import base64
import hashlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
import zipfile

BINARY, OUT, GLIBC, METADATA = sys.argv[1:]
# The oldest glibc for which pip knows a name with numbers: manylinux2014.
OLDEST_GLIBC = 17
ROOT = pathlib.Path(__file__).resolve().parents[2]
DESCRIPTION = """The program `grapevine`: a leaderless router cluster for vLLM.

    pip install grapevine-router
    grapevine serve --worker-urls http://10.0.0.5:8000 http://10.0.0.6:8000

There is no Python in it. The flags of vllm-router are served, or refused with what to use instead.
"""


def parts(metadata):
    """All packages that the program is linked from, itself first."""
    packages = {one["id"]: one for one in metadata["packages"]}
    nodes = {one["id"]: one for one in metadata["resolve"]["nodes"]}
    root = next(one["id"] for one in metadata["packages"] if one["name"] == "grapevine")
    seen, open_ = {root}, [root]
    while open_:
        for dependency in nodes[open_.pop()]["deps"]:
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_linked and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                open_.append(dependency["pkg"])
    rest = sorted(seen - {root}, key=lambda one: (packages[one]["name"], packages[one]["version"]))
    return [packages[one] for one in (root, *rest)]


def component(package, kind):
    url = f"pkg:cargo/{package['name']}@{package['version']}"
    licence = package["license"]
    found = {"type": kind, "name": package["name"], "version": package["version"], "purl": url, "bom-ref": url}
    if licence:
        found["licenses"] = [{"expression": licence.replace("/", " OR ")}]
    return found


def bill_of_materials(metadata):
    program, *rest = parts(metadata)
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(program, "application")},
        "components": [component(one, "library") for one in rest],
    }
    return json.dumps(bom, indent=1).encode()


def main():
    program = pathlib.Path(BINARY).read_bytes()
    version = subprocess.run([BINARY, "-V"], check=True, capture_output=True, text=True).stdout.split()[1]
    minor = max(int(GLIBC or 0), OLDEST_GLIBC)
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}"]
    if minor == OLDEST_GLIBC:
        tags.append(f"manylinux2014_{machine}")
    name = f"grapevine_router-{version}"
    info = f"{name}.dist-info"
    tag_lines = "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    files = {
        f"{name}.data/scripts/grapevine": program,
        f"{info}/licenses/LICENSE-MIT": (ROOT / "LICENSE-MIT").read_bytes(),
        f"{info}/licenses/LICENSE-APACHE": (ROOT / "LICENSE-APACHE").read_bytes(),
        f"{info}/sboms/grapevine.cyclonedx.json": bill_of_materials(json.loads(pathlib.Path(METADATA).read_bytes())),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.4\nName: grapevine-router\nVersion: {version}\n"
            "Summary: Leaderless router cluster for vLLM\nLicense-Expression: MIT OR Apache-2.0\n"
            "License-File: LICENSE-MIT\nLicense-File: LICENSE-APACHE\nRequires-Python: >=3.8\n"
            f"Description-Content-Type: text/markdown\n\n{DESCRIPTION}"
        ).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: grapevine\nRoot-Is-Purelib: false\n{tag_lines}".encode(),
    }
    record = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = ("".join(record) + f"{info}/RECORD,,\n").encode()

    # 1980 is the earliest that a zip archive can name.
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315_532_800))[:6]
    wheel = pathlib.Path(OUT) / f"{name}-py3-none-{'.'.join(tags)}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, date)
            is_program = content is program
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    print(wheel)


main()
