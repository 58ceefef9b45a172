"""Decides what should happen to a job, carries it out, and writes down what came back."""
