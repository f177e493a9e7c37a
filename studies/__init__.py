"""This folder knows the experiments behind the tables in ``results/``."""
