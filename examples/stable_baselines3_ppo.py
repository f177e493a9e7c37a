"""Stable-Baselines3's PPO on a task of this package: a fixed price of cost, and the episode cost beside the limit.

Usage: ``pip install stable-baselines3``, then ``python examples/stable_baselines3_ppo.py --price 2 --steps 100000``.

Stable-Baselines3 knows rewards only, so the wrapper subtracts ``price x cost`` from them. A price is no limit: which
one meets the limit must be found by trying (chapter 1), where the methods of ``bvf_tutorial.agents`` adapt theirs.
Its vector environments restart in the step that ends an episode and drop the restart's info, so the sum of an
episode's cost, the start's included, is kept by the wrapper and read at the end.
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

import bvf_tutorial.envs  # noqa: F401  # registers bvf/PointCircle-v0


class Priced(gymnasium.Wrapper):
    """Reward minus ``price x cost`` of the state entered; ``info["episode_cost"]`` at an episode's end."""

    def __init__(self, env: gymnasium.Env, price: float) -> None:
        super().__init__(env)
        self.price, self.episode_cost = price, 0.0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode, whose cost begins with its first state's."""
        observation, info = self.env.reset(**options)
        self.episode_cost = info["cost"]
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move, and pay for the state entered."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.episode_cost += info["cost"]
        if terminated or truncated:
            info["episode_cost"] = self.episode_cost
        return observation, reward - self.price * info["cost"], terminated, truncated, info


class EpisodeCost(BaseCallback):
    """Log the mean cost of every rollout's episodes and their share over the limit; keep the means in ``history``."""

    def __init__(self, cost_limit: float) -> None:
        super().__init__()
        self.cost_limit, self.finished, self.history = cost_limit, [], []

    def _on_step(self) -> bool:
        self.finished += [info["episode_cost"] for info in self.locals["infos"] if "episode_cost" in info]
        return True

    def _on_rollout_end(self) -> None:
        if self.finished:
            self.history.append(float(np.mean(self.finished)))
            self.logger.record("safety/episode_cost", self.history[-1])
            self.logger.record("safety/violation_rate", float(np.mean(np.array(self.finished) > self.cost_limit)))
            self.finished = []


def make_env(price: float) -> gymnasium.Env:
    """Return Point-Circle with the time in its observation, as the chapters train on it, and a price on cost."""
    return Priced(gymnasium.make("bvf/PointCircle-v0", is_time_aware=True, observation="scaled"), price)


def main() -> None:
    """Train, and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--price", type=float, default=2.0, help="units of reward per unit of cost")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are faster on one
    worlds = make_vec_env(lambda: make_env(chosen.price), n_envs=20, seed=0)
    cost_limit = worlds.get_attr("cost_limit")[0]
    watch = EpisodeCost(cost_limit)
    # 65 decisions are one episode: SB3's restart takes no step of its own.
    PPO("MlpPolicy", worlds, n_steps=65, batch_size=325, n_epochs=5, learning_rate=1e-3, device="cpu", seed=0).learn(
        chosen.steps, callback=watch
    )
    worlds.close()
    first, last = watch.history[0], watch.history[-1]
    print(f"price {chosen.price:g}: episode cost {first:.1f} at first, {last:.1f} at last; limit {cost_limit:g}")


if __name__ == "__main__":
    main()
