"""The edge to run folders: whoever made one may be careless or hostile, so everything is checked here."""

ENVIRONMENT = "environment.json"
