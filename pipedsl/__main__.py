"""`python -m pipedsl`."""

from pipedsl.cli.main import main

main()
