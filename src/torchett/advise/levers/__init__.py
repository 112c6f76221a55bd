"""The levers that can be advised, one module for each family; `table.py` lists them."""
