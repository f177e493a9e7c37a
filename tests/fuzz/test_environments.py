"""Environments under random sequences of calls, beside a twin that lives the same life in one piece."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bvf_tutorial.envs import make
from bvf_tutorial.envs.base import TimeStep, VectorEnv

torch.set_num_threads(1)
HORIZON, RUNS, WORLDS = 5, 2, 3
FIELDS = ("observation", "reward", "cost", "terminated", "truncated", "is_first")


def fresh(name: str, time_limit: str) -> VectorEnv:
    return make(name, WORLDS, RUNS, horizon=HORIZON, time_limit=time_limit)


def equal(left: TimeStep, right: TimeStep) -> bool:
    return all(torch.equal(getattr(left, field), getattr(right, field)) for field in FIELDS)


class Life(RuleBasedStateMachine):
    """One environment; its twin, which is only ever reset and stepped; and their common last step."""

    name = ""

    @initialize(seed=st.integers(0, 2**63 - 1), time_limit=st.sampled_from(["terminate", "truncate"]))
    def begin(self, seed: int, time_limit: str) -> None:
        self.time_limit = time_limit
        self.env, self.twin = fresh(self.name, time_limit), fresh(self.name, time_limit)
        self.history: list[torch.Tensor] = []
        self.seed, self.age = seed, np.zeros((RUNS, WORLDS), int)
        self.last, expected = self.env.reset(seed), self.twin.reset(seed)
        assert equal(self.last, expected)

    def action(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        space = self.env.action_space
        if isinstance(space, spaces.Discrete):
            return torch.randint(int(space.n), (RUNS, WORLDS), generator=generator)
        return 3 * torch.rand((RUNS, WORLDS, *space.shape), generator=generator) - 1.5  # outside of the box, too

    def stepped_and_checked(self, action: Any) -> None:
        self.env.step(action)
        self.env.check()

    @rule(number=st.integers(0, 2**31))
    def step(self, number: int) -> None:
        action = self.action(number)
        given = action.clone()
        self.last = self.env.step(action)
        assert torch.equal(action, given), "the action was changed"
        assert equal(self.last, self.twin.step(given))
        self.history.append(given)
        is_first = self.last.is_first.numpy()
        self.age = np.where(is_first, 0, self.age + 1)

    @rule(number=st.integers(0, 2**31), kind=st.sampled_from(["shape", "type", "value"]))
    def misuse(self, number: int, kind: str) -> None:
        """A wrong action is an error at the latest when asked, and the next right one meets an environment as it was."""
        before, action = self.env.state_dict(), self.action(number)
        if kind == "shape":
            wrong: Any = action[:1]
        elif kind == "type":
            wrong = "north"
        elif isinstance(self.env.action_space, spaces.Discrete):
            wrong = torch.full_like(action, int(self.env.action_space.n))
        else:
            wrong = torch.full_like(action, torch.nan)
        with pytest.raises((ValueError, TypeError)):
            self.stepped_and_checked(wrong)
        self.env = fresh(self.name, self.time_limit)
        self.env.load_state_dict(before)

    @rule()
    def through_a_file(self) -> None:
        file = io.BytesIO()
        torch.save(self.env.state_dict(), file)
        file.seek(0)
        self.env = fresh(self.name, self.time_limit)
        self.env.load_state_dict(torch.load(file, weights_only=True))

    @rule()
    def other_uses(self) -> None:
        """What looks and does not touch."""
        self.env.check()
        assert self.env.cost_limit >= 0
        assert self.env.state

    @precondition(lambda self: self.history)
    @rule()
    def again(self) -> None:
        """The whole life so far, in another order of construction, ends in the same step."""
        other = fresh(self.name, self.time_limit)
        step = other.reset(self.seed)
        for action in self.history:
            step = other.step(action)
        assert equal(step, self.last)

    @rule(seed=st.integers(0, 2**63 - 1))
    def reset(self, seed: int) -> None:
        self.seed, self.history, self.age = seed, [], np.zeros((RUNS, WORLDS), int)
        self.last = self.env.reset(seed)
        assert equal(self.last, self.twin.reset(seed))

    @invariant()
    def a_step_is_what_it_says(self) -> None:
        if not hasattr(self, "last"):
            return
        last = self.last
        assert torch.isfinite(last.observation).all() and torch.isfinite(last.reward).all()
        assert (last.cost >= 0).all()
        assert not (last.terminated & last.truncated).any()
        assert not (last.is_first & last.is_last).any()
        assert (self.age <= HORIZON).all()
        assert (last.reward[last.is_first] == 0).all()
        if self.time_limit == "terminate":
            assert not last.truncated.any()


@pytest.mark.parametrize("name", ["GridWorld", "PointCircle", "PointGather", "SafeCheetah"])
def test_a_life_of_any_order(name: str) -> None:
    machine = type(f"LifeOf{name}", (Life,), {"name": name})
    machine.TestCase.settings = settings(max_examples=10, stateful_step_count=15, deadline=None)
    case = machine.TestCase()
    case.runTest()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GridWorld", "PointCircle", "PointGather", "SafeCheetah"])
def test_a_long_life_of_any_order(name: str) -> None:
    machine = type(f"LongLifeOf{name}", (Life,), {"name": name})
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
    machine.TestCase().runTest()
