"""The two engines: held to C MuJoCo, to each other, and to the promise that a world depends on itself alone.

Everything that needs Warp is in this file, so that its kernels are compiled by one worker only (about two minutes where
they are not cached, seconds where they are).
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from bvf_tutorial.envs.base import VectorEnv
from bvf_tutorial.envs.locomotion import Locomotion, SafeAnt, SafeCheetah, SafeHopper, SafeSwimmer, SafeWalker2d
from bvf_tutorial.envs.physics import Physics, RolloutPhysics, backend_for, choose_physics, load_model
from bvf_tutorial.envs.warp import WarpPhysics, contact_bounds

MODELS = ("half_cheetah", "hopper", "walker2d_v5", "ant", "swimmer")
ROBOTS = (SafeCheetah, SafeHopper, SafeWalker2d, SafeAnt, SafeSwimmer)

needs_warp = pytest.mark.skipif(importlib.util.find_spec("mujoco_warp") is None, reason="needs bvf-tutorial[gpu]")


def rollout(n_worlds: int, name: str = "half_cheetah") -> Physics:
    return RolloutPhysics(load_model(name), n_threads=2)


def warp(n_worlds: int, name: str = "half_cheetah") -> Physics:
    return WarpPhysics(load_model(name), n_worlds)


both = pytest.mark.parametrize("make", [rollout, pytest.param(warp, marks=needs_warp)])


def random_state(n_worlds: int, seed: int = 0, name: str = "half_cheetah", scale: float = 0.1) -> Tensor:
    model, generator = load_model(name), torch.Generator().manual_seed(seed)
    rest = torch.cat([torch.tensor(model.qpos0), torch.zeros(model.nv, dtype=torch.float64)])
    return rest + scale * torch.randn(n_worlds, len(rest), dtype=torch.float64, generator=generator)


def random_control(n_worlds: int, seed: int = 0, n: int = 6) -> Tensor:
    return 2 * torch.rand(n_worlds, n, generator=torch.Generator().manual_seed(seed)) - 1


# --- models ----------------------------------------------------------------------------------------------------------


def run_quietly(code: str, folder: Path) -> None:
    finished = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


def test_nothing_is_printed_and_no_file_appears(tmp_path: Path) -> None:
    """Neither by compiling the five models, nor by advancing them, nor by a world that blows up."""
    code = (
        "import torch\n"
        "from bvf_tutorial.envs.physics import load_model, RolloutPhysics\n"
        f"for name in {MODELS}:\n"
        "    model = load_model(name)\n"
        "    state = torch.zeros(4, model.nq + model.nv); state[:, :model.nq] = torch.tensor(model.qpos0)\n"
        "    state[1, -1] = torch.nan; state[2] = 1e9\n"
        "    end = RolloutPhysics(model).advance(state, torch.zeros(4, model.nu), 5)\n"
        "    assert end.isfinite().all(dim=1).tolist() == [True, False, False, True]\n"
    )
    run_quietly(f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n" + code, tmp_path)
    assert list(tmp_path.iterdir()) == []


def numbers(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    """Return every array of a model, those of its statistics and options included."""
    found = {}
    for part in ("", "stat", "opt"):
        owner = getattr(model, part) if part else model
        for name in dir(owner):
            value = getattr(owner, name) if not name.startswith("_") else None
            if isinstance(value, np.ndarray | float) and np.asarray(value).dtype.kind == "f":
                found[f"{part}.{name}"] = np.array(value)
    return found


def test_total_mass_is_set_as_the_deprecated_attribute_did(tmp_path: Path) -> None:
    code = (
        "import sys, mujoco, gymnasium\n"
        "from pathlib import Path\n"
        "folder = Path(gymnasium.__file__).parent / 'envs' / 'mujoco' / 'assets'\n"
        "mujoco.mj_saveModel(mujoco.MjModel.from_xml_path(str(folder / 'half_cheetah.xml')), 'old.mjb')\n"
    )
    # In a folder of its own, because this path prints and writes MUJOCO_LOG.TXT.
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    old, new = numbers(mujoco.MjModel.from_binary_path(str(tmp_path / "old.mjb"))), numbers(load_model("half_cheetah"))
    assert old.keys() == new.keys()
    assert {".body_mass", ".body_inertia", ".dof_invweight0", ".body_invweight0", "stat.meaninertia"} <= old.keys()
    for key, value in old.items():
        np.testing.assert_allclose(new[key], value, rtol=1e-13, atol=0, err_msg=key)
    assert new[".body_mass"].sum() == pytest.approx(14.0)


def test_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no MuJoCo model 'half_cheeta'; it has ant, half_cheetah, hopper"):
        load_model("half_cheeta")


def test_a_model_with_hidden_state_is_refused() -> None:
    """An actuator with a filter remembers; a state of positions and velocities would forget it at every step."""
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint name='j'/><geom size='.1'/></body></worldbody>"
        "<actuator><general joint='j' dyntype='filter' dynprm='.1'/></actuator></mujoco>"
    )
    with pytest.raises(ValueError, match="activations"):
        RolloutPhysics(model)


# --- the law ---------------------------------------------------------------------------------------------------------


@both
def test_against_c_mujoco_resynchronised(make: Callable[[int], Physics]) -> None:
    """32 worlds, 50 steps, the state of ``mj_step`` handed to the engine before each: chaos gets no time.

    Gives the errors of one environment step. ``mujoco.rollout`` runs the same code from the same (dropped) warm start, so
    it must agree to the last bit; Warp works in float32.
    """
    n_worlds, engine = 32, make(32)
    model, data = engine.model, mujoco.MjData(engine.model)
    state = random_state(n_worlds)
    error = torch.zeros(2 * model.nv, dtype=torch.float64)
    for step in range(50):
        control = random_control(n_worlds, seed=step)
        end = engine.advance(state, control, 5).double()
        for world in range(n_worlds):
            mujoco.mj_resetData(model, data)
            data.qpos[:], data.qvel[:] = state[world, : model.nq].numpy(), state[world, model.nq :].numpy()
            data.ctrl[:] = control[world].numpy()
            mujoco.mj_step(model, data, nstep=5)
            state[world] = torch.from_numpy(np.concatenate([data.qpos, data.qvel]))
        error = torch.maximum(error, (end - state).abs().amax(dim=0))
    if make is rollout:
        assert float(error.max()) == 0.0
    else:
        assert float(error[: model.nq].max()) < 2e-4
        assert float(error[model.nq :].max()) < 3e-2
        assert float(error.max()) > 0.0


@both
def test_a_world_alone_and_in_a_batch(make: Callable[[int], Physics]) -> None:
    """Batches of 1 and of B: identical trajectories, to the last bit, and in any order of the worlds."""
    n_worlds, n_steps = 7, 40
    many, one, order = make(n_worlds), make(1), torch.randperm(n_worlds, generator=torch.Generator().manual_seed(3))
    start = random_state(n_worlds).to(many.dtype)
    state, shuffled, alone = start, start[order], start[4:5]
    for step in range(n_steps):
        control = random_control(n_worlds, seed=step)
        state, shuffled = many.advance(state, control, 5), many.advance(shuffled, control[order], 5)
        alone = one.advance(alone, control[4:5], 5)
        assert torch.equal(state[4:5], alone)
        assert torch.equal(state[order], shuffled)


@both
def test_masked_reset_leaves_other_worlds_alone(make: Callable[[int], Physics]) -> None:
    n_worlds, engine = 12, make(12)
    state = changed = random_state(n_worlds).to(engine.dtype)
    fresh, is_reset = random_state(n_worlds, seed=9).to(engine.dtype), torch.zeros(n_worlds, dtype=torch.bool)
    for step in range(30):
        control = random_control(n_worlds, seed=step)
        if step % 10 == 5:
            mask = torch.arange(n_worlds) % 4 == step // 10
            changed, is_reset = torch.where(mask[:, None], fresh, changed), is_reset | mask
        state, changed = engine.advance(state, control, 5), engine.advance(changed, control, 5)
    assert is_reset.tolist() == [True, True, True, False] * 3
    assert torch.equal(state[~is_reset], changed[~is_reset])
    assert (state[is_reset] != changed[is_reset]).any(dim=1).all()


@both
def test_results_are_new_and_inputs_unchanged(make: Callable[[int], Physics]) -> None:
    engine, state, control = make(3), random_state(3), random_control(3)
    given = state.clone(), control.clone()
    first = engine.advance(state, control, 5)
    kept = first.clone()
    second = engine.advance(first, -control, 5)
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)
    assert torch.equal(engine.advance(first, -control, 5), second)
    assert torch.equal(state, given[0]) and torch.equal(control, given[1])
    assert (first.dtype, first.device) == (engine.dtype, engine.device)


@both
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e12])
def test_a_world_that_blows_up_is_nan_and_alone(
    make: Callable[[int], Physics], bad: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """MuJoCo by itself would print, write a log and put the world back to its initial position."""
    monkeypatch.chdir(tmp_path)
    engine, state, control = make(6), random_state(6), random_control(6)
    engine.advance(state, control, 5)
    broken = state.clone()
    broken[2, 9:] = bad
    capfd.readouterr()
    for _ in range(2):
        good, end = engine.advance(state, control, 5), engine.advance(broken, control, 5)
        if bad == 1e12 and make is warp:  # float32 may carry this on for a step; it is huge, not put back
            assert not bool((end[2].abs() < 1e3).all())
        else:
            assert not bool(end[2].isfinite().all())
        others = [0, 1, 3, 4, 5]
        assert torch.equal(end[others], good[others])
        state, broken = good, end
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_warning_handler_of_the_user_survives() -> None:
    heard: list[str] = []
    mujoco.set_mju_user_warning(heard.append)
    try:
        rollout(2).advance(torch.full((2, 18), torch.nan), random_control(2), 5)
        assert heard == []
        data = mujoco.MjData(load_model("half_cheetah"))
        data.qvel[:] = np.nan
        mujoco.mj_step(load_model("half_cheetah"), data)
        assert len(heard) > 0
    finally:
        mujoco.set_mju_user_warning(None)


@both
def test_shapes_that_do_not_fit_are_named(make: Callable[[int], Physics]) -> None:
    engine = make(3)
    with pytest.raises(ValueError, match=r"state has shape \(3, 17\) and control \(3, 6\); expected \(3, 18\)"):
        engine.advance(torch.zeros(3, 17), torch.zeros(3, 6), 5)
    with pytest.raises(ValueError, match=r"control \(2, 6\); expected \(3, 18\) and \(3, 6\)"):
        engine.advance(torch.zeros(3, 18), torch.zeros(2, 6), 5)
    with pytest.raises(ValueError, match="n_steps is 0"):
        engine.advance(torch.zeros(3, 18), torch.zeros(3, 6), 0)


@both
def test_copies_and_pickles_give_the_same_physics(make: Callable[[int], Physics]) -> None:
    engine, state, control = make(4), random_state(4), random_control(4)
    end = engine.advance(state, control, 5)
    for other in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        assert torch.equal(other.advance(state, control, 5), end)
    engine.close()
    assert torch.equal(engine.advance(state, control, 5), end)


# --- threads ---------------------------------------------------------------------------------------------------------


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_threads_end_with_the_engine() -> None:
    before = count_threads()
    engines = [RolloutPhysics(load_model("half_cheetah"), n_threads=3) for _ in range(2)]
    for engine in engines:
        engine.advance(random_state(50), random_control(50), 5)
        engine.advance(random_state(60), random_control(60), 5)
    assert count_threads() == before + 6
    engines[0].close()
    assert count_threads() == before + 3
    del engine, engines
    assert count_threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("use", ["assert torch.equal(engine.advance(state, control, 5), end)", "del engine", "pass"])
def test_a_forked_child_starts_threads_of_its_own(use: str, tmp_path: Path) -> None:
    """A fork copies no threads: a child that used, or at its end deleted, its parent's pool would wait for ever."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "import os, torch, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from bvf_tutorial.envs.physics import RolloutPhysics, load_model\n"
        "engine = RolloutPhysics(load_model('half_cheetah'), 2)\n"
        "state, control = torch.full((40, 18), 0.1), torch.ones(40, 6)\n"
        "end = engine.advance(state, control, 5)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        f"    {use}\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "assert torch.equal(engine.advance(state, control, 5), end)\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize("n_worlds", [1, 2, 9, 100])
def test_the_number_of_threads_changes_nothing(n_worlds: int) -> None:
    state, control = random_state(n_worlds), random_control(n_worlds)
    ends = [RolloutPhysics(load_model("half_cheetah"), n).advance(state, control, 5) for n in (1, 2, 5)]
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])
    with pytest.raises(ValueError, match="n_threads is -1"):
        RolloutPhysics(load_model("half_cheetah"), -1)


# --- choice ----------------------------------------------------------------------------------------------------------


def test_the_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="bvf_tutorial.envs.physics"):
        engine = choose_physics(load_model("hopper"), 5, "cpu", n_threads=2)
    assert isinstance(engine, RolloutPhysics)
    assert caplog.messages == ["physics: mujoco.rollout with 2 threads for 5 worlds on cpu (the device is cpu)"]


def test_the_choice_follows_device_and_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: object() if name == "mujoco_warp" else found(name)
    )
    assert backend_for("cuda:1")[0] == "warp"
    assert backend_for("cpu")[0] == "rollout"
    assert backend_for("cuda", "rollout") == ("rollout", "asked for")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "mujoco_warp" else found(name))
    assert backend_for("cuda") == ("rollout", "mujoco_warp is not installed: pip install 'bvf-tutorial[gpu]'")
    with pytest.raises(ValueError, match="backend is 'mjx'; say 'auto', 'rollout' or 'warp'"):
        backend_for("cpu", "mjx")  # type: ignore[arg-type]


def test_a_missing_installation_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    monkeypatch.setitem(sys.modules, "warp", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'bvf-tutorial[gpu]'")):
        choose_physics(load_model("half_cheetah"), 2, "cpu", "warp")


# --- Warp ------------------------------------------------------------------------------------------------------------


@needs_warp
@pytest.mark.parametrize(
    ("room", "what"), [({"n_constraints": 8}, "NEFC"), ({"n_contacts": 1}, "NARROWPHASE|BROADPHASE")]
)
def test_overflow_raises(room: dict[str, int], what: str) -> None:
    """Warp itself drops the rows that do not fit and goes on with wrong physics."""
    engine, state = WarpPhysics(load_model("half_cheetah"), 3, **room), random_state(3, scale=0.0)
    state[:, 1] = -0.8  # the cheetah stands in the floor with every limb
    with pytest.raises(
        RuntimeError, match=rf"overflowed \(.*({what}).*\) in 3 of 3 worlds, first in world 0: .*upper bound"
    ):
        engine.advance(state, random_control(3), 5)
    warp(3).advance(state, random_control(3), 5)


@needs_warp
def test_room_is_an_upper_bound() -> None:
    """The bounds hold for every state; here the fullest of many random ones reaches for them."""
    import mujoco_warp

    expected = {
        "half_cheetah": (16, 70),
        "hopper": (14, 41),
        "walker2d_v5": (14, 62),
        "ant": (25, 108),
        "swimmer": (0, 2),
    }
    for name in MODELS:
        model = load_model(name)
        bound = contact_bounds(model, mujoco_warp.put_model(model).nxn_geom_pair_filtered.numpy().reshape(-1, 2))
        assert bound == expected[name]
        data, generator, most = mujoco.MjData(model), np.random.default_rng(0), (0, 0)
        for _ in range(300):
            data.qpos[:] = model.qpos0 + generator.normal(scale=1.5, size=model.nq)
            if bound[0]:  # into the floor with all
                data.qpos[1 if name != "ant" else 2] = -3.0
            mujoco.mj_forward(model, data)
            most = max(most[0], data.ncon), max(most[1], data.nefc)
        assert most[0] <= bound[0] and most[1] <= bound[1]
        assert most[1] > bound[1] / 2


@needs_warp
def test_unknown_shapes_ask_for_room() -> None:
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom type='plane' size='1 1 1'/><body><freejoint/><geom type='box' size='.1 .1 .1'/></body>"
        "</worldbody></mujoco>"
    )
    with pytest.raises(ValueError, match="mjGEOM_PLANE and mjGEOM_BOX: pass n_contacts and n_constraints"):
        WarpPhysics(model, 1)


@needs_warp
@pytest.mark.parametrize("task", ROBOTS)
def test_every_robot_on_both_engines(task: type[Locomotion]) -> None:
    """One environment step of each from random states, then a short play that stays finite."""
    name, n_steps = task.robot.model, task.robot.frame_skip
    n_controls = load_model(name).nu
    state, control = random_state(16, name=name, scale=0.03), random_control(16, n=n_controls)
    engines = rollout(16, name), warp(16, name)
    ends = [engine.advance(state, control, n_steps).double() for engine in engines]
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=3e-3)
    for engine, backend in zip(engines, ("rollout", "warp"), strict=True):
        env = VectorEnv(task(backend=backend), n_envs=4)
        env.reset(seed=0)
        for step in range(20):
            shown = env.step(random_control(4, seed=step, n=n_controls)[None])
        assert shown.observation.isfinite().all() and shown.reward.abs().max() > 0
        assert env.task.physics(4).dtype == engine.dtype  # type: ignore[attr-defined]


def play(backend: str, n_episodes: int) -> tuple[Tensor, Tensor]:
    """Return the returns and the costs of episodes of uniform actions, [n_episodes]."""
    env = VectorEnv(SafeCheetah(backend=backend), n_envs=n_episodes)
    shown = env.reset(seed=1)
    generator = torch.Generator().manual_seed(0)
    returned, cost = shown.reward.double(), shown.cost.double()
    while not shown.is_last.any():
        shown = env.step(2 * torch.rand(1, n_episodes, 6, generator=generator) - 1)
        returned, cost = returned + shown.reward, cost + shown.cost
    assert shown.is_last.all()
    return returned[0], cost[0]


@needs_warp
def test_random_play_has_the_same_statistics() -> None:
    """Single trajectories part within 50 steps, chaotically; their distribution must not."""
    n_episodes = 300
    for one, other in zip(play("rollout", n_episodes), play("warp", n_episodes), strict=True):
        error = float(torch.sqrt((one.var() + other.var()) / n_episodes))
        assert 0 < error < 3
        assert abs(float(one.mean() - other.mean())) < 3 * error


@needs_warp
@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahead of time, for sm_90, with the compiler that comes with Warp: no GPU is needed."""
    import warp as wp

    module_type, used = type(wp.get_module("mujoco_warp._src.forward")), {}
    load = module_type.load

    def recorded(self, *rest, **named):  # type: ignore[no-untyped-def]
        used[self.name] = self
        return load(self, *rest, **named)

    monkeypatch.setattr(module_type, "load", recorded)
    warp(2).advance(random_state(2), random_control(2), 5)
    assert len(used) > 30
    for module in used.values():
        made = wp.compile_aot_module(module, arch=90, module_dir=tmp_path, use_ptx=True)
        assert [each.suffixes[-2:] for each in made] == [[".sm90", ".ptx"]]
        assert ".target sm_90" in made[0].read_text()
