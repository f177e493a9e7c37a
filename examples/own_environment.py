"""Train on an environment of your own, with two costs, in a few lines.

Usage: ``python examples/own_environment.py --steps 100000`` (half a minute).

A tank is filled while rain comes and goes. Reward: water let out per step, worth more at high flow. Costs: the tank
overflows, and the flow floods the fields below. Both sums over 40 steps have limits of their own, in expectation.
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from bvf_tutorial import api


class Tank(gymnasium.Env[np.ndarray, np.ndarray]):
    """One tank; the action is the flow out in [0, 1] per step, observations are level, last rain and last flow."""

    observation_space = spaces.Box(0.0, 2.0, (3,), np.float32)
    action_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with a half-full tank."""
        super().reset(seed=seed)
        self.level, self.rain, self.flow = float(self.np_random.uniform(0.3, 0.7)), 0.0, 0.0
        return self._seen(), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Let water out, then let it rain; the costs are those of the state that results."""
        self.flow = min(float(action[0]), self.level)
        self.rain = float(self.np_random.exponential(0.3)) if self.np_random.random() < 0.7 else 0.0
        self.level = min(self.level - self.flow + self.rain, 2.0)
        return self._seen(), self.flow**1.5, False, False, self._info()

    def _seen(self) -> np.ndarray:
        return np.array([self.level, min(self.rain, 2.0), self.flow], dtype=np.float32)

    def _info(self) -> dict[str, Any]:
        return {"cost": {"overflow": float(self.level > 1.0), "flood": max(self.flow - 0.3, 0.0)}}


def main() -> None:
    """Train, judge and keep a policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are faster on one

    limits = {"overflow": 8.0, "flood": 4.0}
    result = api.train(Tank, cost_limit=limits, n_env_steps=chosen.steps, horizon=40)
    judged = result.evaluate(n_episodes=100)
    print(f"return {judged.gain.mean():.2f}, combined cost {judged.cost.mean():.2f} against 1")

    env, total = result.problem.make_env(), dict.fromkeys(limits, 0.0)
    for seed in range(100):
        observation, info = env.reset(seed=10**6 + seed)
        is_over = False
        while True:
            for name in limits:
                total[name] += info[f"cost_{name}"] / 100
            if is_over:
                break
            observation, _, is_over, _, info = env.step(result.policy(observation))
    for name, limit in limits.items():
        print(f"cost {name}: {total[name]:.2f} against {limit:g}, deterministic policy")


if __name__ == "__main__":
    main()
