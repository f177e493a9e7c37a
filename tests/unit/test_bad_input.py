"""Bad input gets an error that names the entry and the remedy; nothing is computed from it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld
from bvf_tutorial.widgets import FrameSlider


def parts() -> dict[str, Any]:
    """The pieces of a valid two-state, two-action episodic model."""
    transition = np.array([[[0.5, 0.3], [0.0, 0.9]], [[0.2, 0.2], [0.4, 0.0]]])
    return {
        "transition": transition,
        "reward": np.ones((2, 2)),
        "cost": np.array([0.0, 1.0]),
        "initial": np.array([1.0, 0.0]),
        "cost_limit": 1.0,
        "termination": 1 - transition.sum(axis=2),
    }


def broken(**change: Callable[[Any], Any]) -> dict[str, Any]:
    model = parts()
    for name, edit in change.items():
        model[name] = edit(np.array(model[name]))
    return model


def at(index: Any, number: float) -> Callable[[np.ndarray], np.ndarray]:
    def edit(array: np.ndarray) -> np.ndarray:
        array = array.astype(float)
        array[index] = number
        return array

    return edit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transition": at((1, 0, 1), 0.3)}, r"row \(state 1, action 0\) of transition sums to 0.5 .* CMDP.episodic"),
        ({"transition": at((0, 1, 0), -0.1)}, r"transition\[0, 1, 0\] is -0.1; a probability"),
        ({"transition": at((0, 1, 0), np.nan)}, r"transition\[0, 1, 0\] is nan"),
        ({"transition": lambda t: t[:, :1]}, r"shape \(2, 1, 2\), expected \(2, 2, 2\)"),
        ({"reward": at((1, 1), np.inf)}, r"reward\[1, 1\] is inf"),
        ({"reward": lambda r: r[0]}, r"expected \[S, A\]"),
        ({"cost": at(1, -1.0)}, r"cost\[1\] is -1.0; it must be >= 0 \(a gain belongs in reward\)"),
        ({"cost": at(0, np.nan)}, r"cost\[0\] is nan"),
        ({"initial": at(0, 0.7)}, r"initial sums to 0.7, not 1"),
        ({"initial": at(slice(None), [1.5, -0.5])}, r"initial\[1\] is -0.5"),
        ({"termination": at((0, 0), -0.2)}, r"termination\[0, 0\] is -0.2"),
        ({"cost_limit": lambda _: -1.0}, "cost_limit is -1.0; it must be a finite number >= 0"),
        ({"cost_limit": lambda _: np.nan}, "cost_limit is nan"),
    ],
)
def test_models(change: dict[str, Any], message: str) -> None:
    tb.CMDP(**parts())
    with pytest.raises(tb.InvalidModelError, match=message):
        tb.CMDP(**broken(**change))


def test_an_episodic_model_names_its_reward_before_its_rows() -> None:
    for reward in (1.0, [1.0, 1.0]):
        with pytest.raises(tb.InvalidModelError, match=r"reward has shape .*, expected \[S, A\]"):
            tb.CMDP.episodic(1.5 * np.eye(np.size(reward)), reward, np.zeros(1), np.ones(1), 1.0)


def test_sparse_models_name_the_entry_too() -> None:
    model = parts()
    for number, message in ((-0.2, r"transition\[2, 1\] is -0.2"), (np.inf, r"transition\[2, 1\] is inf")):
        kernel = model["transition"].reshape(4, 2).copy()
        kernel[2, 1] = number
        with pytest.raises(tb.InvalidModelError, match=message):
            tb.CMDP(**{**model, "transition": sparse.csr_array(kernel)})


def test_sparse_models_are_read_as_they_are_meant() -> None:
    """Entries given twice add up, stored zeros are zeros, and the caller's matrix stays as it was."""
    model = parts()
    kernel = model["transition"].reshape(4, 2)
    columns, halves = np.tile([0, 0, 1, 1], 4), np.repeat(kernel.ravel() / 2, 2)  # two of the entries are zeros
    given = sparse.csr_array((halves, columns, np.arange(0, 17, 4)), shape=(4, 2))
    read = tb.CMDP(**{**model, "transition": given})
    np.testing.assert_allclose(read.transition.toarray(), kernel)
    assert given.nnz == 16
    with pytest.raises(
        tb.InvalidModelError, match=r"transition is sparse .* complex128; give real numbers on two axes"
    ):
        tb.CMDP(**{**model, "transition": given.astype(complex)})


def test_numbers_of_every_kind_are_read_as_float64() -> None:
    exact = np.array([[Fraction(1, 2), Fraction(1, 4)], [Fraction(0), Fraction(1, 3)]])
    chain = tb.Chain.killed(exact, [1, 0])
    assert chain.transition.dtype == chain.initial.dtype == np.float64
    np.testing.assert_array_equal(chain.transition, exact.astype(float))
    for wrong in (["one", "two"], [1j, 2], [[1], [2, 3]]):
        with pytest.raises(tb.InvalidModelError, match="cost is no array of real numbers"):
            tb.forward_value(chain, wrong)


def test_missing_mass_is_never_guessed() -> None:
    """A row that sums to .97 is an error, unless the caller says that missing mass ends the episode."""
    model = parts()
    model.pop("termination")
    assert tb.CMDP.episodic(**model).termination[0, 0] == pytest.approx(0.2)
    with pytest.raises(tb.InvalidModelError, match="together they must give 1"):
        tb.CMDP.continuing(**model)
    model["transition"] = model["transition"] * 2
    with pytest.raises(tb.InvalidModelError, match=r"row \(state 0, action 0\) of transition sums to 1.6 > 1"):
        tb.CMDP.episodic(**model)


def test_records_are_frozen() -> None:
    cmdp = tb.CMDP(**parts())
    for array in (cmdp.transition, cmdp.cost, cmdp.initial, tb.chain4().transition):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7.0
    source = parts()
    kept = tb.CMDP(**source)
    source["cost"][1] = -5.0
    assert kept.cost[1] == 1.0


def test_chains() -> None:
    start = np.array([1.0, 0.0])
    with pytest.raises(tb.InvalidModelError, match=r"row 1 of transition sums to 0.8 .* use Chain.killed"):
        tb.Chain(np.array([[0.5, 0.5], [0.4, 0.4]]), np.zeros(2), start)
    with pytest.raises(tb.InvalidModelError, match=r"row 0 of transition sums to 1.2 > 1"):
        tb.Chain.killed(np.array([[0.6, 0.6], [0.4, 0.4]]), start)
    with pytest.raises(tb.InvalidModelError, match="square"):
        tb.Chain(np.ones((2, 3)) / 3, np.zeros(2), start)
    with pytest.raises(tb.InvalidModelError, match=r"termination\[1\] is -0.5"):
        tb.Chain(np.array([[1.0, 0], [0.5, 1.0]]), np.array([0, -0.5]), start)


def test_policies() -> None:
    cmdp = tb.CMDP(**parts())
    for wrong in ([[0.5, 0.5], [0.5, 0.4]], [[0.5, 0.5], [1.5, -0.5]]):
        with pytest.raises(tb.InvalidModelError, match="policy row 1"):
            tb.policy_chain(cmdp, wrong)
    with pytest.raises(tb.InvalidModelError, match=r"policy has shape \(2, 3\)"):
        tb.policy_chain(cmdp, np.ones((2, 3)) / 3)
    # Rounding below zero is accepted, and reaches no chain: here action 0 alone leads to state 1.
    rounded = tb.policy_chain(tb.coin_flip(), [[-1e-12, 1 + 1e-12], [0.0, 1.0]])
    assert rounded.transition[0].tolist() == [0.0, 0.0]


def trap() -> tb.CMDP:
    """State 1 never ends under action 0; state 2 is reached by nothing."""
    transition = np.zeros((3, 2, 3))
    transition[0, :, 1] = 0.5
    transition[1, 0, 1] = 1.0
    transition[1, 1, 1] = 0.5
    return tb.CMDP.episodic(transition, np.zeros((3, 2)), [0.0, 1.0, 0], [1.0, 0, 0], 1.0)


@pytest.mark.field("improper-policy")
def test_policy_that_never_ends() -> None:
    """Named before any solve: no singular matrix, no endless loop (cases: improper policy at gamma 1)."""
    chain = tb.policy_chain(trap(), [[1, 0], [1, 0], [1, 0]])
    for quantity in (
        lambda: tb.forward_value(chain, np.ones(3)),
        lambda: tb.expected_visits(chain),
        lambda: tb.backward_value(chain, np.ones(3), unreachable="nan"),
        lambda: tb.evaluate_policy(trap(), [[1, 0], [1, 0], [1, 0]]),
        lambda: tb.occupancy_measure(trap(), [[1, 0], [1, 0], [1, 0]]),
    ):
        with pytest.raises(tb.ImproperPolicyError, match=r"from state 1 the episode never ends.*time_augmented"):
            quantity()
    assert tb.forward_value(chain, [0, 1.0, 0], 0.5)[1] == pytest.approx(2.0)


def test_unreachable_states() -> None:
    chain = tb.policy_chain(trap(), [[1, 0], [0, 1], [1, 0]])
    for quantity in (
        lambda: tb.backward_value(chain, np.ones(3)),
        lambda: tb.time_reversal(chain),
        lambda: tb.backward_kernel(trap(), [[1, 0], [0, 1], [1, 0]]),
        lambda: tb.expected_age(chain),
    ):
        with pytest.raises(tb.UnreachableStateError, match=r"state 2 cannot be reached.*chain.visited"):
            quantity()
    stuck_elsewhere = tb.Chain(
        np.array([[0, 0.5, 0], [0, 0.5, 0], [0, 0, 1.0]]), np.array([0.5, 0.5, 0]), np.array([1.0, 0, 0])
    )
    for quantity in (tb.backward_value, tb.state_wise_cost):
        for part in (chain, stuck_elsewhere):  # what an unvisited state could do does not matter
            marked = quantity(part, np.ones(3), unreachable="nan")
            assert np.isnan(marked).tolist() == [False, False, True]
    np.testing.assert_allclose(tb.expected_visits(stuck_elsewhere), [1, 1, 0])
    with pytest.raises(tb.InvalidModelError, match="'raise' or 'nan'"):
        tb.backward_value(chain, np.ones(3), unreachable="zero")


def test_discounts() -> None:
    chain = tb.two_state()
    for quantity in (lambda: tb.forward_value(chain, [0, 1.0]), lambda: tb.backward_value(chain, [0, 1.0])):
        with pytest.raises(tb.DiscountError, match=r"gamma = 1 on a chain that never ends.*use gamma < 1"):
            quantity()
    for gamma in (-0.1, 1.1):
        with pytest.raises(tb.DiscountError, match=r"lies in \[0, 1\]"):
            tb.forward_value(chain, [0, 1.0], gamma)
    with pytest.raises(tb.DiscountError, match="time_augmented"):
        tb.optimal_policy(tb.wait_or_go())


def test_a_sparse_chain_that_float64_cannot_tell_from_an_endless_one() -> None:
    chain = tb.Chain(sparse.csr_array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.0, 1e-17]), np.array([1.0, 0.0]))
    with pytest.raises(tb.SolveError, match=r"cannot be factored.*use a dense model"):
        tb.expected_visits(chain)
    dense = tb.Chain(chain.transition.toarray(), chain.termination, chain.initial)
    np.testing.assert_allclose(tb.expected_visits(dense), [1e17, 1e17], rtol=1e-12)


def test_reducible_chains() -> None:
    chain = tb.Chain.continuing(np.array([[1.0, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]))
    for quantity in (lambda: tb.stationary_distribution(chain), lambda: tb.time_reversal(chain)):
        with pytest.raises(tb.ReducibleChainError, match=r"2 communicating classes \(states 1, 2 do not communicate"):
            quantity()
    with pytest.raises(tb.ReducibleChainError, match="restrict"):
        tb.period(chain)


def test_episodes() -> None:
    flags = np.ones(1, bool)
    state = np.array([[0, 1, -1]])
    tb.Episodes(state, state, np.array([2]), flags, flags)
    with pytest.raises(tb.InvalidModelError, match="episode 0 has no state at step 2"):
        tb.Episodes(state, state, np.array([3]), flags, flags)
    with pytest.raises(tb.InvalidModelError, match="episode 0 has length 4"):
        tb.Episodes(state, state, np.array([4]), flags, flags)
    with pytest.raises(tb.InvalidModelError, match="one entry per episode"):
        tb.Episodes(state, state, np.array([2]), np.ones(2, bool), flags)
    cut = tb.Episodes(state, state, np.array([2]), flags, ~flags)
    with pytest.raises(tb.InvalidModelError, match=r"episode 0 is cut.*use td"):
        tb.monte_carlo(cut, [1.0, 1.0])
    with pytest.raises(tb.InvalidModelError, match="visit state 1, but cost has 1 entries"):
        tb.td(cut, [1.0])
    with pytest.raises(tb.InvalidModelError, match="'forward' or 'backward'"):
        tb.lstd(cut, [1.0, 1.0], "sideways")
    with pytest.raises(tb.InvalidModelError, match="features has shape"):
        tb.lstd(cut, [1.0, 1.0], features=np.ones((3, 1)))
    with pytest.raises(tb.InvalidModelError, match="begins in the middle"):
        tb.streaming_backward_td(tb.reversed_episodes(cut), [1.0, 1.0])
    with pytest.raises(tb.SolveError, match="rank 1 of 2"):
        tb.lstd(cut, [1.0, 1.0], "backward", features=np.ones((2, 2)))
    model = tb.chain_cmdp(tb.chain4(), tb.CHAIN4_COST)
    whole = tb.sample_episodes(model, np.ones((4, 1)), 3000, np.random.default_rng(0))
    with np.errstate(all="ignore"), pytest.raises(tb.SolveError, match="diverged at update"):
        tb.td(whole, tb.CHAIN4_COST, step_size=50.0)
    for learn in (tb.monte_carlo, tb.td, tb.lstd, tb.streaming_backward_td):
        for gamma in (-0.1, 1.1):
            with pytest.raises(tb.DiscountError, match=f"gamma is {gamma}"):
                learn(whole, tb.CHAIN4_COST, gamma=gamma)
    for learn in (tb.td, tb.lstd, tb.streaming_backward_td):
        with pytest.raises(tb.InvalidModelError, match=r"lambda_ is 1\.5"):
            learn(whole, tb.CHAIN4_COST, lambda_=1.5)
    with pytest.raises(tb.InvalidModelError, match="batch_size is 0"):
        tb.td(whole, tb.CHAIN4_COST, batch_size=0)
    with pytest.raises(tb.InvalidModelError, match=r"initial_weight has shape \(3,\)"):
        tb.td(whole, tb.CHAIN4_COST, initial_weight=np.zeros(3))
    with pytest.raises(tb.InvalidModelError, match="n_streams is 0"):
        tb.streaming_backward_td(whole, tb.CHAIN4_COST, n_streams=0)


@pytest.mark.field("empty-set")
def test_a_limit_just_below_the_least_cost_is_infeasible() -> None:
    """HiGHS gives up (status 4) on this layout and limit: still an answer, and it says why no policy is allowed."""
    pit = np.zeros((12, 12), bool)
    pit[1:, 5] = pit[8:, 6] = pit[11:, 7] = True
    wedge = GridWorld(pit, (11, 0), step_reward=-10.0).to_cmdp()
    least, _ = tb.cost_range(wedge)
    for limit in (0.0, 0.1, 0.13):
        answer = tb.optimal_policy(wedge.with_cost_limit(limit))
        assert answer.status == "infeasible"
        assert answer.cost == pytest.approx(least)
    assert tb.optimal_policy(wedge.with_cost_limit(0.2)).is_feasible


def test_returns() -> None:
    for returns in (tb.lambda_returns, tb.n_step_returns):
        with pytest.raises(tb.InvalidModelError, match="must share one shape"):
            returns([1.0, 2], [1.0], [1.0, 1], 1)
    with pytest.raises(tb.InvalidModelError, match="at least one step ahead"):
        tb.n_step_returns([1.0], [1.0], [1.0], 0)


def test_everything_else() -> None:
    with pytest.raises(tb.InvalidModelError, match="horizon is -1"):
        tb.time_augmented(trap(), -1)
    with pytest.raises(tb.InvalidModelError, match=r"horizon is 1\.5"):
        tb.finite_horizon_value(tb.chain4(), tb.CHAIN4_COST, 1.5)  # type: ignore[arg-type]
    with pytest.raises(tb.InvalidModelError, match="branching 9"):
        tb.random_cmdp(np.random.default_rng(0), 4, branching=9)
    with pytest.raises(tb.InvalidModelError, match="branching 9"):
        tb.random_layered_cmdp(np.random.default_rng(0), branching=9)
    with pytest.raises(tb.InvalidModelError, match="side 1"):
        tb.grid_walk(1)
    with pytest.raises(tb.InvalidModelError, match="n_episodes 0"):
        tb.sample_episodes(trap(), tb.uniform_policy(trap()), 0, np.random.default_rng(0))
    law = np.array([[0.5, 0.5]])
    for threshold in (np.inf, np.nan):
        with pytest.raises(tb.InvalidModelError, match=f"threshold {threshold} lies beyond"):
            tb.tail_probability(law, threshold)
    for unit in (0.0, -1.0, np.nan):
        for measure in (tb.tail_probability, tb.conditional_value_at_risk):
            with pytest.raises(tb.InvalidModelError, match=f"unit is {unit}"):
                measure(law, 0.5, unit)
    with pytest.raises(ValueError, match="alt is empty"):
        FrameSlider([b""], ["x"], " ")
    with pytest.raises(ValueError, match="one label per frame"):
        FrameSlider([b""], [], "x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pit": np.zeros((3, 2), bool), "goal": (0, 0)}, "expected \\[size, size\\]"),
        ({"pit": np.ones((3, 3), bool), "goal": (0, 0)}, r"start \(2, 2\) is a pit"),
        ({"pit": np.zeros((3, 3), bool), "goal": (3, 0)}, r"goal \(3, 0\) lies outside"),
        ({"pit": np.zeros((3, 3), bool), "goal": (2, 2)}, "start and goal are both"),
        ({"pit": np.zeros((3, 3), bool), "goal": (0, 0), "slip": 1.5}, "slip is 1.5"),
    ],
)
def test_grids(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(tb.InvalidModelError, match=message):
        GridWorld(**arguments)
