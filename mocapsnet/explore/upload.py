"""A picture from somebody else's bytes: what it is and how large is checked before anything is decoded."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mocapsnet.data.folder import to_pixels
from mocapsnet.errors import BrokenFile, WrongArgument

BYTES = 5_000_000
PIXELS = 24_000_000
SCANS = 100
"""Passes of a JPEG over its pixels; cameras and editors make ten, and each costs time."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
START_OF_SCAN = b"\xff\xda"


def read_upload(content: bytes, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The uploaded picture in a shape, uint8 [C,H,W]; nothing touches the disk."""
    C, H, W = shape
    if C not in (1, 3):
        raise WrongArgument(f"pictures have 1 or 3 channels; this network takes {C}")
    if not content:
        raise WrongArgument("the upload is empty; send the bytes of one picture")
    try:
        with warnings.catch_warnings():
            # Pillow warns of what is refused below.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise WrongArgument(f"the picture has more than {PIXELS:,} pixels; make it smaller") from error
    except Exception as error:
        raise WrongArgument(f"this is no picture; send one of {', '.join(FORMATS)}") from error
    with opened:
        width, height = opened.size
        if width * height > PIXELS:
            raise WrongArgument(
                f"the picture has {width} x {height} pixels, more than {PIXELS:,}; make it smaller"
            )
        if opened.format == "JPEG" and content.count(START_OF_SCAN) > SCANS:
            raise WrongArgument(f"the picture is a JPEG of more than {SCANS} scans; save it again")
        try:
            return to_pixels(opened, (W, H), "L" if C == 1 else "RGB")
        except BrokenFile as error:
            raise WrongArgument(f"the picture {error}") from error
        # Decoders raise whatever they like on broken bytes.
        except Exception as error:
            raise WrongArgument("the picture is cut off or broken; save it again") from error
