"""Diagnostics, timelines and reports for people and for programs. Nothing here prints."""
