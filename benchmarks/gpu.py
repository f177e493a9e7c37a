"""Everything that a borrowed GPU should tell about the simulation, in one command of at most six minutes.

Usage: ``python -m benchmarks.gpu [--device cuda] [--budget 330] [--out results/gpu.csv]``.

Correctness first: the tensor tasks on the device against the CPU, world by world; Safe-Cheetah on the device against
MuJoCo's C code, re-synchronised at every step; statistics of random play of both; no step may wait for the device. Then
environment steps per second and memory over world counts, beside the CPU's threads. One table, also as CSV. A failed
check is reported in the table and makes the exit status 1; whatever does not fit in the budget is left out, and said.

``--device cpu --worlds 64 256`` rehearses the whole script without a GPU.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import mujoco
import torch

from bvf_tutorial import envs
from bvf_tutorial.envs.physics import RolloutPhysics, load_model
from bvf_tutorial.envs.warp import WarpPhysics

WORLDS = (512, 2048, 8192, 32768, 65536)
TASKS: dict[str, Callable[[], envs.Task]] = {
    "GridWorld": envs.GridTask,
    "PointCircle": envs.PointCircle,
    "PointGather": envs.PointGather,
}


class Report:
    """The table, printed as it grows."""

    def __init__(self) -> None:
        self.row: list[dict[str, object]] = []

    def add(self, what: str, worlds: int, value: float, unit: str, note: str = "") -> None:
        """Append and print one line."""
        self.row.append({"what": what, "worlds": worlds, "value": value, "unit": unit, "note": note})
        print(f"{what:<44} {worlds:>7} {value:>14,.6g} {unit:<12} {note}", flush=True)

    def judge(self, what: str, worlds: int, value: float, bound: float) -> None:
        """Append a check: ``value <= bound``."""
        self.add(what, worlds, value, "", f"{'ok' if value <= bound else 'FAILED'}: at most {bound:g}")


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def actions(env: envs.VectorEnv, n: int, seed: int = 0) -> torch.Tensor:
    """Return uniform actions [n, R, B(, K)], the same on every device."""
    generator, shape = torch.Generator().manual_seed(seed), (n, env.n_runs, env.n_envs)
    if env.action_space.shape == ():
        return torch.randint(int(env.action_space.n), shape, generator=generator).to(env.device)
    low, high = torch.as_tensor(env.action_space.low), torch.as_tensor(env.action_space.high)
    return (low + (high - low) * torch.rand(*shape, len(low), generator=generator)).to(env.device)


def check_tensor_tasks(device: torch.device, report: Report) -> None:
    """Compare trajectories of 100 steps with the CPU: same seed, same actions."""
    for name, task in TASKS.items():
        pair = [envs.VectorEnv(task(), n_envs=64, n_runs=4, device=each) for each in ("cpu", device)]
        step = [env.reset(7) for env in pair]
        action = actions(pair[0], 100)
        worst = 0.0
        for k in range(100):
            for key in ("observation", "reward", "cost", "terminated", "is_first"):
                here, there = (getattr(each, key).to("cpu", torch.float64) for each in step)
                worst = max(worst, float((here - there).abs().max()))
            step = [env.step(action[k].to(env.device)) for env in pair]
        pair[1].check()
        # A grid's numbers come from tables; sine and cosine may differ in the last digit of a float64, seen as float32.
        report.judge(f"{name}: largest difference from the CPU", 256, worst, 0.0 if name == "GridWorld" else 1e-5)


def check_cheetah(device: torch.device, report: Report) -> None:
    """Compare one environment step with MuJoCo's C code from the same state, 32 worlds x 50 steps."""
    task = envs.SafeCheetah(backend="warp")
    engine, exact = task.physics(32, device), RolloutPhysics(load_model("half_cheetah"))
    generator, n_positions = torch.Generator().manual_seed(0), engine.model.nq
    noise = torch.rand(32, task.start_noise, generator=generator, dtype=torch.float64)
    start = task.start(noise, torch.arange(32))
    state = torch.cat([start["position"], start["velocity"]], dim=1).to(torch.float64)
    worst = [0.0, 0.0]
    for _ in range(50):
        control = torch.rand(32, engine.model.nu, generator=generator) * 2 - 1
        there = engine.advance(state.to(device, torch.float32), control.to(device), 5).to("cpu", torch.float64)
        state = exact.advance(state, control.to(torch.float64), 5)
        error = (there - state).abs()
        worst = [max(worst[0], float(error[:, :n_positions].max())), max(worst[1], float(error[:, n_positions:].max()))]
    engine.check()
    report.judge("SafeCheetah: |dq| against C MuJoCo", 32, worst[0], 2e-4)
    report.judge("SafeCheetah: |dv| against C MuJoCo", 32, worst[1], 3e-2)


def play(env: envs.VectorEnv) -> tuple[torch.Tensor, torch.Tensor]:
    """Return return and cost of one episode of uniform play in each world, on the CPU."""
    step, action = env.reset(1), actions(env, env.task.horizon, seed=1)
    total, cost = step.reward.clone(), step.cost.clone()
    for k in range(env.task.horizon):
        step = env.step(action[k])
        total, cost = total + step.reward, cost + step.cost
    env.check()
    return total.flatten().cpu(), cost.flatten().cpu()


def check_statistics(device: torch.device, report: Report) -> None:
    """Compare the means of 600 episodes of random play on both engines, in standard errors of their difference."""
    sample = [
        play(envs.VectorEnv(envs.SafeCheetah(backend=backend), n_envs=600, device=where))
        for backend, where in (("rollout", "cpu"), ("warp", device))
    ]
    for k, key in enumerate(("return", "cost")):
        a, b = sample[0][k].double(), sample[1][k].double()
        error = ((a.var() + b.var()) / 600).sqrt()
        note = f"C {a.mean():.2f}, device {b.mean():.2f}"
        report.judge(f"SafeCheetah: {key} of random play, {note}", 600, float((a - b).mean().abs() / error), 4.0)


def check_no_wait(device: torch.device, report: Report) -> None:
    """Let CUDA raise an error if a step waits for it."""
    if device.type != "cuda":
        report.add("no step waits for the device", 0, 0, "", "not checked: needs CUDA")
        return
    for name, task in {**TASKS, "SafeCheetah": envs.SafeCheetah}.items():
        env = envs.VectorEnv(task(), n_envs=256, device=device)
        env.reset(0)
        action = actions(env, 8)
        for k in range(80):  # the first steps capture, compile and build tables
            env.step(action[k % 8])
        torch.cuda.set_sync_debug_mode("error")
        try:
            for k in range(80):
                env.step(action[k % 8])
            waits = 0
        except RuntimeError as error:
            waits = 1
            print(error)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        report.judge(f"{name}: steps that wait for the device", 256, waits, 0)


def throughput(task: envs.Task, n_worlds: int, device: torch.device, seconds: float) -> tuple[float, float]:
    """Return environment steps per second of wall time, median of 5, and device memory in bytes per world."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    env = envs.VectorEnv(task, n_envs=n_worlds, device=device)
    env.reset(0)
    action = actions(env, 8)
    for k in range(16):
        env.step(action[k % 8])
    synchronize(device)
    used = free - torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    n_steps, rate = 8, []
    while len(rate) < 5:
        synchronize(device)
        begin = time.perf_counter()
        for k in range(n_steps):
            env.step(action[k % 8])
        synchronize(device)
        spent = time.perf_counter() - begin
        if spent < seconds / 10 and n_steps < 10_000:
            n_steps *= 2
            continue
        rate.append(n_steps * n_worlds / spent)
    env.check()
    env.close()
    return statistics.median(rate), used / n_worlds


def price_of_determinism(n_worlds: int, device: torch.device) -> tuple[float, float]:
    """Return Warp's own steps per second with contact forces added up in a fixed order, and in any order."""
    model, rates = load_model("half_cheetah"), []
    for is_deterministic in (True, False):
        engine = WarpPhysics(model, n_worlds, device, is_deterministic=is_deterministic)
        state = torch.zeros(n_worlds, model.nq + model.nv, device=device)
        control = torch.rand(n_worlds, model.nu, generator=torch.Generator().manual_seed(0)).to(device)
        for n_steps in (20, 50):  # the first steps compile and capture
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(n_steps):
                state = engine.advance(state, control, 5)
            synchronize(device)
            rate = n_steps * n_worlds / (time.perf_counter() - begin)
        rates.append(rate)
        engine.close()
    return rates[0], rates[1]


def describe(device: torch.device) -> dict[str, str]:
    """Return what made the table: hardware, versions, commit."""
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "torch": torch.__version__,
        "mujoco": mujoco.__version__,
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "commit": run.stdout.strip() or "unknown",
    }


def measure(device: torch.device, worlds: list[int], deadline: float, report: Report) -> None:
    """Measure throughput: small counts of every task first, so that a short budget still covers all of them."""
    if device.type == "cuda":
        for n in (20, 2048):
            rate, _ = throughput(envs.SafeCheetah(), n, torch.device("cpu"), 1.0)
            report.add("SafeCheetah, CPU threads", n, rate, "steps/s")
    for n in worlds:
        for name, task in {**TASKS, "SafeCheetah": lambda: envs.SafeCheetah(backend="warp")}.items():
            if time.perf_counter() > deadline:
                report.add(name, n, float("nan"), "steps/s", "left out: the budget is spent")
                continue
            rate, memory = throughput(task(), n, device, 1.0)
            report.add(name, n, rate, "steps/s", f"{memory / 1000:.1f} kB a world" if memory else "")
        if device.type == "cuda":
            torch.cuda.empty_cache()


def measure_determinism(n_worlds: int, device: torch.device, report: Report) -> None:
    """Report what equal futures from equal states cost."""
    for order, rate in zip(("a fixed", "any"), price_of_determinism(n_worlds, device), strict=True):
        report.add(f"Warp alone, forces added in {order} order", n_worlds, rate, "steps/s")


def main() -> int:
    """Check, measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--worlds", type=int, nargs="+", default=list(WORLDS))
    parser.add_argument("--budget", type=float, default=330.0, help="seconds after which nothing new is started")
    parser.add_argument("--out", type=Path, help="write the table here as CSV")
    chosen = parser.parse_args()
    begin, device = time.perf_counter(), torch.device(chosen.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("No CUDA device here; --device cpu --worlds 64 256 rehearses the script.", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    report, made_by = Report(), describe(device)
    print(", ".join(f"{key} {value}" for key, value in made_by.items()))
    check_tensor_tasks(device, report)
    check_cheetah(device, report)
    report.add("kernels ready after", 32, time.perf_counter() - begin, "s")
    check_statistics(device, report)
    check_no_wait(device, report)
    measure(device, chosen.worlds, begin + chosen.budget, report)
    if time.perf_counter() < begin + chosen.budget - 60:  # the other order may compile kernels of its own
        measure_determinism(min(8192, max(chosen.worlds)), device, report)
    report.add("whole run", 0, time.perf_counter() - begin, "s")
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        with chosen.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*report.row[0], *made_by])
            writer.writeheader()
            writer.writerows({**row, **made_by} for row in report.row)
    return int(any("FAILED" in str(row["note"]) for row in report.row))


if __name__ == "__main__":
    sys.exit(main())
