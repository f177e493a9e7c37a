"""Random sequences of what a user may do, against a model of what must hold."""
