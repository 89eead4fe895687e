"""pipedsl."""
