"""The shared cache of compiled code: archives, their signatures, and which job uses which."""
