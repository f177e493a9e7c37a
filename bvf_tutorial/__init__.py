"""This file knows the package's version, and nothing else: importing it stays instant and never touches torch.

``bvf_tutorial`` accompanies the book *Constrained MDPs via Backward Value Functions, from a grid world to GPU MuJoCo*.
Import the part you need: ``bvf_tutorial.tabular`` (exact mathematics), ``bvf_tutorial.envs`` (the tasks),
``bvf_tutorial.plotting`` and ``bvf_tutorial.widgets`` (pictures).
"""

__version__ = "0.1.0"
