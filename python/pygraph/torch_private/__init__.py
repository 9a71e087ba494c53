"""Private names of torch, each behind a test of version or presence."""
