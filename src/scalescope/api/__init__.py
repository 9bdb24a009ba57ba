"""scalescope from Python: measuring calls, and stored runs as typed results and plain rows.

Nothing is imported here: every rank loads the user's file, and what that imports must stay light.
"""
