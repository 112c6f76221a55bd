"""What to do after a failure: start again, wait, leave the node, or stop."""
