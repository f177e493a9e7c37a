"""Seeds from the command line to the table; the environments' own are held by their contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bvf_tutorial.cli import main

torch.set_num_threads(1)
WORDS = (
    "train gather-a2c-pid --n-runs 2 --n-envs 2 --n-env-steps 120 --log-every 30 --evaluate-every 60 "
    "--n-evaluation-episodes 2 --algorithm.n-steps 15 --no-tensorboard"
)


@pytest.mark.field("seed-7-twice")
def test_seed_7_twice_is_the_same_table(tmp_path: Path) -> None:
    table = []
    for name, seed in (("first", "7"), ("second", "7"), ("other", "8")):
        assert main([*WORDS.split(), "--seed", seed, "--out", str(tmp_path / name)]) == 0
        (folder,) = (tmp_path / name).iterdir()
        assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["seed"] == int(seed)
        assert json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["seeds"] == [int(seed), int(seed) + 1]
        table.append((folder / "metrics.csv").read_bytes())
    assert table[0] == table[1] != table[2]
    assert table[0].count(b"\n") == 1 + 2 * 4
