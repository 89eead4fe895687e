"""`python -m pipedsl`, and the console script. Thin, so that Ctrl-C is dealt with before anything else is loaded."""

from pipedsl.cli.interrupts import end_at_once


def main() -> None:
    end_at_once()
    from pipedsl.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
