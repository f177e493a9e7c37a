"""This file knows how pictures become a film: a GIF or MP4 file, or an MP4 inside a page that needs no other file."""

import base64
import contextlib
import html
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image

from .render import Image

__all__ = ["InlineVideo", "save_video", "video_html"]


def save_video(path: str | os.PathLike[str], frames: Iterable[npt.ArrayLike], fps: float = 30.0, crf: int = 23) -> Path:
    """Write pictures as a film and return its path; ``.gif`` loops for ever, ``.mp4`` plays in every browser.

    The file appears complete or not at all: it is written beside its place and moved there. Missing folders are made.
    A GIF holds 255 colours and counts time in hundredths of a second, so its speed is the nearest that it can hold,
    at most 50 pictures a second; equal pictures in a row become one that stays longer. An MP4 has even sides; odd ones
    repeat their last row or column.

    Args:
        path: ends in ``.gif`` or ``.mp4``.
        frames: pictures [height, width, 3], uint8, all of one size; an array [T, height, width, 3] will do.
        fps: pictures a second.
        crf: quality of an MP4, 0 (no loss) to 51 (smallest).

    Raises:
        ValueError: no frames, a frame of another shape or type, another suffix, a speed that is not positive.
        ImportError: an MP4 needs imageio with ffmpeg; the message says how to get it.
    """
    target = Path(path)
    if target.suffix.lower() not in (".gif", ".mp4"):
        raise ValueError(f"{target.name} ends in {target.suffix!r}; a film ends in .gif or .mp4.")
    pictures = _checked(frames, fps, crf)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _beside(target) as partial:
        if target.suffix.lower() == ".gif":
            _write_gif(partial, pictures, fps)
        else:
            _write_mp4(partial, pictures, fps, crf)
    return target


@dataclass(frozen=True, eq=False)
class InlineVideo:
    """A film that displays itself in a notebook and on a page, and comes from nowhere else.

    Attributes:
        html: one ``<video>`` element with the film inside.
        alt: what the film shows, for readers who cannot see it.
        n_frames: its length.
    """

    html: str = field(repr=False)
    alt: str
    n_frames: int

    def _repr_html_(self) -> str:
        return self.html


def video_html(frames: Iterable[npt.ArrayLike], alt: str, fps: float = 30.0, crf: int = 25) -> InlineVideo:
    """Return pictures as a film for a chapter: it loops silently, with controls, and needs neither files nor network.

    The same pictures give the same bytes. A film of a task, 200 pictures of 320 x 320, takes 30 to 150 kB.

    Args:
        frames: pictures [height, width, 3], uint8, all of one size.
        alt: what the film shows, in words.
        fps: pictures a second.
        crf: 0 (no loss) to 51 (smallest).

    Raises:
        ValueError: as ``save_video``, or ``alt`` is empty.
        ImportError: imageio with ffmpeg is not installed.
    """
    if not alt.strip():
        raise ValueError("alt is empty; say in words what the film shows.")
    pictures = _checked(frames, fps, crf)
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / "film.mp4"
        _write_mp4(film, pictures, fps, crf)
        data = base64.b64encode(film.read_bytes()).decode()
    height, width = pictures[0].shape[:2]
    text = html.escape(alt, quote=True)
    element = (
        f'<video controls loop muted playsinline width="{width}" height="{height}" aria-label="{text}" title="{text}" '
        f'style="max-width:100%;height:auto;background:#fff" src="data:video/mp4;base64,{data}"></video>'
    )
    return InlineVideo(element, alt, len(pictures))


def _checked(frames: Iterable[npt.ArrayLike], fps: float, crf: int) -> list[Image]:
    """Return the frames as arrays, or say which one is wrong and how."""
    if not (np.isfinite(fps) and fps > 0):
        raise ValueError(f"fps is {fps}; give a positive number of pictures a second.")
    if not 0 <= crf <= 51:
        raise ValueError(f"crf is {crf}; it lies between 0 (no loss) and 51 (smallest).")
    pictures = [np.asarray(frame) for frame in frames]
    if not pictures:
        raise ValueError("there are no frames; a film has at least one.")
    for k, picture in enumerate(pictures):
        if picture.dtype != np.uint8:
            raise ValueError(f"frame {k} is {picture.dtype}; pictures are uint8, 0 to 255.")
        if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
            raise ValueError(f"frame {k} has shape {picture.shape}, expected [height, width, 3].")
        if picture.shape != pictures[0].shape:
            raise ValueError(f"frame {k} has shape {picture.shape}, frame 0 {pictures[0].shape}; a film has one size.")
    return pictures


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Give a path in the same folder; move it to the target if all goes well, remove it if not."""
    partial = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _write_gif(path: Path, pictures: list[Image], fps: float) -> None:
    """Write with one palette for all frames and no dithering, so that still ground is still, and small."""
    spread = pictures[:: max(1, len(pictures) // 12)]
    palette = PIL.Image.fromarray(np.concatenate(spread)).quantize(255)
    first, *rest = (
        PIL.Image.fromarray(picture).quantize(palette=palette, dither=PIL.Image.Dither.NONE) for picture in pictures
    )
    duration = 10 * max(2, round(100 / fps))  # browsers slow down films that are faster than 50 frames a second
    first.save(path, format="GIF", save_all=True, append_images=rest, duration=duration, loop=0)


def _write_mp4(path: Path, pictures: list[Image], fps: float, crf: int) -> None:
    try:
        import imageio_ffmpeg  # noqa: F401 - without it, imageio fails in words that do not help
        from imageio import v2 as imageio
    except ImportError as error:
        raise ImportError(f"an MP4 needs imageio with ffmpeg ({error}): pip install 'imageio[ffmpeg]'") from error
    height, width = pictures[0].shape[:2]
    margin = ((0, height % 2), (0, width % 2), (0, 0))
    # yuv420p: what browsers play. One thread, no version string: the same pictures give the same bytes.
    options = ["-crf", str(crf), "-preset", "slow", "-threads", "1", "-movflags", "+faststart", "-fflags", "+bitexact"]
    options += ["-flags:v", "+bitexact", "-map_metadata", "-1"]
    writer: Any
    with imageio.get_writer(
        path,
        format="FFMPEG",
        fps=fps,
        codec="libx264",
        pixelformat="yuv420p",
        macro_block_size=1,
        quality=None,
        ffmpeg_params=options,
    ) as writer:
        for picture in pictures:
            writer.append_data(np.pad(picture, margin, mode="edge"))
