"""What the scheduler says about a job: when it was submitted, when placed, and where."""
