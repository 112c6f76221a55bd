"""How often to save, and what that wastes."""
