"""This file knows how a task looks: MuJoCo scenes with the things that a model does not hold, and the grid world.

MuJoCo needs OpenGL, and OpenGL needs a driver. ``opengl_backend`` finds one that works, with or without a display, by
trying each in a process of its own: a bad driver ends that process, never the reader's. Nothing here is loaded before
the first picture, and the grid world needs neither.
"""

import atexit
import contextlib
import copy
import functools
import importlib
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "Camera",
    "Image",
    "Painter",
    "RenderingError",
    "Shape",
    "circle_shapes",
    "draw_grid",
    "draw_point",
    "gather_shapes",
    "opengl_backend",
    "painter",
    "point_model",
    "with_speed",
]

Image = npt.NDArray[np.uint8]
"""A picture, [height, width, 3]."""

Color = tuple[float, float, float, float]
Stroke = Callable[[npt.NDArray[np.float64], npt.NDArray[np.float64]], npt.NDArray[np.float64]]

# Okabe and Ito (2008), as in the book's plots. Apples and bombs differ in shape, too.
_BLUE: Color = (0.0, 0.447, 0.698, 1.0)
_GREEN: Color = (0.0, 0.62, 0.451, 1.0)
_VERMILION: Color = (0.835, 0.369, 0.0, 1.0)
_DARK: Color = (0.2, 0.22, 0.25, 1.0)
_WHITE: Color = (1.0, 1.0, 1.0, 1.0)
_GREY: Color = (0.8, 0.82, 0.84, 1.0)

_POINT_MODEL = Path(__file__).parent / "assets" / "point.xml"
_ROBOT_RADIUS = 0.5


# --- OpenGL ----------------------------------------------------------------------------------------------------------


class RenderingError(RuntimeError):
    """No picture can be drawn on this machine as it is; the message says what to install or set."""


_AUTOMATIC = {"", "enable", "enabled", "on", "true", "1"}
_SWITCHED_OFF = {"disable", "disabled", "off", "false", "0"}
_BACKENDS = {"Linux": ("egl", "osmesa", "glfw", "glx"), "Darwin": ("cgl", "glfw"), "Windows": ("glfw", "wgl")}
_MODULE = {"glx": "glfw", "wgl": "glfw"}
_PROBE = """
import importlib, sys
import mujoco, numpy
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1' rgba='1 1 1 1'/></worldbody></mujoco>")
data, scene, rectangle = mujoco.MjData(model), mujoco.MjvScene(model, 9), mujoco.MjrRect(0, 0, 32, 32)
mujoco.mj_forward(model, data)
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(32, 32)
context.make_current()
canvas = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, canvas)
mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, mujoco.MjvCamera(), 7, scene)
mujoco.mjr_render(rectangle, scene, canvas)
pixels = numpy.zeros((32, 32, 3), numpy.uint8)
mujoco.mjr_readPixels(pixels, None, rectangle, canvas)
canvas.free()
context.free()
sys.exit(0 if pixels.max() > 0 else "the driver drew a black picture")
"""


@functools.cache
def opengl_backend() -> str:
    """Return the OpenGL backend that draws on this machine: "egl", "osmesa", "glfw" (or "cgl", "glx", "wgl").

    The environment variable ``MUJOCO_GL`` decides if it is set; otherwise Linux tries egl, then osmesa, then glfw if
    there is a display. Each candidate draws a picture in a process of its own first (about a second, once: a
    success is remembered, a failure is tried again after the reader has repaired it). The choice is written to
    ``MUJOCO_GL``, so that other MuJoCo code in this process follows it.

    Raises:
        RenderingError: none works, or ``MUJOCO_GL`` switches drawing off or names nothing that exists here.
    """
    system, asked = platform.system(), os.environ.get("MUJOCO_GL", "").lower().strip()
    known = _BACKENDS.get(system, ("glfw",))
    if asked in _SWITCHED_OFF:
        raise RenderingError(f"MUJOCO_GL={asked} switches drawing off; unset it to draw.")
    if asked not in _AUTOMATIC and asked not in known:
        raise RenderingError(
            f"MUJOCO_GL={asked} names no OpenGL backend of {system}; unset it, or use one of {', '.join(known)}."
        )
    failure = {}
    for backend in _candidates(system) if asked in _AUTOMATIC else (asked,):
        reason = _probe(backend)
        if not reason:
            os.environ["MUJOCO_GL"] = backend
            return backend
        failure[backend] = reason
    tried = "; ".join(f"{backend}: {reason}" for backend, reason in failure.items())
    raise RenderingError(f"MuJoCo found no OpenGL to draw with ({tried}). {_remedy(system, asked)}")


def _candidates(system: str) -> tuple[str, ...]:
    if system != "Linux":
        return tuple(name for name in _BACKENDS.get(system, ("glfw",)) if name != "wgl")
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return ("egl", "osmesa", "glfw") if has_display else ("egl", "osmesa")


def _probe(backend: str, timeout: float = 120.0) -> str:
    """Draw with a backend in another process; return what went wrong, "" if nothing."""
    environment = {**os.environ, "MUJOCO_GL": backend, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        finished = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE, _MODULE.get(backend, backend)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            env=environment,
            cwd=tempfile.gettempdir(),  # a crash may leave a log file where it happens
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"no picture within {timeout:.0f} s"
    except OSError as error:
        return str(error)
    if finished.returncode < 0:
        return f"the driver crashed ({signal.Signals(-finished.returncode).name})"
    lines = finished.stderr.strip().splitlines() or [f"exit status {finished.returncode}"]
    return lines[-1][:200] if finished.returncode else ""


def _remedy(system: str, asked: str) -> str:
    unset = f"Unset MUJOCO_GL (it is {asked}) to try the others. " if asked not in _AUTOMATIC else ""
    if system == "Linux":
        return unset + (
            "Install Mesa's software OpenGL, which needs no display and no GPU, and call again: on Debian, Ubuntu and "
            "Colab `apt-get install libegl1 libgl1-mesa-dri` (MUJOCO_GL=egl) or `apt-get install libosmesa6` "
            "(MUJOCO_GL=osmesa). Training needs none of this."
        )
    return unset + "Run from a desktop session, not over ssh, with a current graphics driver. Training needs no OpenGL."


@contextlib.contextmanager
def _current(context: Any) -> Iterator[None]:
    """Make a context current for a while, so that other threads and other people's contexts get their turn."""
    with contextlib.ExitStack() as stack:
        if hasattr(context, "as_current"):  # MuJoCo 4
            stack.enter_context(context.as_current())
        else:
            context.make_current()
        yield


# --- what is drawn ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A thing in the scene that no model holds, upright.

    Attributes:
        kind: what it is.
        position: centre (x, y, z), metres.
        size: half lengths (x, y, z) of a box, (radius, radius, half height) of a cylinder, radii of an ellipsoid.
        color: (red, green, blue, opacity), each in [0, 1].
        heading: turn about the vertical, radians.
    """

    kind: Literal["box", "cylinder", "ellipsoid"]
    position: tuple[float, float, float]
    size: tuple[float, float, float]
    color: Color
    heading: float = 0.0


@dataclass(frozen=True)
class Camera:
    """Where the picture is taken from.

    Attributes:
        target: the point (x, y, z) in the middle of the picture, metres.
        height: metres that the picture shows from its lower to its upper edge, at the target.
        azimuth: direction of view, degrees; 90 looks along +y with x to the right.
        elevation: degrees; -90 looks straight down.
        is_perspective: whether far things look small.
    """

    target: tuple[float, float, float] = (0.0, 0.0, 0.0)
    height: float = 10.0
    azimuth: float = 90.0
    elevation: float = -90.0
    is_perspective: bool = False


@functools.lru_cache(maxsize=16)
def circle_shapes(radius: float = 15.0, x_limit: float = 2.5, arena: float = 20.0) -> tuple[Shape, ...]:
    """Return Point-Circle's floor: the circle as a blue ring, the costly ground shaded, its borders as lines, walls.

    Args:
        radius: of the circle that is rewarded, metres.
        x_limit: a state costs 1 when ``|x|`` exceeds it, metres.
        arena: half the side of the square in which the robot's centre stays, metres.
    """
    far = arena + _robot_radius(arena)
    width, shade, line, ring = 0.02 * radius, 0.01, 0.03, 0.05  # heights keep the layers apart
    shapes = _walls(arena)
    for side in (-1.0, 1.0):
        middle = side * (x_limit + far) / 2
        tint = (*_VERMILION[:3], 0.11)
        shapes.append(Shape("box", (middle, 0.0, shade), ((far - x_limit) / 2, far, 0.002), tint))
        shapes.append(Shape("box", (side * x_limit, 0.0, line), (width / 2, far, 0.002), _VERMILION))
    n_pieces = 120
    half = radius * math.tan(math.pi / n_pieces) + width / 4
    for angle in np.linspace(0.0, 2 * math.pi, n_pieces, endpoint=False).tolist():
        centre = (radius * math.cos(angle), radius * math.sin(angle), ring)
        shapes.append(Shape("box", centre, (width / 2, half, 0.002), _BLUE, heading=angle))
    return tuple(shapes)


def gather_shapes(
    apple_position: npt.ArrayLike,
    bomb_position: npt.ArrayLike,
    is_apple_caught: npt.ArrayLike = False,
    is_bomb_caught: npt.ArrayLike = False,
    arena: float = 6.0,
) -> tuple[Shape, ...]:
    """Return Point-Gather's things: apples are green balls, bombs vermilion crates with a fuse, walls grey.

    The walls stand where the robot's edge is when its centre is at the arena's border.

    Args:
        apple_position: [apples, 2], metres.
        bomb_position: [bombs, 2], metres.
        is_apple_caught: [apples] booleans; the caught ones are not drawn.
        is_bomb_caught: [bombs] booleans.
        arena: half the side of the square in which the robot's centre stays, metres.
    """
    shapes = _walls(arena)
    for x, y in _remaining(apple_position, is_apple_caught):
        shapes.append(Shape("ellipsoid", (x, y, 0.42), (0.42, 0.42, 0.42), _GREEN))
    for x, y in _remaining(bomb_position, is_bomb_caught):
        shapes.append(Shape("box", (x, y, 0.36), (0.36, 0.36, 0.36), _VERMILION, heading=math.pi / 4))
        shapes.append(Shape("cylinder", (x, y, 0.78), (0.13, 0.13, 0.08), _DARK))
    return tuple(shapes)


def _robot_radius(arena: float) -> float:
    """Return the radius in which the robot is drawn; in a wide arena, a larger one than its own."""
    return _ROBOT_RADIUS * max(1.0, arena / 8)


def _walls(arena: float) -> list[Shape]:
    radius = _robot_radius(arena)
    half = 0.24 * radius
    side, length = arena + radius + half, arena + radius + 2 * half
    along_y = [Shape("box", (x, 0.0, 0.2), (half, length, 0.2), _DARK) for x in (-side, side)]
    return along_y + [Shape("box", (0.0, y, 0.2), (length, half, 0.2), _DARK) for y in (-side, side)]


def _remaining(position: npt.ArrayLike, is_caught: npt.ArrayLike) -> list[tuple[float, float]]:
    where = np.asarray(position, dtype=np.float64).reshape(-1, 2)
    keep = ~np.broadcast_to(np.asarray(is_caught, dtype=bool), where.shape[:1])
    return [(float(x), float(y)) for x, y in where[keep]]


def with_speed(image: Image, speed: float, limit: float) -> Image:
    """Return the picture with a speedometer at its upper edge: a bar from the middle, right is forward.

    The two marks are the limits ``-limit`` and ``+limit``; the bar ends at twice the limit. It is blue while
    ``|speed| <= limit``, vermilion beyond.

    Args:
        image: [height, width, 3]; unchanged.
        speed: metres per second.
        limit: metres per second, positive.
    """
    picture = image.copy()
    height, width = picture.shape[:2]
    reach, thick, top = round(0.3 * width), max(2, round(0.04 * height)), round(0.05 * height)
    middle, line = width // 2, max(1, round(0.004 * width))
    end = middle + round(reach * max(-1.0, min(1.0, speed / (2 * limit))))
    color = _VERMILION if abs(speed) > limit else _BLUE
    picture[top : top + thick, middle - reach : middle + reach] = _bytes(_GREY)
    picture[top : top + thick, min(middle, end) : max(middle, end)] = _bytes(color)
    for mark in (middle - reach // 2, middle + reach // 2):
        picture[top - thick // 2 : top + thick + thick // 2, mark - line : mark + line] = _bytes(_DARK)
    picture[top : top + thick, middle - line : middle + line] = _bytes(_DARK)
    return picture


def _bytes(color: Color) -> Image:
    return np.round(255 * np.array(color[:3])).astype(np.uint8)


# --- MuJoCo ----------------------------------------------------------------------------------------------------------


class Painter:
    """Draws one MuJoCo model in one size, as often as asked; bright, without shadows, smooth at the edges.

    It works on a copy of the model, so that nothing about pictures reaches the physics, and keeps its OpenGL context
    until it is closed, collected, or the process ends. A process forked after the first picture cannot draw.

    Args:
        model: a ``mujoco.MjModel``.
        size: (height, width) of the pictures, pixels.
        scale: draws every moving body that much larger about its own place.

    Raises:
        RenderingError: this machine has no OpenGL; the message says what to do.
        ValueError: a size below one pixel.
    """

    def __init__(self, model: Any, size: tuple[int, int], scale: float = 1.0) -> None:
        if min(size) < 1:
            raise ValueError(f"size is {size}; a picture has at least 1 x 1 pixels (height, width).")
        backend = opengl_backend()
        _refuse_after_fork()
        import mujoco

        self._mujoco: Any = mujoco
        self.height, self.width = int(size[0]), int(size[1])
        self._model = _brightened(model, self.height, self.width, scale)
        self._floor = _floor(self._model)
        self._data = mujoco.MjData(self._model)
        self._scene = mujoco.MjvScene(self._model, maxgeom=self._model.ngeom + 1000)
        for flag in ("SHADOW", "REFLECTION", "HAZE", "FOG"):
            self._scene.flags[getattr(mujoco.mjtRndFlag, f"mjRND_{flag}").value] = 0
        self._option, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        self._lock = threading.Lock()
        self._rectangle = mujoco.MjrRect(0, 0, self.width, self.height)
        self._pixels = np.empty((self.height, self.width, 3), np.uint8)
        self._context, self._canvas = _canvas(self._model, backend, self.height, self.width)
        self.close = weakref.finalize(self, _free, self._context, self._canvas)
        self.close.atexit = False  # _close_all is in time; finalize's own hook may run after the driver has gone
        _open.add(self)

    def paint(self, qpos: npt.ArrayLike, shapes: Iterable[Shape] = (), camera: Camera = Camera()) -> Image:
        """Return the picture [height, width, 3] of the model at ``qpos``, with the shapes around it.

        Args:
            qpos: [nq] generalised positions.
            shapes: what else stands in the scene.
            camera: where the picture is taken from.

        Raises:
            ValueError: ``qpos`` has the wrong length or is not finite.
            RenderingError: the painter is closed, or this process was forked from the one that opened it.
        """
        position = np.asarray(qpos, dtype=np.float64)
        if position.shape != (self._model.nq,):
            raise ValueError(f"qpos has shape {position.shape}, expected [{self._model.nq}].")
        if not np.isfinite(position).all():
            raise ValueError(f"qpos[{int(np.argmin(np.isfinite(position)))}] is not finite; the simulation diverged.")
        if not self.close.alive:
            raise RenderingError("this painter is closed; make a new one.")
        _refuse_after_fork()
        with self._lock, _current(self._context):
            self._arrange(position, shapes, camera)
            self._mujoco.mjr_setBuffer(self._mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._canvas)
            self._mujoco.mjr_render(self._rectangle, self._scene, self._canvas)
            self._mujoco.mjr_readPixels(self._pixels, None, self._rectangle, self._canvas)
            return np.ascontiguousarray(self._pixels[::-1])  # OpenGL's first row is the lowest

    def _arrange(self, position: npt.NDArray[np.float64], shapes: Iterable[Shape], camera: Camera) -> None:
        """Put the model and the shapes where they belong. Kinematics only: a diverged velocity writes no log file."""
        mujoco, model, data, scene = self._mujoco, self._model, self._data, self._scene
        data.qpos[:] = position
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        view, angle = self._camera, 45.0
        view.lookat[:] = camera.target
        view.azimuth, view.elevation = camera.azimuth, camera.elevation
        view.orthographic = not camera.is_perspective
        # Seen from the side, a floor gets little of the light that comes from the camera; it shines instead.
        model.mat_emission[self._floor] = 0.45 * (1 + math.sin(math.radians(camera.elevation)))
        # For a parallel projection, MuJoCo's field of view is a length.
        model.vis.global_.fovy = angle if camera.is_perspective else camera.height
        view.distance = camera.height / (2 * math.tan(math.radians(angle) / 2))
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(model, data, self._option, None, view, everything, scene)
        geoms = scene.geoms
        for shape in shapes:
            if scene.ngeom >= scene.maxgeom:
                raise ValueError(f"more shapes than the {scene.maxgeom} that fit into a picture.")
            self._place(geoms[scene.ngeom], shape)
            scene.ngeom += 1

    def _place(self, geom: Any, shape: Shape) -> None:
        cosine, sine = math.cos(shape.heading), math.sin(shape.heading)
        self._mujoco.mjv_initGeom(
            geom,
            getattr(self._mujoco.mjtGeom, f"mjGEOM_{shape.kind.upper()}").value,
            np.array(shape.size),
            np.array(shape.position),
            np.array([cosine, -sine, 0.0, sine, cosine, 0.0, 0.0, 0.0, 1.0]),
            np.array(shape.color, dtype=np.float32),
        )
        geom.category = self._mujoco.mjtCatBit.mjCAT_DECOR.value
        geom.emission, geom.specular = 0.0, 0.0


_open: "weakref.WeakSet[Painter]" = weakref.WeakSet()


_process: list[int] = []
"""The process that first used OpenGL; a driver's threads do not survive a fork, and a child would wait for them."""


def _refuse_after_fork() -> None:
    if _process and _process[0] != os.getpid():
        raise RenderingError(
            "this process was forked after a picture had been drawn, and OpenGL does not survive that; start workers "
            'with multiprocessing\'s "spawn", or draw the first picture in the workers.'
        )


def _close_all() -> None:
    for one in list(_open):
        one.close()


def _canvas(model: Any, backend: str, height: int, width: int) -> tuple[Any, Any]:
    """Return an OpenGL context of our own choice, whatever MuJoCo chose when it was imported, and a canvas on it."""
    import mujoco

    _process[:] = [os.getpid()]
    try:
        context = importlib.import_module(f"mujoco.{_MODULE.get(backend, backend)}").GLContext(width, height)
        with _current(context):
            canvas = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
    except Exception as error:  # drivers and bindings raise whatever they like
        raise RenderingError(
            f"MUJOCO_GL={backend} draws in a fresh process, but not in this one ({error}); restart Python and draw the "
            "first picture before other code uses OpenGL."
        ) from error
    # After the driver's own hook, which therefore runs later: contexts go before their display.
    atexit.unregister(_close_all)
    atexit.register(_close_all)
    return context, canvas


def _free(context: Any, canvas: Any) -> None:
    if _process != [os.getpid()]:
        return
    with _current(context):
        canvas.free()
    context.free()


def _brightened(model: Any, height: int, width: int, scale: float) -> Any:
    """Return a copy of the model for pictures: white sky, pale floor, soft light from everywhere, no mirrors."""
    import mujoco

    model = copy.copy(model)
    model.vis.global_.offheight, model.vis.global_.offwidth = height, width
    model.vis.quality.offsamples = 4
    model.mat_reflectance[:] = 0.0
    # What faces the camera gets its own colour: ambient and headlight sum to 0.9, the model's lights shape the rest.
    model.vis.headlight.ambient[:], model.vis.headlight.diffuse[:], model.vis.headlight.specular[:] = 0.55, 0.35, 0.05
    model.light_ambient[:], model.light_diffuse[:], model.light_specular[:] = 0.0, 0.1 / max(model.nlight, 1), 0.1
    model.geom_rgba[model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE.value] = 1.0
    model.mat_rgba[_floor(model)] = 1.0
    for k in range(model.ntex):
        start = int(model.tex_adr[k])
        texture = model.tex_data[start : start + int(model.tex_height[k] * model.tex_width[k] * model.tex_nchannel[k])]
        if model.tex_type[k] == mujoco.mjtTexture.mjTEXTURE_SKYBOX.value:
            texture[:] = 255
        elif model.tex_type[k] == mujoco.mjtTexture.mjTEXTURE_2D.value:  # floors: keep the pattern, lift it to pale
            low, high = int(texture.min()), max(int(texture.max()), int(texture.min()) + 1)
            texture[:] = 240 + ((texture.astype(np.int32) - low) * 13) // (high - low)
    model.geom_size[model.geom_bodyid > 0] *= scale
    model.geom_pos[model.geom_bodyid > 0] *= scale
    model.mesh_vert[:] *= scale
    return model


def _floor(model: Any) -> npt.NDArray[np.int64]:
    """Return which materials the planes have."""
    import mujoco

    material = model.geom_matid[model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE.value]
    return np.unique(material[material >= 0]).astype(np.int64)


@functools.lru_cache(maxsize=8)
def painter(model: Any, size: tuple[int, int], scale: float = 1.0) -> Painter:
    """Return the painter of this model object and size, made at the first call; see ``Painter``."""
    return Painter(model, size, scale)


@functools.cache
def point_model() -> Any:
    """Return the point robot's ``mujoco.MjModel``: qpos (x, y, heading), body "torso", nothing simulated."""
    import mujoco

    return mujoco.MjModel.from_xml_path(str(_POINT_MODEL))


def draw_point(pose: npt.ArrayLike, shapes: Iterable[Shape], size: tuple[int, int], arena: float) -> Image:
    """Return the point robot among shapes, seen from above, x to the right and y up, [height, width, 3].

    The shorter side of the picture shows the arena and its walls; the origin is in the middle. In an arena wider than
    16 m the robot is drawn larger than its radius of 0.5 m, so that it stays visible.

    Args:
        pose: (x, y, heading), metres and radians.
        shapes: what else stands there.
        size: (height, width), pixels.
        arena: half the side of the square in which the robot's centre stays, metres.

    Raises:
        RenderingError: this machine has no OpenGL.
        ValueError: ``pose`` is not three finite numbers.
    """
    opengl_backend()  # before MuJoCo is imported: a wrong MUJOCO_GL stops that import with a worse message
    radius = _robot_radius(arena)
    view = 2 * (arena + 1.8 * radius) * size[0] / min(size)
    return painter(point_model(), _pair(size), radius / _ROBOT_RADIUS).paint(pose, shapes, Camera(height=view))


# --- the grid world --------------------------------------------------------------------------------------------------


def draw_grid(
    pit: npt.ArrayLike,
    goal: tuple[int, int],
    start: tuple[int, int],
    agent: tuple[int, int],
    size: tuple[int, int] = (480, 480),
) -> Image:
    """Return the grid world as a picture [height, width, 3]: pits crossed out, S start, G goal, the agent a black disc.

    Plain NumPy, no OpenGL; the layout is drawn once and remembered. Cells are squares of whole pixels in the middle.

    Args:
        pit: [S, S] booleans, row 0 at the top.
        goal: (row, column).
        start: (row, column).
        agent: (row, column).
        size: (height, width), pixels.

    Raises:
        ValueError: a cell would have fewer than 6 pixels, or the agent is outside.
    """
    pits = np.ascontiguousarray(pit, dtype=bool)
    n, cell = len(pits), min(size) // len(pits)
    if cell < 6:
        raise ValueError(f"size {tuple(size)} leaves {cell} pixels for each of {n} x {n} cells; give at least {6 * n}.")
    row, column = int(agent[0]), int(agent[1])
    if not (0 <= row < n and 0 <= column < n):
        raise ValueError(f"agent {(row, column)} lies outside the {n} x {n} grid.")
    picture = _layout(pits.tobytes(), n, _pair(goal), _pair(start), _pair(size)).copy()
    top, left = _corner(_pair(size), n, cell)
    here = picture[top + row * cell :, left + column * cell :][:cell, :cell]
    colour, opacity = _agent(cell)
    here[:] = np.rint(here + opacity * (colour - here))
    return picture


def _pair(value: Iterable[int]) -> tuple[int, int]:
    first, second = value
    return int(first), int(second)


def _corner(size: tuple[int, int], n: int, cell: int) -> tuple[int, int]:
    return (size[0] - n * cell) // 2, (size[1] - n * cell) // 2


@functools.lru_cache(maxsize=64)
def _layout(pits: bytes, n: int, goal: tuple[int, int], start: tuple[int, int], size: tuple[int, int]) -> Image:
    """Return the picture without the agent, read-only."""
    cell = min(size) // n
    top, left = _corner(size, n, cell)
    picture = np.full((*size, 3), 255, np.uint8)
    board = picture[top : top + n * cell, left : left + n * cell]
    tiles = {"pit": _tile(cell, (0.953, 0.773, 0.682, 1.0), _VERMILION, "X")}
    tiles |= {"start": _tile(cell, _GREEN, _WHITE, "S"), "goal": _tile(cell, _BLUE, _WHITE, "G")}
    marked = {(int(r), int(c)): "pit" for r, c in np.argwhere(np.frombuffer(pits, dtype=bool).reshape(n, n))}
    for (row, column), name in (marked | {start: "start", goal: "goal"}).items():
        board[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = tiles[name]
    for k in range(n + 1):
        line = min(k * cell, n * cell - 1)
        board[line, :] = board[:, line] = _bytes(_GREY)
    picture.flags.writeable = False
    return picture


def _tile(cell: int, ground: Color, ink: Color, letter: str) -> Image:
    """Return one cell, [cell, cell, 3], with a letter drawn from lines and arcs, smooth at the edges."""
    x, y = _raster(cell)
    distance = np.min([part(x, y) for part in _LETTERS[letter]], axis=0)
    opacity = _inside(0.07 - distance, cell)
    color: Image = np.rint(255 * (ground[:3] + opacity * (np.array(ink[:3]) - ground[:3]))).astype(np.uint8)
    return color


@functools.lru_cache(maxsize=16)
def _agent(cell: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return a black disc with a white rim as colours [cell, cell, 1] in 0..255 and opacities."""
    distance = np.hypot(*_raster(cell))
    return 255 * _inside(distance - 0.29, cell), _inside(0.36 - distance, cell)


def _raster(cell: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return x to the right and y up of the pixels' centres, from -0.5 to 0.5."""
    along = (np.arange(cell) + 0.5) / cell - 0.5
    return np.broadcast_to(along[None, :], (cell, cell)), np.broadcast_to(-along[:, None], (cell, cell))


def _inside(depth: npt.NDArray[np.float64], cell: int) -> npt.NDArray[np.float64]:
    """Return the part of each pixel that lies inside, [cell, cell, 1], from the depth below the edge."""
    return np.clip(depth * cell + 0.5, 0.0, 1.0)[..., None]


def _line(x0: float, y0: float, x1: float, y1: float) -> Stroke:
    """Return the distance to a segment as a function of x and y."""

    def distance(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        length = (x1 - x0) ** 2 + (y1 - y0) ** 2
        along = np.clip(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length, 0.0, 1.0)
        return np.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0))

    return distance


def _arc(x0: float, y0: float, radius: float, first: float, last: float) -> tuple[Stroke, ...]:
    """Return a polyline of 16 segments along an arc, angles in degrees."""
    angle = np.radians(np.linspace(first, last, 17))
    x, y = (x0 + radius * np.cos(angle)).tolist(), (y0 + radius * np.sin(angle)).tolist()
    return tuple(_line(x[k], y[k], x[k + 1], y[k + 1]) for k in range(16))


_LETTERS: dict[str, tuple[Stroke, ...]] = {
    "X": (_line(-0.25, -0.25, 0.25, 0.25), _line(-0.25, 0.25, 0.25, -0.25)),
    "S": (*_arc(0.0, 0.115, 0.115, 30.0, 270.0), *_arc(0.0, -0.115, 0.115, 90.0, -150.0)),
    "G": (*_arc(0.0, 0.0, 0.23, 45.0, 345.0), _line(0.22, -0.06, 0.22, -0.01), _line(0.22, -0.01, 0.06, -0.01)),
}
