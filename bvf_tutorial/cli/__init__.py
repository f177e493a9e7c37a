"""The command line, ``python -m bvf_tutorial train | evaluate | plot | video | sweep | list``; needs tyro and tqdm."""

from .commands import main

__all__ = ["main"]
