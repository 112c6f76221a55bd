"""How jobs come into a fleet: run folders rolled up or watched, and what schedulers keep."""
