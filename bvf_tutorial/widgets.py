"""This file knows how a picture moves: a slider that works on a page with no kernel, and its live counterpart.

The published page has no Python behind it, so ``frame_slider`` draws every frame in advance and ships them inside one
self-contained piece of HTML: no script, style or image comes from elsewhere, and the same input gives the same bytes.
"""

import base64
import functools
import hashlib
import html
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

__all__ = ["FrameSlider", "explorer", "frame_slider"]


class FrameSlider:
    """Precomputed frames with a slider and a play button; displays itself in a notebook and on a page.

    Attributes:
        frames: PNG bytes, one per position.
        labels: text beside the slider, one per position.
        alt: what the picture shows, for readers who cannot see it.
    """

    def __init__(self, frames: Sequence[bytes], labels: Sequence[str], alt: str, interval: int = 400) -> None:
        if not frames or len(frames) != len(labels):
            raise ValueError(f"{len(frames)} frames and {len(labels)} labels; give one label per frame, at least one.")
        if not alt.strip():
            raise ValueError("alt is empty; say in words what the picture shows.")
        self.frames, self.labels, self.alt, self.interval = list(frames), list(labels), alt, interval

    def _repr_html_(self) -> str:
        sources = ["data:image/png;base64," + base64.b64encode(frame).decode() for frame in self.frames]
        name = "bvf-" + hashlib.sha256("".join(sources + self.labels).encode()).hexdigest()[:12]
        alt = html.escape(self.alt, quote=True)
        return _TEMPLATE.format(
            name=name,
            alt=alt,
            first=sources[0],
            last=len(sources) - 1,
            label=html.escape(self.labels[0]),
            interval=self.interval,
            sources=json.dumps(sources),
            labels=json.dumps([html.escape(text) for text in self.labels]),
        )

    def __repr__(self) -> str:
        return f"FrameSlider of {len(self.frames)} frames: {self.alt}"


def frame_slider(
    draw: Callable[[Any], Figure], positions: Sequence[Any], alt: str, label: str = "{}", dpi: int = 110
) -> FrameSlider:
    """Draw one frame per position and return them as a slider that needs no kernel.

    Args:
        draw: takes a position and returns a new figure, which is closed after it is drawn.
        positions: what the slider runs through, at most a few dozen.
        alt: what the picture shows and what changes along the slider.
        label: format of the text beside the slider, given the position.
        dpi: resolution of the frames; keep the whole below about half a megabyte.
    """
    frames = []
    for position in positions:
        figure = draw(position)
        frames.append(_palette_png(figure, dpi))
        plt.close(figure)
    return FrameSlider(frames, [label.format(position) for position in positions], alt)


def _palette_png(figure: Figure, dpi: int) -> bytes:
    """Return a figure as a PNG of 256 colours: a third of the bytes of a full-colour one, no visible loss in a plot.

    No software version is stored: the same picture must give the same bytes.
    """
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=dpi)
    Image.open(full).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small.getvalue()


def explorer(draw: Callable[..., Figure], **controls: Any) -> Any:
    """Return a live ipywidgets panel that redraws on every move.

    Needs a running kernel, so the book shows a ``frame_slider`` beside it.

    Args:
        draw: takes the controls as keyword arguments and returns a figure.
        controls: as for ``ipywidgets.interactive``: tuples (low, high, step), lists, booleans.

    Raises:
        ImportError: ipywidgets is not installed; the message says how to get it.
    """
    try:
        from ipywidgets import interactive
    except ImportError as error:
        raise ImportError(
            "the live explorer needs ipywidgets: pip install ipywidgets (the sliders on the page do not)"
        ) from error

    @functools.wraps(draw)  # interactive reads the defaults from the signature: the panel opens where draw says
    def show(**values: Any) -> None:
        figure = draw(**values)
        plt.show()
        plt.close(figure)

    return interactive(show, **controls)


_TEMPLATE = """<div class="bvf-slider" id="{name}" role="group" aria-label="{alt}">
<img src="{first}" alt="{alt}" style="max-width:100%;height:auto;background:#fff">
<div style="display:flex;gap:.6em;align-items:center;flex-wrap:wrap">
<button type="button" class="bvf-play" aria-label="play or pause">&#9654;</button>
<input type="range" min="0" max="{last}" value="0" aria-label="position" style="flex:1 1 12em;min-width:8em">
<output>{label}</output>
</div>
<script>
(function () {{
  var root = document.getElementById("{name}");
  var image = root.querySelector("img"), range = root.querySelector("input"), text = root.querySelector("output");
  var button = root.querySelector("button"), sources = {sources}, labels = {labels}, timer = null;
  function show() {{ image.src = sources[range.value]; text.innerHTML = labels[range.value]; }}
  function stop() {{ clearInterval(timer); timer = null; button.innerHTML = "&#9654;"; }}
  range.addEventListener("input", function () {{ stop(); show(); }});
  button.addEventListener("click", function () {{
    if (timer) {{ stop(); return; }}
    if (+range.value === sources.length - 1) {{ range.value = 0; show(); }}
    button.innerHTML = "&#10074;&#10074;";
    timer = setInterval(function () {{
      if (+range.value === sources.length - 1) {{ stop(); return; }}
      range.value = +range.value + 1; show();
    }}, {interval});
  }});
}})();
</script>
</div>"""
