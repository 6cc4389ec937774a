"""Models: reading their configs and weights, and computing them."""
