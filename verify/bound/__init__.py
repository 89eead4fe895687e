"""What judges the bounds of searches, apart from the search: `verify/bound_checker.py` is its command.

Needs the standard library alone, and of this project nothing but itself. docs/certificate.md describes the files.
"""
