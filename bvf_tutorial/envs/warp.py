"""This file knows MuJoCo Warp: the same physics in float32, on a GPU or, for tests, on the CPU.

Habits that make it fast and safe. One captured graph is one environment step. Graphs hold pointers, so states are
copied into arrays that are never replaced; torch sees those arrays without a copy. Contacts and constraints live in
arrays of fixed size, and Warp drops what does not fit: the sizes here are upper bounds computed from the model, and an
overflow, possible only with smaller sizes, is recorded on the device and never returned as a state.
"""

import logging
from importlib import import_module
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from .physics import prepared, require_shapes

__all__ = ["WarpPhysics", "contact_bounds"]

_LOG = logging.getLogger(__name__)

# Largest number of contacts of a pair of shapes, as ``mujoco_warp``'s primitive collisions make them.
_CONTACTS = {
    ("mjGEOM_PLANE", "mjGEOM_SPHERE"): 1,
    ("mjGEOM_PLANE", "mjGEOM_CAPSULE"): 2,
    ("mjGEOM_SPHERE", "mjGEOM_SPHERE"): 1,
    ("mjGEOM_SPHERE", "mjGEOM_CAPSULE"): 1,
    ("mjGEOM_CAPSULE", "mjGEOM_CAPSULE"): 2,
}


def _import() -> tuple[Any, Any]:
    """Import Warp quietly, or say how to install it."""
    try:
        warp: Any = import_module("warp")
        if warp.config.log_level == warp.LOG_INFO:
            warp.config.log_level = warp.LOG_WARNING  # its banner goes to standard output
        mujoco_warp: Any = import_module("mujoco_warp")
        warp.init()
    except ImportError as error:
        raise ImportError(f"The Warp engine needs mujoco_warp: pip install 'bvf-tutorial[gpu]' ({error}).") from error
    return warp, mujoco_warp


def contact_bounds(model: mujoco.MjModel, pair: np.ndarray[Any, np.dtype[Any]]) -> tuple[int, int]:
    """Return how many contacts and how many constraint rows a world of this model can have at most.

    Args:
        model: of planes, spheres and capsules.
        pair: [P, 2], the pairs of geoms that may touch.

    Returns:
        The number of contacts and the number of rows, those of contacts, joint limits, equalities and friction losses.

    Raises:
        ValueError: a pair has other shapes; give ``n_contacts`` and ``n_constraints`` yourself.
    """
    n_contacts, n_rows = 0, 0
    for first, second in pair:
        kind = tuple(mujoco.mjtGeom(each).name for each in sorted((model.geom_type[first], model.geom_type[second])))
        if kind not in _CONTACTS:
            raise ValueError(
                f"No bound is known for contacts of {kind[0]} and {kind[1]}: pass n_contacts and n_constraints to "
                "WarpPhysics; an overflow raises an error."
            )
        n_contacts += _CONTACTS[kind]
        n_dimensions = int(max(model.geom_condim[first], model.geom_condim[second]))
        # A friction pyramid has two edges per tangential direction.
        is_pyramid = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL and n_dimensions > 1
        n_rows += _CONTACTS[kind] * (2 * (n_dimensions - 1) if is_pyramid else n_dimensions)
    sides = np.where(np.ptp(model.jnt_range, axis=1) > 2 * model.jnt_margin, 1, 2)
    n_rows += int((sides * (model.jnt_limited > 0)).sum()) + 2 * int((model.tendon_limited > 0).sum())
    n_rows += 6 * model.neq + int((model.dof_frictionloss > 0).sum()) + int((model.tendon_frictionloss > 0).sum())
    return n_contacts, n_rows


class WarpPhysics:
    """``mujoco_warp`` for a fixed number of worlds; float32.

    Nothing in ``advance`` waits for a GPU. There an overflow turns the world's state into NaN, which ``VectorEnv``
    reports, and ``check`` says why; on the CPU ``advance`` raises at once.

    The first use on a machine compiles kernels, about a minute, and Warp keeps them in its cache.

    Args:
        model: the model.
        n_worlds: number of worlds, exactly.
        device: "cpu", "cuda" or "cuda:i".
        n_contacts: room for contacts, per world on average; 0 means the model's upper bound.
        n_constraints: room for constraint rows in each world; 0 means the model's upper bound.
        is_deterministic: whether a GPU must add up contact forces in the same order every time, so that equal states
            give equal futures to the last bit. On the CPU they always do.

    Raises:
        ImportError: mujoco_warp is missing.
    """

    dtype = torch.float32

    def __init__(
        self,
        model: mujoco.MjModel,
        n_worlds: int,
        device: str | torch.device = "cpu",
        n_contacts: int = 0,
        n_constraints: int = 0,
        is_deterministic: bool = True,
    ) -> None:
        if n_worlds < 1:
            raise ValueError(f"n_worlds is {n_worlds}; it is at least 1.")
        self._warp, self._mjw = _import()
        self.model, self.n_worlds, self.device = prepared(model), n_worlds, _with_index(torch.device(device))
        # Warp never resets a world and does not know the flag that forbids it.
        self.model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self._asked, self.is_deterministic = (n_contacts, n_constraints), is_deterministic
        self._where = self._warp.device_from_torch(self.device)
        self._build()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.n_worlds, str(self.device), *self._asked, self.is_deterministic)

    def _build(self) -> None:
        warp, mjw = self._warp, self._mjw
        with warp.ScopedDevice(self._where):
            self._m = mjw.put_model(self.model)
            self._m.opt.warn_overflow = 0  # it would print; the bits are recorded all the same
            self._m.opt.deterministic = int(
                mjw.DeterminismType.ALL if self.is_deterministic else mjw.DeterminismType.NONE
            )
            self._m.opt.graph_conditional = not self._where.is_cuda or warp.is_conditional_graph_supported()
            room = self._asked
            if 0 in room:
                bounds = contact_bounds(self.model, self._m.nxn_geom_pair_filtered.numpy().reshape(-1, 2))
                room = (room[0] or bounds[0], room[1] or bounds[1])
            # Arrays of size 0 are legal but useless; one spare row costs nothing.
            self.n_contacts, self.n_constraints = max(room[0], 1), max(room[1], 1)
            self._d = mjw.make_data(self.model, nworld=self.n_worlds, nconmax=self.n_contacts, njmax=self.n_constraints)
        self._position, self._velocity = warp.to_torch(self._d.qpos), warp.to_torch(self._d.qvel)
        self._control, self._overflow = warp.to_torch(self._d.ctrl), warp.to_torch(self._d.overflow)
        self._seen = torch.zeros_like(self._overflow)
        # Reaching the solver's iteration limit is no overflow; MuJoCo's C code goes on in the same way.
        harmless = mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS
        self._fatal = int(mjw.OverflowType.ALL & ~harmless)
        self._graphs: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}

    def advance(self, state: Tensor, control: Tensor, n_steps: int) -> Tensor:
        """Return the state after ``n_steps`` physics steps; see ``Physics.advance``.

        Raises:
            ValueError: the shapes or the number of worlds do not fit.
            RuntimeError: on the CPU, contacts or constraints overflowed.
        """
        require_shapes(self.model, state, control, n_steps)
        if len(state) != self.n_worlds:
            raise ValueError(f"state has {len(state)} worlds; this engine was built for {self.n_worlds}.")
        if n_steps not in self._graphs:
            self._graphs[n_steps] = self._captured(n_steps)
        self._position.copy_(state[:, : self.model.nq])
        self._velocity.copy_(state[:, self.model.nq :])
        self._control.copy_(control)
        self._launch(self._graphs[n_steps])
        end = torch.cat([self._position, self._velocity], dim=1)
        self._seen |= self._overflow
        if self.device.type == "cpu":
            self.check()
            return end
        return end.masked_fill((self._overflow & self._fatal).bool()[:, None], torch.nan)

    def _steps(self, n_steps: int) -> None:
        # What a step leaves behind and a later one would read: none of it may outlive an environment step.
        self._d.qacc_warmstart.zero_()
        self._d.overflow.zero_()
        self._d.time.zero_()
        for _ in range(n_steps):
            self._mjw.step(self._m, self._d)

    def _captured(self, n_steps: int) -> Any:
        """Record one environment step as a graph; the first run compiles and loads the kernels."""
        warp = self._warp
        _LOG.info(
            "mujoco_warp: preparing kernels on %s; about a minute where they are not in Warp's cache", self.device
        )
        if not self._where.is_cuda:
            with warp.ScopedDevice(self._where):
                self._steps(1)
                with warp.ScopedCapture(device=self._where) as capture:
                    self._steps(n_steps)
            return capture.graph
        # Torch's default stream cannot be captured, so another one is, between two waits that only the first call has.
        torch.cuda.synchronize(self.device)
        stream = warp.Stream(self._where)
        with warp.ScopedStream(stream):
            self._steps(1)
            with warp.ScopedCapture(stream=stream) as capture:
                self._steps(n_steps)
        warp.synchronize_device(self._where)
        return capture.graph

    def _launch(self, graph: Any) -> None:
        if not self._where.is_cuda:
            self._warp.capture_launch(graph)
            return
        # On the stream that torch copies on, so that their order needs no wait.
        current = torch.cuda.current_stream(self.device)
        if current.cuda_stream not in self._streams:
            self._streams[current.cuda_stream] = self._warp.stream_from_torch(current)
        self._warp.capture_launch(graph, stream=self._streams[current.cuda_stream])

    def check(self) -> None:
        """Raise if contacts or constraints ever overflowed, which makes results wrong; waits for the device.

        Raises:
            RuntimeError: with the worlds, the sizes and the remedy.
        """
        bits = self._seen & self._fatal
        if not bool(bits.any()):
            return
        world = int(bits.nonzero()[0])
        what = self._mjw.OverflowType(int(bits[world])).name
        self._seen.zero_()
        raise RuntimeError(
            f"mujoco_warp overflowed ({what}) in {int((bits != 0).sum())} of {self.n_worlds} worlds, first in world "
            f"{world}: there was room for {self.n_contacts} contacts and {self.n_constraints} constraint rows a world. "
            "Leave n_contacts and n_constraints at 0 for the model's upper bound, or raise them."
        )

    def close(self) -> None:
        """Release the graphs; a later ``advance`` captures anew."""
        self._graphs.clear()


def _with_index(device: torch.device) -> torch.device:
    """Return "cuda" as the current "cuda:i", so that it equals the device of tensors."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
