"""Evaluation: protocols that ask, statistics that say how sure the answer is."""
