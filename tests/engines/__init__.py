"""Tests of the engines: the contract that each of them keeps, and the parts of the torch engine."""
