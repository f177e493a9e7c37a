"""Pictures and films: the right things at the right pixels, on any machine, and nothing printed on the way out."""

from __future__ import annotations

import base64
import math
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import imageio.v3 as iio
import mujoco
import numpy as np
import pytest

from bvf_tutorial.envs import render, video
from bvf_tutorial.envs.gridworld import GridWorld
from bvf_tutorial.envs.render import Camera, Painter, RenderingError, draw_grid, draw_point, with_speed

ROOT = Path(__file__).parents[2]
BLUE, GREEN, VERMILION, YELLOW, DARK = (0, 114, 178), (0, 158, 115), (213, 94, 0), (240, 228, 66), (51, 56, 64)
SIZE = (240, 240)


@pytest.fixture(scope="session")
def opengl() -> str:
    """Skip where there is no OpenGL, unless the machine promises it."""
    try:
        return render.opengl_backend()
    except RenderingError as error:
        if os.environ.get("BVF_REQUIRE_OPENGL") == "1":
            raise
        pytest.skip(str(error))


@pytest.fixture
def fresh_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the backend be chosen anew, as in a process that has drawn nothing; put everything back."""
    monkeypatch.setenv("MUJOCO_GL", "")  # set, so that it is restored
    render.opengl_backend.cache_clear()
    yield
    render.opengl_backend.cache_clear()


def where(image: np.ndarray, color: tuple[int, int, int], tolerance: int = 45) -> np.ndarray:
    """Return which pixels have about this colour."""
    return np.abs(image.astype(int) - color).max(axis=-1) <= tolerance


def centre(mask: np.ndarray) -> np.ndarray:
    """Return the mean (x, y) in pixels from the middle of the picture, x right, y up."""
    row, column = np.nonzero(mask)
    assert len(row), "nothing has that colour"
    return np.array([column.mean() + 0.5 - mask.shape[1] / 2, mask.shape[0] / 2 - row.mean() - 0.5])


def run(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter without a display, in an empty folder."""
    kept = {
        k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM")
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
    )


# --- the point robot ---


def test_point_model_loads_in_silence(tmp_path: Path) -> None:
    finished = run("from bvf_tutorial.envs.render import point_model; point_model()", tmp_path)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_point_model_is_where_qpos_says() -> None:
    model = render.point_model()
    data = mujoco.MjData(model)
    assert (model.nq, model.nv, model.nu) == (3, 3, 0)
    data.qpos[:] = 1.5, -2.0, 0.7
    mujoco.mj_forward(model, data)
    body = data.body("torso")
    assert body.xpos == pytest.approx([1.5, -2.0, 0.0])
    assert body.xmat.reshape(3, 3)[:, 0] == pytest.approx([math.cos(0.7), math.sin(0.7), 0.0])
    data.qpos[:] = 1.5, -2.0, 0.7
    mujoco.mj_step(model, data, 100)
    assert data.ncon == 0 and data.qpos == pytest.approx([1.5, -2.0, 0.7])  # nothing pulls or touches


@pytest.mark.parametrize("position", [(0.0, 0.0), (3.0, 0.0), (-4.0, 2.0), (1.0, -5.5)])
def test_robot_is_drawn_where_it_is(opengl: str, position: tuple[float, float]) -> None:
    image = draw_point([*position, 0.0], render.gather_shapes([], []), SIZE, arena=6.0)
    assert image.shape == (*SIZE, 3) and image.dtype == np.uint8 and image.flags["C_CONTIGUOUS"]
    scale = SIZE[0] / (2 * (6.0 + 0.9))
    assert centre(where(image, YELLOW)) == pytest.approx(scale * np.array(position), abs=1.5)


def test_robot_points_where_it_heads(opengl: str) -> None:
    """The wedge is long in front; a quarter turn to the left is a quarter turn of the picture."""
    masks = [where(draw_point([0.0, 0.0, k * math.pi / 2], (), SIZE, arena=6.0), YELLOW) for k in range(4)]
    columns = np.nonzero(masks[0])[1] + 0.5 - SIZE[1] / 2
    assert columns.max() > 1.4 * -columns.min()
    for k in range(1, 4):
        assert (np.rot90(masks[0], k) != masks[k]).sum() <= 0.1 * masks[0].sum()


def test_circle_and_limits_are_where_the_task_has_them(opengl: str) -> None:
    image = draw_point([0.0, 0.0, 0.0], render.circle_shapes(15.0, 2.5, 20.0), (480, 480), arena=20.0)
    scale = 480 / (2 * (20.0 + 1.8 * 1.25))
    row, column = np.nonzero(where(image, BLUE, 20))
    distance = np.hypot(column + 0.5 - 240, row + 0.5 - 240) / scale
    assert len(row) > 800 and distance.min() > 14.7 and distance.max() < 15.3
    angle = np.degrees(np.arctan2(240 - row, column - 240)) % 360
    assert len(np.unique(angle.astype(int))) == 360  # all the way round
    for side in (-1, 1):
        half = image[:, :240] if side < 0 else image[:, 240:]
        lines = np.nonzero(where(half, VERMILION).mean(axis=0) > 0.8)[0] + 0.5 - (240 if side < 0 else 0)
        assert lines.mean() / scale == pytest.approx(side * 2.5, abs=0.1)
    costly, free = image[150:330, 60:150].mean(axis=(0, 1)), image[150:200, 225:255].mean(axis=(0, 1))
    assert free.min() > 235 and costly[2] < free[2] - 20  # the costly ground is tinted


def test_apples_and_bombs(opengl: str) -> None:
    """Each at its place; a caught one disappears, and nothing else changes."""
    apple, bomb = np.array([[3, 2], [-4, 5]]), np.array([[-2, -3], [5, -5], [4, 4]])
    scale = SIZE[0] / (2 * (6.0 + 0.9))

    def picture(is_apple_caught: object = False, is_bomb_caught: object = False) -> np.ndarray:
        shapes = render.gather_shapes(apple, bomb, is_apple_caught, is_bomb_caught, 6.0)
        return draw_point([0.0, 0.0, 0.0], shapes, SIZE, arena=6.0)

    full = picture()
    for k, position in enumerate(apple):
        one = where(picture([j != k for j in range(2)], True), GREEN)
        assert centre(one) == pytest.approx(scale * position, abs=1.5)
    for k, position in enumerate(bomb):
        one = where(picture(True, [j != k for j in range(3)]), VERMILION)
        assert centre(one) == pytest.approx(scale * position, abs=1.5)
    assert not where(picture(True, True), GREEN).any() and not where(picture(True, True), VERMILION).any()
    without = picture(is_bomb_caught=[True, False, False])
    changed = np.argwhere((without != full).any(axis=-1))
    target = np.array([120 - scale * -3, 120 + scale * -2])
    assert len(changed) and np.abs(changed + 0.5 - target).max() < 0.7 * scale
    assert where(full, DARK).mean() > 0.05  # the walls


@pytest.mark.parametrize("size", [(120, 200), (200, 120), (1, 1), (33, 47), (900, 700)])
def test_any_size(opengl: str, size: tuple[int, int]) -> None:
    image = draw_point([0.0, 0.0, 0.0], render.gather_shapes([[1, 1]], []), size, arena=6.0)
    assert image.shape == (*size, 3)
    assert np.ptp(image) > 100 or size == (1, 1)


# --- any model ---


BALL = "<mujoco><worldbody><body><joint type='slide' axis='1 0 0'/><geom size='.3' rgba='0 0 1 1'/></body></worldbody></mujoco>"


def test_camera_follows(opengl: str) -> None:
    with_ball = Painter(mujoco.MjModel.from_xml_string(BALL), (90, 120))
    still, aside = (with_ball.paint([x], camera=Camera(height=4.0)) for x in (0.0, 1.0))
    seen = [centre(image[..., 2] > image[..., 0].astype(int) + 60) for image in (still, aside)]
    assert seen[0] == pytest.approx([0, 0], abs=1) and seen[1] == pytest.approx([90 / 4, 0], abs=1)
    for perspective in (False, True):
        side = Camera((5.0, 0.0, 0.0), 4.0, elevation=-10.0, is_perspective=perspective)
        tracked = with_ball.paint([5.0], camera=side)
        assert centre(tracked[..., 2] > tracked[..., 0].astype(int) + 60) == pytest.approx([0, 0], abs=1)


def test_pictures_do_not_reach_the_physics(opengl: str) -> None:
    model = mujoco.MjModel.from_xml_path(str(render._POINT_MODEL))
    before = [model.geom_size.copy(), model.tex_data.copy(), model.mat_rgba.copy(), model.vis.global_.offwidth]
    Painter(model, (50, 50), scale=3.0).paint([0.0, 0.0, 0.0])
    after = [model.geom_size, model.tex_data, model.mat_rgba, model.vis.global_.offwidth]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_painter_is_kept_and_repeats_itself(opengl: str) -> None:
    model = render.point_model()
    assert render.painter(model, (64, 64)) is render.painter(model, (64, 64))
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda _: draw_point([1.0, 2.0, 3.0], (), (64, 64), arena=6.0).tobytes(), range(12)))
    assert len(set(images)) == 1


def test_painter_refuses_what_it_cannot_draw(opengl: str) -> None:
    model = render.point_model()
    one = Painter(model, (32, 32))
    with pytest.raises(ValueError, match=r"qpos has shape \(2,\), expected \[3\]"):
        one.paint([0.0, 0.0])
    with pytest.raises(ValueError, match=r"qpos\[1\] is not finite"):
        one.paint([0.0, math.nan, 0.0])
    with pytest.raises(ValueError, match="more shapes"):
        one.paint([0.0, 0.0, 0.0], [render.Shape("box", (0, 0, 0), (1, 1, 1), (0, 0, 0, 1))] * 2000)
    one.close()
    with pytest.raises(RenderingError, match="closed"):
        one.paint([0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"size is \(0, 5\)"):
        Painter(model, (0, 5))


# --- the speedometer ---


def test_speedometer() -> None:
    image = np.full((100, 200, 3), 255, np.uint8)
    extent = {}
    for speed in (-9.0, -0.5, 0.0, 1.0, 1.01, 2.0, 9.0):
        picture = with_speed(image, speed, 1.0)
        assert (image == 255).all()  # unchanged
        color = VERMILION if abs(speed) > 1 else BLUE
        other = BLUE if abs(speed) > 1 else VERMILION
        assert not where(picture, other, 1).any()
        column = np.nonzero(where(picture, color, 1).any(axis=0))[0]
        extent[speed] = (column.min(), column.max()) if len(column) else ()
        assert where(picture, DARK, 1).any(axis=0)[[70, 130]].all()  # the limits, half of the bar's 60 pixels away
    assert extent[0.0] == ()
    assert extent[2.0] == extent[9.0] and extent[9.0][1] == 159 and extent[-9.0][0] == 40
    assert extent[1.0][1] in (128, 129) and extent[-0.5][0] == 85


# --- the grid world ---


PIT = np.zeros((4, 4), bool)
PIT[0, 1] = PIT[3, 2] = True


def corner(image: np.ndarray, row: int, column: int, cell: int = 20) -> tuple[int, ...]:
    """Return the colour in a cell near its corner, inside the grid line."""
    return tuple(image[row * cell + 2, column * cell + 2])


def test_grid_pixels() -> None:
    image = draw_grid(PIT, goal=(1, 0), start=(3, 3), agent=(2, 2), size=(80, 80))
    assert image.shape == (80, 80, 3) and image.dtype == np.uint8
    ground = {(1, 0): BLUE, (3, 3): GREEN, (0, 1): (243, 197, 174), (3, 2): (243, 197, 174)}
    for row in range(4):
        for column in range(4):
            assert corner(image, row, column) == ground.get((row, column), (255, 255, 255))
    assert tuple(image[50, 50]) == (0, 0, 0)  # the agent
    for row, column in ((0, 1), (3, 2)):
        assert tuple(image[row * 20 + 10, column * 20 + 10]) == VERMILION  # the middle of the cross
    assert (image[[0, 20, 40, 60, 79]] == image[0, 0]).all() and (image[:, [0, 20, 40, 60, 79]] == image[0, 0]).all()
    for row, column in ((1, 0), (3, 3)):
        letter = image[row * 20 + 1 : row * 20 + 20, column * 20 + 1 : column * 20 + 20]
        assert 0.05 < (letter > 230).all(axis=-1).mean() < 0.5


def test_grid_agent_moves_and_leaves_nothing_behind() -> None:
    grid = GridWorld.random(3)
    empty = render._layout(grid.pit.tobytes(), grid.size, grid.goal, grid.start, (480, 480))
    for agent in ((0, 0), grid.start, grid.goal, (5, 7)):
        image = draw_grid(grid.pit, grid.goal, grid.start, agent)
        changed = np.argwhere((image != empty).any(axis=-1)) // 40
        assert {tuple(cell) for cell in changed.tolist()} == {agent}
    assert not empty.flags.writeable


def test_grid_in_an_oblong_picture_stays_square_and_central() -> None:
    image = draw_grid(PIT, (1, 0), (3, 3), (0, 0), size=(82, 121))
    board = image[1:81, 20:100]
    assert np.array_equal(board, draw_grid(PIT, (1, 0), (3, 3), (0, 0), size=(80, 80)))
    assert image.shape == (82, 121, 3) and (image[:, :20] == 255).all() and (image[:, 100:] == 255).all()


def test_grid_refuses() -> None:
    with pytest.raises(ValueError, match=r"leaves 5 pixels for each of 4 x 4 cells; give at least 24"):
        draw_grid(PIT, (1, 0), (3, 3), (0, 0), size=(80, 20))
    with pytest.raises(ValueError, match=r"agent \(4, 0\) lies outside"):
        draw_grid(PIT, (1, 0), (3, 3), (4, 0))


# --- machines ---


DRAW = """
import mujoco  # first, as physics does
from bvf_tutorial.envs import render
try:
    image = render.draw_point([0, 0, 0], render.circle_shapes(), (48, 64), arena=20.0)
    print(image.shape, image.std() > 5, render.opengl_backend())
except render.RenderingError as error:
    print("refused:", error)
"""


@pytest.mark.field("no-display")
def test_no_display(opengl: str, tmp_path: Path) -> None:
    """MuJoCo is imported first, under its own choice of OpenGL; nothing is printed on the way out, no file is left."""
    finished = run(DRAW, tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.startswith("(48, 64, 3) True ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_each_backend(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYOPENGL_PLATFORM", raising=False)  # MuJoCo sets it in a process that draws
    if reason := render._probe(backend):
        pytest.skip(f"{backend}: {reason}")
    finished = run(DRAW, tmp_path, MUJOCO_GL=backend)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.strip() == f"(48, 64, 3) True {backend}"
    late = DRAW.replace("from bvf_tutorial", f"import os; os.environ['MUJOCO_GL'] = '{backend}'\nfrom bvf_tutorial", 1)
    finished = run(late, tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.strip() == f"(48, 64, 3) True {backend}"


@pytest.mark.field("no-display")
@pytest.mark.skipif(sys.platform != "linux", reason="glfw draws without DISPLAY elsewhere")
def test_no_working_backend_is_a_clear_error_and_no_abort(tmp_path: Path) -> None:
    finished = run(DRAW, tmp_path, MUJOCO_GL="glfw")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.startswith("refused: MuJoCo found no OpenGL to draw with (glfw: ")
    for remedy in ("Unset MUJOCO_GL (it is glfw)", "apt-get install libegl1 libgl1-mesa-dri", "libosmesa6", "Colab"):
        assert remedy in finished.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nonsense", "MUJOCO_GL=nonsense names no OpenGL backend of .*use one of"),
        ("off", "MUJOCO_GL=off switches drawing off"),
    ],
)
def test_wrong_setting(value: str, message: str, tmp_path: Path) -> None:
    finished = run(DRAW.replace("import mujoco", ""), tmp_path, MUJOCO_GL=value)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert re.match(f"refused: {message}", finished.stdout)


@pytest.mark.field("no-display")
@pytest.mark.skipif(sys.platform != "linux", reason="names of signals and packages are Linux's")
def test_a_crashing_driver_is_survived_and_a_repair_noticed(
    fresh_choice: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(render, "_PROBE", "import os; os.abort()")
    with pytest.raises(RenderingError, match=r"egl: the driver crashed \(SIGABRT\); osmesa: the driver crashed"):
        render.opengl_backend()
    monkeypatch.setattr(render, "_PROBE", "import sys; sys.exit('no luck' if sys.argv[1] == 'egl' else 0)")
    assert render.opengl_backend() == os.environ["MUJOCO_GL"] == "osmesa"


def test_a_driver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "_PROBE", "import time; time.sleep(60)")
    assert render._probe("egl", timeout=0.5) == "no picture within 0 s"


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_forked_worker_is_told(opengl: str, tmp_path: Path) -> None:
    """A driver's threads do not survive a fork: without the check, the worker would wait for ever."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing as mp\n"
        "from bvf_tutorial.envs import render\n"
        "def draw(k): return render.draw_point([0, 0, 0], (), (20, 20 + k), arena=6.0).shape\n"
        "if __name__ == '__main__':\n"
        "    with mp.get_context('fork').Pool(1) as pool: print(pool.map(draw, [0]))\n"
        "    draw(0)\n"
        "    for k in range(2):\n"
        "        with mp.get_context('fork').Pool(1) as pool:\n"
        "            try: pool.map(draw, [k])\n"
        "            except render.RenderingError as error: print(error)\n"
    )
    finished = run(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", tmp_path)
    assert finished.returncode == 0, finished.stderr
    first, *later = finished.stdout.splitlines()
    assert first == "[(20, 20, 3)]"
    assert len(later) == 2 and all("was forked after a picture" in line for line in later)


# --- films ---


def walk(n: int, size: tuple[int, int] = (160, 160)) -> list[np.ndarray]:
    grid = GridWorld.random(0)
    return [draw_grid(grid.pit, grid.goal, grid.start, divmod(143 - k % 144, 12), size) for k in range(n)]


@pytest.mark.parametrize("suffix", [".gif", ".mp4", ".MP4"])
@pytest.mark.parametrize("size", [(160, 160), (121, 155)])
def test_film_comes_back(suffix: str, size: tuple[int, int], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    frames = walk(11, size)
    path = video.save_video(tmp_path / "new" / f"film{suffix}", frames, fps=20)
    assert capfd.readouterr() == ("", "")
    assert [p.name for p in path.parent.iterdir()] == [f"film{suffix}"]
    back = iio.imread(path, extension=suffix.lower())
    even = tuple(side + side % 2 for side in size) if suffix != ".gif" else size
    assert back.shape == (11, *even, 3)
    part = back[:, : size[0], : size[1]].astype(int)
    for k in range(11):  # compressed, but nearest to its own picture, and near
        difference = [np.abs(part[k] - frame).mean() for frame in frames]
        assert np.argmin(difference) == k
        assert np.corrcoef(part[k].ravel(), frames[k].ravel())[0, 1] > 0.97
    fps = iio.immeta(path, extension=suffix.lower()).get("fps", 20)
    assert fps == 20
    if suffix == ".gif":
        assert iio.immeta(path)["duration"] == 50 and iio.immeta(path)["loop"] == 0


def test_film_from_one_array_and_from_a_generator(tmp_path: Path) -> None:
    frames = walk(3)
    for k, given in enumerate((np.stack(frames), (frame for frame in frames))):
        assert len(iio.imread(video.save_video(tmp_path / f"{k}.gif", given))) == 3


GOOD = np.zeros((8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("name", "frames", "options", "message"),
    [
        ("a.gif", [], {}, "there are no frames"),
        ("a.avi", [GOOD], {}, r"a.avi ends in '.avi'; a film ends in .gif or .mp4"),
        ("a", [GOOD], {}, r"ends in ''"),
        ("a.mp4", [GOOD, GOOD / 255.0], {}, "frame 1 is float64; pictures are uint8"),
        ("a.mp4", [GOOD, GOOD[:4]], {}, r"frame 1 has shape \(4, 8, 3\), frame 0 \(8, 8, 3\)"),
        ("a.gif", [GOOD[..., 0]], {}, r"frame 0 has shape \(8, 8\), expected \[height, width, 3\]"),
        ("a.gif", [GOOD[:0]], {}, r"frame 0 has shape \(0, 8, 3\)"),
        ("a.gif", [GOOD], {"fps": 0}, "fps is 0"),
        ("a.gif", [GOOD], {"fps": math.nan}, "fps is nan"),
        ("a.mp4", [GOOD], {"crf": 60}, "crf is 60"),
    ],
)
def test_film_refuses(
    name: str, frames: list[np.ndarray], options: dict[str, float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        video.save_video(tmp_path / name, frames, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_film_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = video.save_video(tmp_path / "film.gif", walk(2))
    before = path.read_bytes()

    def fail(partial: Path, *_: object) -> None:
        partial.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(video, "_write_gif", fail)
    with pytest.raises(OSError, match="disk full"):
        video.save_video(path, walk(3))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_inline_video_is_small_whole_and_always_the_same() -> None:
    frames = walk(200, (320, 320))
    film = video.video_html(frames, 'the agent walks "home" & stops')
    assert film.html == film._repr_html_() == video.video_html(frames, film.alt).html
    assert len(film.html) < 300_000 and len(repr(film)) < 200
    assert re.match(r"<video controls loop muted playsinline ", film.html) and film.html.endswith("</video>")
    assert 'aria-label="the agent walks &quot;home&quot; &amp; stops"' in film.html
    assert "http" not in film.html
    (data,) = re.findall(r'src="data:video/mp4;base64,([^"]+)"', film.html)
    assert iio.imread(base64.b64decode(data), extension=".mp4").shape == (200, 320, 320, 3)
    with pytest.raises(ValueError, match="alt is empty"):
        video.video_html(frames, " ")


def test_inline_video_of_a_robot_is_small(opengl: str) -> None:
    shapes = render.circle_shapes()
    frames = [
        draw_point([15 * math.cos(t / 15), 15 * math.sin(t / 15), t / 15 + 1.57], shapes, (320, 320), arena=20.0)
        for t in range(65)
    ]
    assert len(video.video_html(frames, "the robot drives along the circle", fps=10).html) < 100_000
