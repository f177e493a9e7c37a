"""This file knows how MuJoCo advances many worlds at once, and which of two engines does it.

Physics here is a function: state and controls in, state out. A world's future depends on its own state and controls and
on nothing else, so a resumed run goes on exactly and the size of the batch changes nothing. The price is one habit of
MuJoCo that is given up: the contact solver's warm start is dropped between environment steps (it is kept within one).

Two engines behind one interface: ``RolloutPhysics`` runs MuJoCo itself (float64) on a pool of threads that lives on
between calls; ``warp.WarpPhysics`` runs its port to GPUs (float32). Neither prints, writes ``MUJOCO_LOG.TXT`` or resets
a world by itself: a simulation that blew up comes back as NaN.
"""

import copy
import ctypes
import importlib.util
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, Protocol

import mujoco
import numpy as np
import torch
from mujoco.rollout import Rollout
from torch import Tensor

__all__ = ["Backend", "Physics", "RolloutPhysics", "backend_for", "choose_physics", "load_model"]

Backend = Literal["auto", "rollout", "warp"]
"""Which engine runs the physics, MuJoCo's C code on the CPU, its Warp port, or whichever suits the device."""

_LOG = logging.getLogger(__name__)
_MOST_THREADS = 64
# Chunks per thread and call. One chunk leaves a thread idle when the other's worlds are dearer; ten cost more locking.
_CHUNKS = 4


class Physics(Protocol):
    """Many worlds of one model.

    Attributes:
        model: the compiled model, which the engine owns.
        device: where the states that ``advance`` returns live.
        dtype: their type.
    """

    model: mujoco.MjModel
    device: torch.device
    dtype: torch.dtype

    def advance(self, state: Tensor, control: Tensor, n_steps: int) -> Tensor:
        """Return the state after ``n_steps`` steps of ``model.opt.timestep`` seconds under constant controls.

        The result is new memory that no later call changes. A world whose simulation blew up is NaN throughout.

        Args:
            state: [W, nq + nv], positions and velocities.
            control: [W, nu], within the actuators' ranges or clipped to them by MuJoCo.
            n_steps: physics steps, >= 1.
        """

    def check(self) -> None:
        """Raise if an earlier result is wrong for a reason that it does not show; may wait for the device."""

    def close(self) -> None:
        """Release threads and memory. The engine may be used again; it then starts anew."""


@lru_cache(maxsize=32)
def load_model(name: str) -> mujoco.MjModel:
    """Return one of Gymnasium's own models, e.g. "half_cheetah", compiled without printing and without a log file.

    Equal names give the same object; copy it before you change it, as the engines do.

    The deprecated attribute ``settotalmass`` makes MuJoCo print and log a warning. It is taken out of the text and what
    it did is done to the compiled model; a test holds every number of the result to the deprecated path.

    Raises:
        ValueError: Gymnasium has no such model; the message lists those it has.
    """
    folder = files("gymnasium") / "envs" / "mujoco" / "assets"
    text = folder / f"{name}.xml"
    if not text.is_file():
        known = ", ".join(
            sorted(each.name.removesuffix(".xml") for each in folder.iterdir() if each.name.endswith(".xml"))
        )
        raise ValueError(f"Gymnasium has no MuJoCo model {name!r}; it has {known}.")
    xml = text.read_text(encoding="utf-8")
    attribute = re.search(r'\s+settotalmass="([^"]+)"', xml)
    model = mujoco.MjModel.from_xml_string(xml.replace(attribute[0], "") if attribute else xml)
    if attribute:
        _set_total_mass(model, float(attribute[1]))
    return model


def _set_total_mass(model: mujoco.MjModel, mass: float) -> None:
    """Scale masses and inertias, and recompute everything that depends on them."""
    data = mujoco.MjData(model)
    mujoco.mj_setTotalmass(model, mass)
    mujoco.mj_setConst(model, data)
    # mj_setConst keeps the two means of the unscaled model; the contact solver stops by the second.
    mujoco.mj_resetData(model, data)
    mujoco.mj_forward(model, data)
    column, diagonal = np.zeros(model.nv), 0.0
    for index, unit in enumerate(np.eye(model.nv)):
        mujoco.mj_mulM(model, data, column, unit)
        diagonal += column[index]
    model.stat.meaninertia = diagonal / model.nv
    model.stat.meanmass = model.body_mass[1:].mean()


def prepared(model: mujoco.MjModel) -> mujoco.MjModel:
    """Return an engine's own copy of a model.

    Raises:
        ValueError: the model has state besides positions and velocities.
    """
    full = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    if full != 1 + model.nq + model.nv:
        raise ValueError(
            f"The model's state has {full} numbers, more than time, {model.nq} positions and {model.nv} velocities; "
            "models with activations, plugins or delays are not supported."
        )
    return copy.copy(model)


def require_shapes(model: mujoco.MjModel, state: Tensor, control: Tensor, n_steps: int) -> None:
    """Raise a ValueError in words if ``advance`` got something that does not fit its model."""
    expected = ((len(state), model.nq + model.nv), (len(state), model.nu))
    if (tuple(state.shape), tuple(control.shape)) != expected:
        raise ValueError(
            f"state has shape {tuple(state.shape)} and control {tuple(control.shape)}; "
            f"expected {expected[0]} and {expected[1]}."
        )
    if n_steps < 1 or len(state) < 1:
        raise ValueError(f"n_steps is {n_steps} for {len(state)} worlds; both are at least 1.")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class RolloutPhysics:
    """MuJoCo's C code on a pool of threads, through ``mujoco.rollout``; float64.

    One call of ``advance`` is one call of ``mujoco.rollout``, whose threads wait between calls. Forking, pickling and
    copying are safe: the other process or copy starts a pool of its own.

    Args:
        model: the model; any number of worlds may be advanced.
        n_threads: threads of the pool; 0 means one per available core, at most 64.
        device: where ``advance`` returns states. On a GPU every step is copied to the host and back.
    """

    dtype = torch.float64

    def __init__(self, model: mujoco.MjModel, n_threads: int = 0, device: str | torch.device = "cpu") -> None:
        if n_threads < 0:
            raise ValueError(f"n_threads is {n_threads}; it is at least 1, or 0 for one per core.")
        self.model, self.device = prepared(model), torch.device(device)
        # A bad world would otherwise be put back to the model's initial position, silently.
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        if self.model.ntree == 1:
            # One robot is one island of a few bodies with a few shapes each; looking for other islands, and sorting out
            # shapes by boxes around them, takes 8% of a step and changes no bit (a test compares).
            self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND | mujoco.mjtDisableBit.mjDSBL_MIDPHASE
        self.n_threads = n_threads or min(available_cores(), _MOST_THREADS)
        self._forget()
        _ENGINES.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.n_threads, str(self.device))

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._is_open, self._shape = False, (0, 0)
        self._pool, self._alone = Rollout(nthread=0), Rollout(nthread=0)

    def _orphan(self) -> None:
        """Let go of a pool that came through a fork without its threads; its destructor would wait for them."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pool.rollout_))
        self._forget()

    def _open(self, n_worlds: int, n_steps: int) -> None:
        """Make pool and buffers fit: threads once, buffers whenever the shape changes."""
        if not self._is_open:
            self._pool = Rollout(nthread=self.n_threads if self.n_threads > 1 else 0)
            self._data = [mujoco.MjData(self.model) for _ in range(self.n_threads)]
            self._is_open = True
        if self._shape != (n_worlds, n_steps):
            size, n_controls = 1 + self.model.nq + self.model.nv, self.model.nu
            self._start = np.zeros((n_worlds, size))
            self._control = np.zeros((n_worlds, n_steps, n_controls))
            self._path = np.zeros((n_worlds, n_steps, size))
            self._sensor = np.zeros((n_worlds, n_steps, self.model.nsensordata))
            # The same memory as torch sees it; column 0 is the time, which nothing depends on.
            self._start_view = torch.from_numpy(self._start)[:, 1:]
            self._control_view = torch.from_numpy(self._control)
            self._end_view = torch.from_numpy(self._path)[:, -1, 1:]
            self._models = [self.model] * n_worlds
            self._shape = (n_worlds, n_steps)

    def advance(self, state: Tensor, control: Tensor, n_steps: int) -> Tensor:
        """Return the state after ``n_steps`` physics steps; see ``Physics.advance``."""
        require_shapes(self.model, state, control, n_steps)
        with self._lock:
            self._open(len(state), n_steps)
            self._start_view.copy_(state)
            self._control_view.copy_(control[:, None])
            self._run(len(state), n_steps)
            end = self._end_view.clone()
            # MuJoCo stops a world at its first warning, and its clock tells.
            has_stopped = self._path[:, -1, 0] < (n_steps - 0.5) * self.model.opt.timestep
            if has_stopped.any():
                end[torch.from_numpy(has_stopped)] = torch.nan
        return end.to(self.device)

    def _run(self, n_worlds: int, n_steps: int) -> None:
        chunk = -(-n_worlds // (self.n_threads * _CHUNKS))
        # A batch of one chunk is done before a thread has woken up.
        is_small = n_worlds <= chunk
        run: Callable[..., object] = (self._alone if is_small else self._pool).rollout
        data = self._data[:1] if is_small else self._data
        # The handler is global to the process: without one MuJoCo prints each warning and writes MUJOCO_LOG.TXT.
        handler = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(_ignore)
        try:
            run(
                self._models,
                data,
                self._start,
                self._control,
                skip_checks=True,
                nstep=n_steps,
                state=self._path,
                sensordata=self._sensor,
                chunk_size=chunk,
            )
        finally:
            mujoco.set_mju_user_warning(handler)

    def check(self) -> None:
        """Do nothing: whatever goes wrong here shows as NaN."""

    def close(self) -> None:
        """End the threads; a later ``advance`` starts new ones."""
        self._data = []
        self._forget()


_ENGINES: "weakref.WeakSet[RolloutPhysics]" = weakref.WeakSet()


def _orphan_all() -> None:
    for engine in list(_ENGINES):
        engine._orphan()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_orphan_all)


def _ignore(message: str) -> None:
    """Drop a warning of MuJoCo; the world that it is about comes back as NaN."""


def backend_for(device: str | torch.device, backend: Backend = "auto") -> tuple[Literal["rollout", "warp"], str]:
    """Return the engine that suits a device, and why in words.

    Raises:
        ValueError: no such backend.
    """
    kind = torch.device(device).type
    if backend == "auto":
        if kind != "cuda":
            return "rollout", f"the device is {kind}"
        if importlib.util.find_spec("mujoco_warp") is None:
            return "rollout", "mujoco_warp is not installed: pip install 'bvf-tutorial[gpu]'"
        return "warp", "the device is cuda and mujoco_warp is installed"
    if backend not in ("rollout", "warp"):
        raise ValueError(f"backend is {backend!r}; say 'auto', 'rollout' or 'warp'.")
    return backend, "asked for"


def choose_physics(
    model: mujoco.MjModel,
    n_worlds: int,
    device: str | torch.device = "cpu",
    backend: Backend = "auto",
    n_threads: int = 0,
) -> Physics:
    """Return the engine for ``n_worlds`` worlds on a device, and say in the log which one and why.

    Args:
        model: the model.
        n_worlds: number of worlds; only Warp needs to know it in advance.
        device: where the states live.
        backend: "auto" takes Warp on CUDA if it is installed, otherwise MuJoCo's threads.
        n_threads: see ``RolloutPhysics``.
    """
    chosen, reason = backend_for(device, backend)
    if chosen == "warp":
        from .warp import WarpPhysics

        _LOG.info("physics: mujoco_warp for %d worlds on %s (%s)", n_worlds, device, reason)
        return WarpPhysics(model, n_worlds, device)
    engine = RolloutPhysics(model, n_threads, device)
    copied = "" if engine.device.type == "cpu" else f"; each step is copied between {engine.device} and the host"
    _LOG.info(
        "physics: mujoco.rollout with %d threads for %d worlds on %s (%s%s)",
        engine.n_threads, n_worlds, device, reason, copied,
    )  # fmt: skip
    return engine
