"""Pictures of the viewer and of Flower for docs/pictures: few colours, so that they are small."""

import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

COLOURS = 48
MOST_BYTES = 90_000


def take(page: Page, folder: Path, name: str, *, height: int | None = None) -> None:
    """Takes a picture of what is in view, or of so many pixels of it; the name is without `.png`."""
    size = page.viewport_size
    assert size is not None
    clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"]}
    with Image.open(io.BytesIO(page.screenshot(clip=clip))) as shot:  # type: ignore[arg-type]
        small = shot.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    file = folder / f"{name}.png"
    small.save(file, optimize=True)
    assert file.stat().st_size < MOST_BYTES, f"{file} has {file.stat().st_size:,} bytes"
