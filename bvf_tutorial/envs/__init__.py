"""The tasks: exact layouts in NumPy, and each task as one torch vector environment that Gymnasium knows too.

``GridWorld`` (a layout and its exact model) needs NumPy and SciPy only. The rest needs torch, the robots MuJoCo: the
extra ``deep``. Nothing heavy is imported before it is used. Importing this package registers ``bvf/GridWorld-v0``,
``bvf/PointCircle-v0``, ``bvf/PointGather-v0`` and ``bvf/SafeCheetah-v0`` (and its sisters) with Gymnasium.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .gridworld import ACTION_NAMES, GridWorld
from .registration import register

if TYPE_CHECKING:
    from .adapter import FromGymnasium
    from .base import EnvironmentFault, State, Task, TimeStep, VectorEnv
    from .check import CMDPReport, InvalidEnvironmentError, check_cmdp_env
    from .grid_task import GridTask
    from .gym import GymnasiumEnv, GymnasiumVectorEnv, make
    from .locomotion import SafeAnt, SafeCheetah, SafeHopper, SafeSwimmer, SafeWalker2d
    from .point import PointCircle, PointGather
    from .render import RenderingError
    from .six_tuple import FromSixTuple, FromSixTupleVector, ToSixTuple, ToSixTupleVector

_HOME = {
    "FromGymnasium": "adapter",
    "FromSixTuple": "six_tuple",
    "FromSixTupleVector": "six_tuple",
    "ToSixTuple": "six_tuple",
    "ToSixTupleVector": "six_tuple",
    "EnvironmentFault": "base",
    "State": "base",
    "Task": "base",
    "TimeStep": "base",
    "VectorEnv": "base",
    "CMDPReport": "check",
    "InvalidEnvironmentError": "check",
    "check_cmdp_env": "check",
    "GridTask": "grid_task",
    "GymnasiumEnv": "gym",
    "GymnasiumVectorEnv": "gym",
    "make": "gym",
    "RenderingError": "render",
    "SafeAnt": "locomotion",
    "SafeCheetah": "locomotion",
    "SafeHopper": "locomotion",
    "SafeSwimmer": "locomotion",
    "SafeWalker2d": "locomotion",
    "PointCircle": "point",
    "PointGather": "point",
}

__all__ = [
    "ACTION_NAMES",
    "CMDPReport",
    "EnvironmentFault",
    "FromGymnasium",
    "FromSixTuple",
    "FromSixTupleVector",
    "GridTask",
    "GridWorld",
    "GymnasiumEnv",
    "GymnasiumVectorEnv",
    "InvalidEnvironmentError",
    "PointCircle",
    "PointGather",
    "RenderingError",
    "SafeAnt",
    "SafeCheetah",
    "SafeHopper",
    "SafeSwimmer",
    "SafeWalker2d",
    "State",
    "Task",
    "TimeStep",
    "ToSixTuple",
    "ToSixTupleVector",
    "VectorEnv",
    "check_cmdp_env",
    "make",
    "register",
]

register()


def __getattr__(name: str) -> Any:
    """Import a task's file when it is first asked for, so that the exact layouts need no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
