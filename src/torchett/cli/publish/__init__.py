"""The commands `ett publish …`."""
