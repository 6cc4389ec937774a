"""Tests of the deployment, the model store and the command line."""
