"""`python -m scalescope` is `scalescope`."""

from scalescope.interpreter import forget_working_folder

if __name__ == "__main__":
    forget_working_folder()
    from scalescope.cli.main import main

    main()
