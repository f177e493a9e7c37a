"""Tests of the package (claims, unit, envs), of the book and of the built site."""
