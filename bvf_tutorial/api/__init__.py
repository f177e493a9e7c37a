"""Training on an environment of your own, and a safety layer for other torch code. Needs torch (extra ``deep``).

``train`` takes a function that makes a Gymnasium environment with ``info["cost"]``, the cost of the state just entered,
at every reset and step. What a method guarantees is in its chapter; nothing here adds to it.
"""

from .layer import SafetyLayer
from .policy import Policy, load
from .problem import Adapted, Problem, SeveralCosts
from .training import Result, evaluate, train

__all__ = ["Adapted", "Policy", "Problem", "Result", "SafetyLayer", "SeveralCosts", "evaluate", "load", "train"]
