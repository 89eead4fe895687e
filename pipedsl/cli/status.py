"""Exit statuses."""

OK = 0
REJECTED = 1
FAILED = 2  # wrong usage, or an internal error
UNKNOWN = 3
INTERRUPTED = 130  # as a shell reports SIGINT
NO_READER = 141  # as a shell reports SIGPIPE
