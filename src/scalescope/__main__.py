"""`python -m scalescope` is `scalescope`."""

from scalescope.cli.app import main

if __name__ == "__main__":
    main()
