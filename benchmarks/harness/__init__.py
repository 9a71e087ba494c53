"""What every suite measures with: modes, clocks, checks, jobs and records."""
