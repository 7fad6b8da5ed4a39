#!/usr/bin/env python3
"""Packs a folder of modules as a wheel (PEP 427): the same files make the same bytes."""

import argparse
import base64
import hashlib
import os
import time
import zipfile


def files_of(folder):
    """Paths below the folder, sorted."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if not name.endswith(".pyc"):
                yield os.path.join(root, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("package", "version", "platform", "licence", "readme", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--epoch", type=int, required=True, help="time of all files, in seconds since 1970")
    of = parser.parse_args()

    tag = f"py3-none-{of.platform}"
    info = f"lodestone-{of.version}.dist-info"
    with open(of.readme, encoding="utf-8") as file:
        readme = file.read()
    texts = {
        f"{info}/METADATA": "\n".join([
            "Metadata-Version: 2.1", "Name: lodestone", f"Version: {of.version}",
            "Summary: Train with parameters on a cluster of Lodestone's parameter servers", "Requires-Python: >=3.9",
            "Requires-Dist: numpy >=1.19", "Description-Content-Type: text/markdown", "", readme]),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: lodestone\nRoot-Is-Purelib: false\nTag: {tag}\n",
        f"{info}/LICENSE": open(of.licence, encoding="utf-8").read(),
    }
    # A zip's times begin in 1980.
    moment = time.gmtime(max(of.epoch, 315532800))[:6]
    record = []
    path = os.path.join(of.out, f"lodestone-{of.version}-{tag}.whl")
    with zipfile.ZipFile(path + ".tmp", "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")

        parent = os.path.dirname(os.path.abspath(of.package))
        for source in files_of(os.path.abspath(of.package)):
            with open(source, "rb") as file:
                add(os.path.relpath(source, parent), file.read(), 0o755 if os.access(source, os.X_OK) else 0o644)
        for name, text in texts.items():
            add(name, text.encode(), 0o644)
        record.append(f"{info}/RECORD,,")
        entry = zipfile.ZipInfo(f"{info}/RECORD", moment)
        entry.external_attr = 0o100644 << 16
        wheel.writestr(entry, "\n".join(record) + "\n")
    os.replace(path + ".tmp", path)
    print(f"tools/wheel: {path}")


if __name__ == "__main__":
    main()
