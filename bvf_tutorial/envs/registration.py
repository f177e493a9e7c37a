"""This file knows every task's name, its home, and its Gymnasium id; it imports Gymnasium and nothing heavy.

One table serves ``gymnasium.make``, ``gymnasium.make_vec`` and ``envs.make``. A new task is one line of it.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

import gymnasium

__all__ = ["TASKS", "environment_id", "register", "task_class"]

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "GridWorld": "grid_task:GridTask",
        "PointCircle": "point:PointCircle",
        "PointGather": "point:PointGather",
        "SafeCheetah": "locomotion:SafeCheetah",
        "SafeHopper": "locomotion:SafeHopper",
        "SafeWalker2d": "locomotion:SafeWalker2d",
        "SafeAnt": "locomotion:SafeAnt",
        "SafeSwimmer": "locomotion:SafeSwimmer",
    }
)
"""Task name -> "file of this package:class"."""


def environment_id(name: str) -> str:
    """Return the Gymnasium id of a task, ``bvf/<name>-v0``."""
    return f"bvf/{name}-v0"


def register() -> None:
    """Tell Gymnasium about every task; asking twice changes nothing.

    The entry points are strings, so that torch is imported by ``gymnasium.make`` and not by this. There is no
    ``max_episode_steps``, since the tasks end their episodes themselves.
    """
    for name in TASKS:
        if environment_id(name) not in gymnasium.registry:
            gymnasium.register(
                environment_id(name),
                entry_point=f"{__package__}.gym:GymnasiumEnv",
                vector_entry_point=f"{__package__}.gym:GymnasiumVectorEnv",
                kwargs={"task": name},
            )


def task_class(name: str) -> type:
    """Return the class of a task of the table."""
    file, attribute = TASKS[name].split(":")
    home: type = getattr(import_module(f".{file}", __package__), attribute)
    return home
