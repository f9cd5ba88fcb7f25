"""Writes kjv.txt: the New Testament of the King James Version, from two Debian packages.

Invariant: plain ASCII, chapter headings and numbered verses wrapped at 79 columns as the package's reader prints them,
so that the same package version gives the same bytes. Needs `apt-get`, `dpkg-deb` and an amd64 Linux: the packaged
text is compressed in a format that only the packaged reader knows.
"""

import subprocess
import tempfile
from pathlib import Path

PACKAGES = ["bible-kjv-text=4.38", "bible-kjv=4.38"]
VERSES = "Mat1:1-Rev22:21"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True)
        root = Path(folder, "root")
        for package in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        reader = [root / "usr/bin/bible", "-p", root / "usr/lib", "-m", "8192", "-l79", VERSES]
        printed = subprocess.run(reader, check=True, capture_output=True).stdout.decode("ascii")
    target = Path(__file__).with_name("kjv.txt")
    target.write_text(printed.strip() + "\n", encoding="ascii", newline="\n")
    print(f"{target.name}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
