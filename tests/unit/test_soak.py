"""The soak sees a leak: one that is planted, and none in a short training."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import ALLOWED, growth, soaked


def test_growth_is_of_the_peak_after_the_first_half() -> None:
    assert growth([100, 300, 300, 400, 400, 400, 408, 412, 416, 420]) == pytest.approx(0.05)
    assert growth([100, 400, 400, 400, 400]) == 0


@pytest.mark.slow
def test_a_short_training_keeps_its_memory_and_a_planted_leak_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert growth(soaked("grid-sarsa-backward", 30, tmp_path / "whole")) <= ALLOWED
    leak: list[bytearray] = []
    from bvf_tutorial.agents.train import Trainer

    advance = Trainer.advance

    def leaking(self: Trainer):
        leak.append(bytearray(b"x") * 500_000)
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", leaking)
    assert growth(soaked("grid-sarsa-backward", 30, tmp_path / "leaking")) > ALLOWED
