"""Screenshots of a report in a browser: narrow and wide, light and dark. Needs Chromium.

  rljax report runs/ --output report.html
  python scripts/results/screenshot_report.py report.html --out pictures

The script fails if a page is wider than the window.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

WIDTHS, SCHEMES = (390, 1440), ("light", "dark")
# A page in a frame, because Chromium's windows cannot be as narrow as a phone.
FRAME = """<!doctype html><style>body {{ margin: 0 }} iframe {{ border: 0; display: block }}</style>
<iframe src="{page}" width="{width}" height="{height}"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const root = frame.contentDocument.documentElement;
  document.title = `${{root.scrollWidth}}x${{root.scrollHeight}}`;
}};
</script>
"""


def chromium() -> str | None:
    """The browser's command; None if no browser is installed."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


def _open(folder: Path, page: Path, width: int, height: int, scheme: str, *options: str) -> str:
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(page=page.resolve().as_uri(), width=width, height=height))
    browser = chromium()
    if browser is None:
        raise SystemExit("there is no Chromium. Install it: apt-get install chromium")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}"]
    command += [
        f"--window-size={max(width, 600)},{height}",
        f"--blink-settings=preferredColorScheme={scheme == 'light':d}",
    ]
    done = subprocess.run(
        [*command, *options, frame.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def size(page: Path, width: int) -> tuple[int, int]:
    """Width and height of a page in pixels, in a window of the given width."""
    with tempfile.TemporaryDirectory() as folder:
        text = _open(
            Path(folder), page, width, 800, "light", "--dump-dom", "--virtual-time-budget=2000"
        )
    match = re.search(r"<title>(\d+)x(\d+)</title>", text)
    if match is None:
        raise SystemExit(f"'{page}' did not open in Chromium.")
    return int(match[1]), int(match[2])


def picture(page: Path, width: int, height: int, scheme: str, output: Path) -> None:
    """Write a screenshot of the whole page."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        _open(
            Path(folder),
            page,
            width,
            height,
            scheme,
            f"--screenshot={shot}",
            "--virtual-time-budget=2000",
        )
        Image.open(shot).crop((0, 0, width, height)).save(output)


def main() -> None:
    """Write one picture for each width and colour scheme."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        wide, high = size(arguments.page, width)
        if wide > width:
            raise SystemExit(f"'{arguments.page}' is {wide} pixels wide in a window of {width}.")
        for scheme in SCHEMES:
            output = arguments.out / f"{arguments.page.stem}-{width}-{scheme}.png"
            picture(arguments.page, width, high, scheme, output)
            print(output)


if __name__ == "__main__":
    main()
