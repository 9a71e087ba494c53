"""`python -m pygraph.cli`, for a checkout that is not installed."""

from pygraph.cli.main import main

main()
