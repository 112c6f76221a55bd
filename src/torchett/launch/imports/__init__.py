"""Imports that take half as long: what Python and torch would do anyway, done sooner."""
