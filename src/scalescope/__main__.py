"""`python -m scalescope` is `scalescope`."""

from scalescope.cli.main import main

if __name__ == "__main__":
    main()
