"""Standbys: processes that have imported torch before a rank needs one."""
